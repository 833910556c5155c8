#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strata/core/ini_lines.hpp"

namespace strata::train {

/// The settings of a config.ini. Lines of the same key, as layers, become one.
[[nodiscard]] std::vector<IniLine> settings_in(std::string_view text);

/// The settings that differ between two texts of config.ini, as "optimizer.learning_rate: 0.1 ->
/// 0.05". Lists only settings that both texts have, in the order of `now`; run.dir and run.resume
/// are left out, which differ as soon as a run continues.
[[nodiscard]] std::vector<std::string> config_changes(std::string_view before,
                                                      std::string_view now);

/// Those of them that change the numbers of a run, and that parts of a run may have each for
/// itself.
[[nodiscard]] std::vector<std::string> training_changes(std::string_view before,
                                                        std::string_view now);

}  // namespace strata::train
