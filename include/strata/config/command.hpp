#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "strata/comm/mpi.hpp"
#include "strata/config/config_file.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/core/error.hpp"

namespace strata::config {

using Arguments = std::span<const std::string>;

/// What an option means that is given several times.
enum class OptionRepeats { kLastCounts, kAllCount };

/// An option of a command.
struct CommandOption {
  std::string name;
  /// What stands for its value, as in "N", or words to choose from, as in "newest|best"; empty: a
  /// switch.
  std::string value;
  std::string help;
  OptionRepeats repeats = OptionRepeats::kLastCounts;

  /// The lower-case words to choose from; words in capitals stand for other values.
  [[nodiscard]] std::vector<std::string> words() const;
};

/// Words to choose from, as the value of an option.
template <typename Enum>
[[nodiscard]] std::string words_of() {
  return fmt::format("{}", fmt::join(enum_names(Enum{}), "|"));
}

/// Whether a command takes settings, as --section.key=value.
enum class TakesSettings { kNone, kTaken, kListed /* by its help */ };

/// How many values an option takes. kList: further words without a name belong to the option before
/// them. kOne: further words are positions, and the last of repeated values counts, or as
/// `Repeated` says.
enum class Values { kOne, kList };

/// Whether the ranks of a launch must have the same options.
enum class RankOptions { kSame, kAny };

/// How many positions a command takes.
enum class Positions { kAny, kNone, kOne, kSome };

/// Reports the failure of one rank and aborts the job. Returns where there is one rank only.
using FailureHandler = std::function<void(const std::exception&)>;

class CommandLine;

/// A row of the table of commands, from which dispatch, parsing, --help, manual pages and shell
/// completion come.
struct Command {
  std::string name;     ///< as in "data import"
  std::string purpose;  ///< a few words
  /// What follows the name, and what it is for where there are several.
  std::vector<HelpTerm> synopses;
  /// Paragraphs, with an empty line between. Help wraps all texts.
  std::string about;
  std::vector<CommandOption> options;
  std::vector<HelpList> lists;  ///< as of examples
  TakesSettings settings = TakesSettings::kNone;
  Positions positions = Positions::kAny;
  std::string needs;  ///< what the positions are, as in "one run"
  Values values = Values::kOne;
  /// Runs it in one process.
  std::function<ExitCode(const CommandLine&)> alone;
  /// Runs it on all ranks of a launch. Where it also runs alone: with the option `on_ranks_with`.
  std::function<ExitCode(const CommandLine&, comm::MpiSession&, const FailureHandler&)> on_ranks;
  std::string on_ranks_with;
  RankOptions rank_options = RankOptions::kSame;
  /// Called before MPI starts.
  std::function<void()> before_mpi;
};

/// A command's arguments: positions, settings, and options as "--name=value" or "--name value".
class CommandLine {
 public:
  /// Throws: Error(kUsage) for an unknown option (with the nearest known one), a missing value, a
  /// value that is none of the option's words, a switch with a value, and other positions than the
  /// command takes.
  CommandLine(const Command& command, Arguments arguments);

  /// The command's name, as in "data import".
  [[nodiscard]] const std::string& command() const { return command_; }
  [[nodiscard]] const std::vector<std::string>& arguments() const { return arguments_; }
  [[nodiscard]] const std::vector<std::string>& settings() const { return settings_; }
  [[nodiscard]] const std::vector<std::string>& positions() const { return positions_; }
  [[nodiscard]] bool has(std::string_view name) const;
  /// All values of an option, in order.
  [[nodiscard]] std::vector<std::string> values(std::string_view name) const;
  /// The only value of an option, or `otherwise`. Throws: Error(kUsage) where there are several.
  [[nodiscard]] std::string value(std::string_view name, const std::string& otherwise) const;
  /// An option's value as a whole number in [least, most], or `otherwise`. Throws: Error(kUsage).
  [[nodiscard]] std::int64_t count(std::string_view name, std::int64_t otherwise,
                                   std::int64_t least, std::int64_t most) const;
  /// An option's value as a number in [least, most], or `otherwise`. Throws: Error(kUsage).
  [[nodiscard]] double number(std::string_view name, double otherwise, double least,
                              double most) const;
  /// The value of an option that the command cannot do without. Throws: Error(kUsage) where it is
  /// missing or empty.
  [[nodiscard]] std::string required(std::string_view name) const;
  /// The enumerator that an option names; nothing where it is not given.
  template <typename Enum>
  [[nodiscard]] std::optional<Enum> choice(std::string_view name) const {
    return enum_from_name<Enum>(value(name, ""));
  }
  /// All options with their values, for comparison.
  [[nodiscard]] std::string options_text() const;
  /// Gives an option a value where it has none. Throws: Error(kUsage) as the constructor.
  void set_default(const std::string& name, const std::string& value);

 private:
  void add(const CommandOption& option, const std::string& value);

  std::string command_;
  std::vector<CommandOption> options_;
  std::vector<std::string> arguments_;
  std::vector<std::string> settings_;
  std::vector<std::string> positions_;
  std::vector<std::pair<std::string, std::string>> pairs_;
};

[[noreturn]] inline void refuse_value(std::string_view name, const std::string& value,
                                      std::string_view expected) {
  fail(ExitCode::kUsage, "--{} is \"{}\"; give {}", name, value, expected);
}

}  // namespace strata::config
