#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "strata/config/options.hpp"
#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

// Builders for the entries of the option table, one per kind of setting.
namespace strata::config {

[[noreturn]] inline void refuse(const std::string& key, const std::string& text,
                                const std::string& values) {
  fail(ExitCode::kUsage, "{} = \"{}\" is not allowed; give {}", key, text, values);
}

inline constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

/// A reference to one setting of the config.
template <typename T>
using Member = T& (*)(RunConfig&);

/// A whole number in [least, most].
template <typename Integer>
Option whole(const std::string& key, const std::string& unit, const std::string& help,
             std::int64_t least, Member<Integer> member, std::int64_t most = kLargest) {
  const std::string values = most == kLargest
                                 ? fmt::format("whole number from {}", least)
                                 : fmt::format("whole number from {} to {}", least, most);
  return {key,
          values,
          unit,
          help,
          [=](RunConfig& config, const std::string& text) {
            std::int64_t value = 0;
            if (!parse_int64(text, value) || value < least || value > most) {
              refuse(key, text, "a " + values);
            }
            member(config) = static_cast<Integer>(value);
          },
          [=](RunConfig config) { return fmt::format("{}", member(config)); }};
}

/// An option whose 0 may be written "auto".
inline Option or_auto(Option option) {
  option.values = "auto, or " + option.values;
  option.set = [set = std::move(option.set)](RunConfig& config, const std::string& text) {
    set(config, text == "auto" ? "0" : text);
  };
  return option;
}

/// A whole number from 0, or "auto" for none.
inline Option whole_or_auto(const std::string& key, const std::string& unit,
                            const std::string& help, Member<std::optional<std::int64_t>> member) {
  const std::string values = "auto, or whole number from 0";
  return {key,
          values,
          unit,
          help,
          [=](RunConfig& config, const std::string& text) {
            std::int64_t value = 0;
            if (text != "auto" && (!parse_int64(text, value) || value < 0)) {
              refuse(key, text, values);
            }
            member(config) = text == "auto" ? std::nullopt : std::optional(value);
          },
          [=](RunConfig config) {
            return member(config) ? fmt::format("{}", *member(config)) : "auto";
          }};
}

enum class Bound { kFromZero, kAboveZero, kFraction, kFactor, kBucket };

inline bool within(Bound bound, double value) {
  switch (bound) {
    case Bound::kFromZero:
      return value >= 0.0 && value <= std::numeric_limits<double>::max();
    case Bound::kAboveZero:
      return value > 0.0 && value <= std::numeric_limits<double>::max();
    case Bound::kFraction:
      return value >= 0.0 && value < 1.0;
    case Bound::kFactor:
      return value > 0.0 && value <= 1.0;
    case Bound::kBucket:
      return value >= 0.0 && value <= 1024.0;
  }
  return false;
}

inline std::string text_of(Bound bound) {
  switch (bound) {
    case Bound::kFromZero:
      return "number from 0";
    case Bound::kAboveZero:
      return "number above 0";
    case Bound::kFraction:
      return "number from 0 to below 1";
    case Bound::kFactor:
      return "number above 0 up to 1";
    case Bound::kBucket:
      return "number from 0 to 1024";
  }
  return {};
}

inline Option number(const std::string& key, const std::string& unit, const std::string& help,
                     Bound bound, Member<double> member) {
  const std::string values = text_of(bound);
  return {key,
          values,
          unit,
          help,
          [=](RunConfig& config, const std::string& text) {
            double value = 0.0;
            if (!parse_double(text, value) || !within(bound, value)) {
              refuse(key, text, "a " + values);
            }
            member(config) = value;
          },
          [=](RunConfig config) { return fmt::format("{}", member(config)); }};
}

template <typename Enum>
Option choice(const std::string& key, const std::string& help, Member<Enum> member) {
  const std::string values = joined_names<Enum>();
  return {key,
          values,
          {},
          help,
          [=](RunConfig& config, const std::string& text) {
            const auto value = enum_from_name<Enum>(text);
            if (!value) {
              refuse(key, text, "one of " + values);
            }
            member(config) = *value;
          },
          [=](RunConfig config) { return std::string(name_of(member(config))); },
          split_words(values, ", ")};
}

/// The same with "auto", for none.
template <typename Enum>
Option choice(const std::string& key, const std::string& help, Member<std::optional<Enum>> member) {
  const std::string values = "auto, " + joined_names<Enum>();
  return {key,
          values,
          {},
          help,
          [=](RunConfig& config, const std::string& text) {
            const auto value = enum_from_name<Enum>(text);
            if (!value && text != "auto") {
              refuse(key, text, "one of " + values);
            }
            member(config) = value;
          },
          [=](RunConfig config) {
            return std::string(member(config) ? name_of(*member(config)) : "auto");
          },
          split_words(values, ", ")};
}

enum class Empty { kAllowed, kRefused };

inline Option text(const std::string& key, const std::string& values, const std::string& help,
                   Member<std::string> member, Empty empty = Empty::kAllowed) {
  return {key,
          values,
          {},
          help,
          [=](RunConfig& config, const std::string& value) {
            if (value.empty() && empty == Empty::kRefused) {
              refuse(key, value, "a " + values);
            }
            if (value.find('\0') != std::string::npos) {
              refuse(key, value, "a text without a NUL byte");
            }
            member(config) = value;
          },
          [=](RunConfig config) { return member(config); }};
}

}  // namespace strata::config
