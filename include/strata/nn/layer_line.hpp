#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/core/error.hpp"
#include "strata/core/familiar_names.hpp"
#include "strata/core/text.hpp"
#include "strata/ops/activation.hpp"

namespace strata::nn {

/// A parsed `layer =` line: a kind, positional values, and key=value options. Layers take what they
/// know; finish() rejects the rest.
class LayerLine {
 public:
  /// Throws: Error(kUsage) for an empty line.
  explicit LayerLine(std::string line);

  [[nodiscard]] const std::string& kind() const { return kind_; }
  [[nodiscard]] const std::string& text() const { return line_; }

  /// The next positional value; empty where there is none.
  [[nodiscard]] std::string take_value();
  /// The option's value, or `otherwise`.
  [[nodiscard]] std::string take_option(const std::string& key, const std::string& otherwise);
  [[nodiscard]] std::int64_t take_count(std::string_view what);
  /// The activation at the end of a layer: relu if that is the next value, else none.
  [[nodiscard]] ops::Activation take_relu();
  /// At least 0 and below 1.
  [[nodiscard]] double take_probability(std::string_view what);
  /// Height and width, as in "3x5", or "3" for both.
  [[nodiscard]] std::array<std::int64_t, 2> take_window(std::string_view what);

  /// Whether the line has the option.
  [[nodiscard]] bool has_option(const std::string& key) const { return options_.contains(key); }
  /// A finite number.
  [[nodiscard]] double take_option_number(const std::string& key, double otherwise);
  [[nodiscard]] double take_option_probability(const std::string& key, double otherwise);
  /// Height and width, as take_window().
  [[nodiscard]] std::array<std::int64_t, 2> take_option_window(
      const std::string& key, std::array<std::int64_t, 2> otherwise);
  /// A whole number from `least` on.
  [[nodiscard]] std::int64_t take_option_count(const std::string& key, std::int64_t otherwise,
                                               std::int64_t least = 1);
  /// A whole number from 1 on, or 0 for "none".
  [[nodiscard]] std::int64_t take_option_count_or_none(const std::string& key,
                                                       std::int64_t otherwise);

  template <typename Enum>
  [[nodiscard]] Enum take_enum(const std::string& key, Enum otherwise) {
    const std::string text = take_option(key, std::string(name_of(otherwise)));
    const auto value =
        enum_from_name<Enum>(value_meant_by(text, split_words(joined_names<Enum>(), ",")));
    if (!value) {
      refuse(fmt::format("{} is one of {}, not \"{}\"", key, joined_names<Enum>(), text));
    }
    return *value;
  }

  /// Throws: Error(kUsage) for values or options that no layer took.
  void finish() const;
  /// Throws: Error(kUsage) with the line and the reason.
  [[noreturn]] void refuse(std::string_view why) const;

 private:
  [[nodiscard]] std::optional<std::string> take_given(const std::string& key);
  void check_probability(std::string_view what, double probability) const;

  std::string line_;
  std::string kind_;
  std::vector<std::string> values_;
  std::size_t next_value_ = 0;
  std::map<std::string, std::string> options_;
  std::vector<std::string> known_options_;
};

/// A line without what only training reads, dropout and initial deviations, without the
/// vocabulary, which the shape of the weights shows, and without adapters.
[[nodiscard]] std::string line_of_weights(const std::string& line);

}  // namespace strata::nn
