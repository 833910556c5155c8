#pragma once

#include <functional>
#include <string>
#include <vector>

#include "strata/plan/config.hpp"

namespace strata::app {

/// One setting: everything that parsing, --help, the resolved config and the reference page know of
/// it.
struct Option {
  std::string key;     ///< as in "batch.global"
  std::string values;  ///< what may be given, as in "whole number from 1" or "auto, cpu, cuda"
  std::string unit;    ///< empty: none
  std::string help;
  /// Throws: Error(kUsage) where the text is no such value or out of range.
  std::function<void(plan::RunConfig&, const std::string&)> set;
  std::function<std::string(const plan::RunConfig&)> get;
};

/// All settings but model.layer, in the order of the reference; sections are contiguous.
[[nodiscard]] const std::vector<Option>& option_table();

/// The setting that may be given several times: one layer per line.
inline constexpr const char* kLayerKey = "model.layer";
inline constexpr const char* kLayerHelp =
    "one layer per line, from input to output: \"KIND [VALUE] [key=value ...]\"";

/// The sections in the order of a config file, each with a sentence on what it is about.
struct Section {
  std::string name;
  std::string about;
};
[[nodiscard]] const std::vector<Section>& section_table();

}  // namespace strata::app
