#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "strata/config/run_config.hpp"

namespace strata::config {

/// The most ranks of a job, and the most lanes and shards.
inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 16;

/// Another setting without which a setting has no effect.
struct Need {
  std::string setting;              ///< as in "schedule.kind"
  std::vector<std::string> values;  ///< of which it has one; empty: any but its default
  std::string because = {};         ///< what to add to "schedule.kind is constant" in a message
  std::string instead = {};         ///< advice other than "set schedule.kind to step"
};

/// One setting, the single source for parsing, --help, the resolved config and the reference page.
struct Option {
  std::string key;     ///< as in "batch.global"
  std::string values;  ///< allowed values, as in "whole number from 1" or "auto, cpu, cuda"
  std::string unit;    ///< empty: none
  std::string help;
  /// Throws: Error(kUsage) for a text that is not an allowed value.
  std::function<void(RunConfig&, const std::string&)> set;
  std::function<std::string(const RunConfig&)> get;
  std::vector<std::string> words = {};  ///< names among the values, for shell completion
  std::vector<Need> needs = {};
};

/// All settings but model.layer, in the order of the reference, grouped by section.
[[nodiscard]] const std::vector<Option>& option_table();

/// Whether a setting has another value than its default, and one that does something.
[[nodiscard]] bool is_set(const RunConfig& config, std::string_view key);

/// Rejects settings that are set but not `used`, with the reason and what to do instead.
void check_used(const RunConfig& config, std::initializer_list<std::string_view> keys, bool used,
                const std::string& because, const std::string& instead);

/// Rejects settings that are set without one that they need.
void check_needs(const RunConfig& config);

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
