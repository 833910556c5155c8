#pragma once

#include <functional>
#include <string>
#include <vector>

#include "strata/config/run_config.hpp"

namespace strata::config {

/// One setting, the single source for parsing, --help, the resolved config and the reference page.
struct Option {
  std::string key;     ///< as in "batch.global"
  std::string values;  ///< allowed values, as in "whole number from 1" or "auto, cpu, cuda"
  std::string unit;    ///< empty: none
  std::string help;
  /// Throws: Error(kUsage) for a text that is not an allowed value.
  std::function<void(RunConfig&, const std::string&)> set;
  std::function<std::string(const RunConfig&)> get;
};

/// All settings but model.layer, in the order of the reference, grouped by section.
[[nodiscard]] const std::vector<Option>& option_table();

/// The only setting that may be repeated: one layer per line.
inline constexpr const char* kLayerKey = "model.layer";
inline constexpr const char* kLayerHelp =
    "one layer per line, from input to output: \"KIND [VALUE] [key=value ...]\"";

/// A section of a config file with its description.
struct Section {
  std::string name;
  std::string about;
};
[[nodiscard]] const std::vector<Section>& section_table();

}  // namespace strata::config
