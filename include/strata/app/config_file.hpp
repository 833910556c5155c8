#pragma once

#include <map>
#include <span>
#include <string>

#include "strata/plan/config.hpp"

namespace strata::app {

/// Who decided a setting that is not the default: the user, or the program from other settings,
/// data and launch.
enum class Origin { kGiven, kDerived };

struct GivenConfig {
  plan::RunConfig config;
  std::map<std::string, Origin> origins;  ///< by key; the others are defaults
};

/// The defaults, changed by a config file and then by settings of the command line
/// ("--section.key=value"), the last of which wins. train.steps of the command line replaces
/// train.epochs of the file, and the other way round. Throws: Error(kUsage) for a file that cannot
/// be read or gives a key twice, an unknown key (with the nearest known one) or a value out of
/// range.
[[nodiscard]] GivenConfig read_config(const std::string& path,
                                      std::span<const std::string> arguments);

/// A complete config file that reads back to the same config.
[[nodiscard]] std::string config_text(const plan::RunConfig& config);

/// The same with a comment behind each value that was not given, "default" or "derived", which
/// read_config() reads back to the same origins. `resolved`: the config with what the program
/// derived for good. `launch`: by key, what it derived for this launch alone, which stands in the
/// comment behind the value that was given.
[[nodiscard]] std::string resolved_config_text(const GivenConfig& given,
                                               const plan::RunConfig& resolved,
                                               const std::map<std::string, std::string>& launch);

/// Every key with its default, unit and meaning, for --help.
[[nodiscard]] std::string config_help();

/// The reference page docs/configuration.md.
[[nodiscard]] std::string config_reference();

}  // namespace strata::app
