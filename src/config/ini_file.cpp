#include "ini_file.hpp"

#include "strata/core/error.hpp"
#include "strata/io/text_file.hpp"

namespace strata::config {

std::vector<IniLine> user_ini_lines(const std::string& path) {
  constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;
  const std::string text = io::read_input(path, kMostBytes, ExitCode::kUsage);
  return ini_lines(text, [&](std::string_view line) {
    fail(ExitCode::kUsage,
         "{} contains an invalid line '{}'; such a file has [section] lines and key = value lines",
         path, line);
  });
}

}  // namespace strata::config
