#include "commands/output_file.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "strata/core/error.hpp"
#include "strata/io/text_file.hpp"

namespace strata::app {
namespace {

[[noreturn]] void refuse_output(const std::string& path) {
  fail(ExitCode::kUsage, "cannot write {}: {}; choose another file", path, std::strerror(errno));
}

}  // namespace

void refuse_outputs_that_are_inputs(const config::CommandLine& line) {
  for (const std::string output :
       {"output", "html", "calibrate", "confusion", "documents", "contact-sheet"}) {
    for (const std::string& path : line.values(output)) {
      const auto require_other = [&](const std::string& input, const std::string& name) {
        std::error_code ignored;
        if (std::filesystem::is_regular_file(path, ignored) &&
            std::filesystem::equivalent(path, input, ignored)) {
          fail(ExitCode::kUsage, "--{}={} is {}; choose another file", output, path, name);
        }
      };
      for (const std::string& position : line.positions()) {
        require_other(position, "what the command reads");
        for (const char* const file :
             {"config.ini", "metrics.jsonl", "log.txt", "receipts.jsonl", "timeline.json"}) {
          require_other(position + "/" + file, "a file of the run");
        }
      }
      for (const std::string input : {"files", "prompts", "choices", "machine", "hostfile"}) {
        for (const std::string& file : line.values(input)) {
          require_other(file, "the file of --" + input);
        }
      }
    }
  }
}

void require_writable(const std::string& path) {
  io::refuse_hdf5(path);
  std::error_code error;
  if (std::filesystem::is_other(path, error)) {
    return;  // closing a pipe would end it for its reader
  }
  const bool absent = !std::filesystem::exists(std::filesystem::symlink_status(path, error));
  if (!std::ofstream(path, std::ios::app)) {
    refuse_output(path);
  }
  if (absent) {
    std::filesystem::remove(path, error);
  }
}

void write_file(const std::string& path, const std::string& text) {
  if (!io::write_output(path, text)) {
    refuse_output(path);
  }
}

}  // namespace strata::app
