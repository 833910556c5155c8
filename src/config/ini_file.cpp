#include "ini_file.hpp"

#include <sstream>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/io/text_file.hpp"

namespace strata::config {

namespace po = boost::program_options;

std::string ini_text(const std::string& path) {
  constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;
  return io::read_input(path, kMostBytes, ExitCode::kUsage);
}

po::basic_parsed_options<char> parse_ini(const std::string& path, const std::string& text,
                                         const po::options_description& known) {
  std::istringstream in(text);
  try {
    return po::parse_config_file(in, known, true);
  } catch (const po::invalid_config_file_syntax& error) {
    // Its what() does not end for a line that holds "%invalid_line%".
    fail(ExitCode::kUsage,
         "{} contains an invalid line '{}'; such a file has [section] lines and key = value lines",
         path, error.tokens());
  } catch (const po::error&) {
    fail(ExitCode::kUsage,
         "{} cannot be read; such a file has [section] lines and key = value lines", path);
  }
}

}  // namespace strata::config
