#include "commands/output_file.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "strata/core/error.hpp"

namespace strata::app {

void write_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) {
    fail(ExitCode::kUsage, "cannot write {}: {}; choose another file", path, std::strerror(errno));
  }
}

}  // namespace strata::app
