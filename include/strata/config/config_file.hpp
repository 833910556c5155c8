#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/config/run_config.hpp"

namespace strata::config {

/// Origin of a setting that is not the default: given by the user, or derived from other settings,
/// the data or the launch.
enum class Origin { kGiven, kDerived };

struct GivenConfig {
  RunConfig config;
  std::map<std::string, Origin> origins;  ///< by key; settings without an entry are defaults
};

/// Reads a config file and the settings of the command line ("--section.key=value"), which override
/// the file; the last of repeated ones wins. train.steps on the command line replaces train.epochs
/// of the file, and the other way round. An empty run.dir becomes runs/ and the file's name. Where
/// checkpoint.init is set and no model is, the model is that of the run there, or of run.dir when
/// that is resumed. Throws: Error(kUsage) for an unreadable file, a repeated key in the file, an
/// unknown key (with the nearest known one) or a value out of range.
[[nodiscard]] GivenConfig read_config(const std::string& path,
                                      std::span<const std::string> arguments);

/// Settings by key, with their values.
using ChangedSettings = std::vector<std::pair<std::string, std::string>>;

/// The settings in which `to` differs from `from`, apart from layers, with their values in `to`.
[[nodiscard]] ChangedSettings changed_settings(const RunConfig& from, const RunConfig& to);

/// The text of a config file with other values of some settings; all else stays as it is.
[[nodiscard]] std::string with_settings(std::string_view text, const ChangedSettings& settings);

/// A complete config file that reads back to the same config.
[[nodiscard]] std::string config_text(const RunConfig& config);

/// How the config.ini of a run begins.
inline constexpr std::string_view kRunConfigHead = "# Every setting of the run.";

/// As config_text(), under kRunConfigHead, with a comment "default" or "derived" after each value
/// that was not given; read_config() restores the origins from it. `resolved`: the config with
/// derived values. `launch`: by key, values derived for this launch only, written to the comment
/// after the given value.
[[nodiscard]] std::string resolved_config_text(const GivenConfig& given, const RunConfig& resolved,
                                               const std::map<std::string, std::string>& launch);

/// A term of a help text, and what it means.
struct HelpTerm {
  std::string term;
  std::string about;
};

struct HelpList {
  std::string title;
  std::vector<HelpTerm> terms;
};

/// What a help text tells of the settings: those that most runs set, in a line each, or all by
/// section, each with its values, unit, default and meaning.
enum class HelpDetail { kCommon, kAll };
[[nodiscard]] std::vector<HelpList> config_help(HelpDetail detail);

/// The reference page docs/configuration.md.
[[nodiscard]] std::string config_reference();

}  // namespace strata::config
