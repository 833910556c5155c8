#include "strata/config/site_file.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "ini_file.hpp"

namespace strata::config {
namespace {

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
  for (const IniLine& line : user_ini_lines(path)) {
    const bool of_job = line.key.starts_with(kSection);
    const std::string name = line.key.substr(of_job ? kSection.size() : 0);
    if (!of_job || std::ranges::count(known, name) == 0) {
      fail(ExitCode::kUsage, "{}: there is no option \"{}\" in [job]; the nearest is \"{}\"", path,
           line.key, nearest(name, known));
    }
    values[name] = line.value;
  }
  return values;
}

}  // namespace strata::config
