#include "strata/core/log.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>

#include <fmt/chrono.h>

#include "strata/core/error.hpp"

namespace strata {

void Log::open_file(const std::string& path) {
  if (output_ == Output::kSilent) {
    return;
  }
  file_.reset(std::fopen(path.c_str(), "a"));
  if (!file_) {
    fail(ExitCode::kUsage, "cannot write the log {}: {}; choose another run.dir", path,
         std::strerror(errno));
  }
  for (const std::string& text : early_lines_) {
    write(text);
  }
  early_lines_.clear();
}

void Log::line(std::string_view text) {
  fmt::print(stderr, "{}\n", text);
  if (file_) {
    write(text);
  } else {
    early_lines_.emplace_back(text);
  }
}

void Log::write(std::string_view text) {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  // A full disk must not end a run for want of a line.
  std::fputs(fmt::format("{:%Y-%m-%d %H:%M:%S} {}\n", fmt::localtime(now), text).c_str(),
             file_.get());
  std::fflush(file_.get());
}

}  // namespace strata
