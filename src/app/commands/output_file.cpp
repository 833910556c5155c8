#include "commands/output_file.hpp"

#include <cerrno>
#include <cstring>

#include "strata/core/error.hpp"
#include "strata/io/text_file.hpp"

namespace strata::app {

void write_file(const std::string& path, const std::string& text) {
  if (!io::write_output(path, text)) {
    fail(ExitCode::kUsage, "cannot write {}: {}; choose another file", path, std::strerror(errno));
  }
}

}  // namespace strata::app
