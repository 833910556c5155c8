#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/core/error.hpp"

namespace strata::config {

using Arguments = std::span<const std::string>;

[[noreturn]] inline void refuse_value(std::string_view name, const std::string& value,
                                      std::string_view expected) {
  fail(ExitCode::kUsage, "--{} is \"{}\"; give {}", name, value, expected);
}

/// The arguments of a command that has options of its own beside the config's settings.
struct SplitArguments {
  std::vector<std::string> options;
  std::vector<std::string> settings;  ///< their names have a dot
};
[[nodiscard]] SplitArguments split_settings(Arguments arguments);

/// Arguments split into positions and "--name=value" or "--name value" pairs.
class CommandLine {
 public:
  /// How many values a name takes. kList: further words without a name belong to the name before
  /// them. kOne: further words are positions, and the last of repeated values counts.
  enum class Values { kOne, kList };

  /// `switches` are names without a value. Throws: Error(kUsage) for an unknown name (with the
  /// nearest known one), a missing value, and a switch with a value.
  CommandLine(Arguments arguments, const std::vector<std::string>& names,
              const std::vector<std::string>& switches, Values each = Values::kList);

  [[nodiscard]] const std::vector<std::string>& positions() const { return positions_; }
  [[nodiscard]] bool has(std::string_view name) const;
  /// All values of a name, in order.
  [[nodiscard]] std::vector<std::string> values(std::string_view name) const;
  /// The only value of a name, or `otherwise`. Throws: Error(kUsage) where there are several.
  [[nodiscard]] std::string value(std::string_view name, const std::string& otherwise) const;
  /// A name's value as a whole number in [least, most], or `otherwise`. Throws: Error(kUsage).
  [[nodiscard]] std::int64_t count(std::string_view name, std::int64_t otherwise,
                                   std::int64_t least, std::int64_t most) const;

 private:
  std::vector<std::string> positions_;
  std::vector<std::pair<std::string, std::string>> pairs_;
};

}  // namespace strata::config
