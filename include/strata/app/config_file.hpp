#pragma once

#include <span>
#include <string>

#include "strata/plan/config.hpp"

namespace strata::app {

/// The defaults, changed by a config file and then by settings of the command line
/// ("--section.key=value"). Throws: Error(kUsage) for a file that cannot be read, an unknown key
/// (with the nearest known one) or a value out of range.
[[nodiscard]] plan::RunConfig read_config(const std::string& path,
                                          std::span<const std::string> arguments);

/// A complete config file that reads back to the same config.
[[nodiscard]] std::string config_text(const plan::RunConfig& config);

/// Every key with its default, unit and meaning, for --help.
[[nodiscard]] std::string config_help();

/// The reference page docs/configuration.md.
[[nodiscard]] std::string config_reference();

}  // namespace strata::app
