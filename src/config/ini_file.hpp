#pragma once

#include <string>
#include <vector>

#include "strata/core/ini_lines.hpp"

namespace strata::config {

/// The settings in a user's ini file. Throws: Error(kUsage) that begins with `path`, also for a
/// file of more than 16 MiB.
[[nodiscard]] std::vector<IniLine> user_ini_lines(const std::string& path);

}  // namespace strata::config
