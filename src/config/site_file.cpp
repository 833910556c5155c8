#include "strata/config/site_file.hpp"

#include <cstdlib>
#include <filesystem>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "ini_file.hpp"

namespace strata::config {
namespace {

namespace po = boost::program_options;

constexpr std::string_view kSection = "job.";

/// The first site file; empty where there is none, or where STRATA_SITE is /dev/null.
std::string site_path() {
  if (const char* named = std::getenv("STRATA_SITE"); named != nullptr && *named != '\0') {
    return named == std::string("/dev/null") ? "" : named;
  }
  const char* home = std::getenv("HOME");
  for (const std::string& path :
       {std::string(home == nullptr ? "" : home) + "/.config/strata/site.ini",
        std::string("/etc/strata/site.ini")}) {
    if (std::error_code error; std::filesystem::exists(path, error)) {
      return path;
    }
  }
  return "";
}

}  // namespace

std::map<std::string, std::string> read_site_file(const std::vector<std::string>& known) {
  std::map<std::string, std::string> values;
  const std::string path = site_path();
  if (path.empty()) {
    return values;
  }
  po::options_description options;
  for (const std::string& name : known) {
    options.add_options()((std::string(kSection) + name).c_str(), po::value<std::string>(), "");
  }
  for (const po::option& option : parse_ini(path, ini_text(path), options).options) {
    if (option.unregistered) {
      const std::string name =
          option.string_key.substr(option.string_key.starts_with(kSection) ? kSection.size() : 0);
      fail(ExitCode::kUsage, "{}: there is no option \"{}\" in [job]; the nearest is \"{}\"", path,
           option.string_key, nearest(name, known));
    }
    values[option.string_key.substr(kSection.size())] = option.value.front();
  }
  return values;
}

}  // namespace strata::config
