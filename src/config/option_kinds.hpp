#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "strata/config/options.hpp"
#include "strata/core/error.hpp"
#include "strata/core/familiar_names.hpp"
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

/// A setting of any type: `parse` makes a value of a text, or nothing where the text is not
/// `allowed`; `print` makes the text of a value.
template <typename T, typename Parse, typename Print>
Option setting(const std::string& key, const std::string& values, const std::string& unit,
               const std::string& help, Member<T> member, const std::string& allowed,
               const Parse& parse, const Print& print) {
  return {key,
          values,
          unit,
          help,
          [=](RunConfig& config, const std::string& text) {
            std::optional<T> value = parse(text);
            if (!value) {
              refuse(key, text, allowed);
            }
            member(config) = *std::move(value);
          },
          [=](RunConfig config) { return fmt::format("{}", print(member(config))); }};
}

/// For numbers, which print as they are.
inline constexpr auto kAsItIs = [](const auto& value) { return value; };

/// A whole number in [least, most].
template <typename Integer>
Option whole(const std::string& key, const std::string& unit, const std::string& help,
             std::int64_t least, Member<Integer> member, std::int64_t most = kLargest) {
  const std::string values = most == kLargest
                                 ? fmt::format("whole number from {}", least)
                                 : fmt::format("whole number from {} to {}", least, most);
  const auto parse = [=](const std::string& text) {
    std::int64_t value = 0;
    return parse_int64(text, value) && value >= least && value <= most
               ? std::optional(static_cast<Integer>(value))
               : std::nullopt;
  };
  return setting(key, values, unit, help, member, "a " + values, parse, kAsItIs);
}

/// An option whose 0 may be written "auto".
inline Option or_auto(Option option) {
  option.values = "auto, or " + option.values;
  option.set = [set = std::move(option.set)](RunConfig& config, const std::string& text) {
    set(config, text == "auto" ? "0" : text);
  };
  return option;
}

/// An option that "auto" leaves open (kOpen).
template <typename T>
Option or_open(Option option, Member<T> member) {
  option.values = "auto, or " + option.values;
  option.set = [set = std::move(option.set), member](RunConfig& config, const std::string& text) {
    if (text == "auto") {
      member(config) = kOpen;
    } else {
      set(config, text);
    }
  };
  option.get = [get = std::move(option.get), member](RunConfig config) {
    return member(config) == kOpen ? "auto" : get(config);
  };
  return option;
}

/// The values of a number, and whether one is among them.
struct Bound {
  const char* values;
  bool (*holds)(double);
};
inline constexpr double kMost = std::numeric_limits<double>::max();
inline constexpr Bound kFromZero{"number from 0", [](double x) { return x >= 0.0 && x <= kMost; }};
inline constexpr Bound kAboveZero{"number above 0", [](double x) { return x > 0.0 && x <= kMost; }};
inline constexpr Bound kFraction{"number from 0 to below 1",
                                 [](double x) { return x >= 0.0 && x < 1.0; }};
inline constexpr Bound kFactor{"number above 0 up to 1",
                               [](double x) { return x > 0.0 && x <= 1.0; }};
inline constexpr Bound kBucket{"number from 0 to 1024",
                               [](double x) { return x >= 0.0 && x <= 1024.0; }};

inline Option number(const std::string& key, const std::string& unit, const std::string& help,
                     const Bound& bound, Member<double> member) {
  const auto parse = [=](const std::string& text) {
    double value = 0.0;
    return parse_double(text, value) && bound.holds(value) ? std::optional(value) : std::nullopt;
  };
  return setting(key, bound.values, unit, help, member, fmt::format("a {}", bound.values), parse,
                 kAsItIs);
}

/// One of the names that `option.values` lists, or another name that means it.
inline Option of_names(Option option) {
  option.words = split_words(option.values, ",");
  option.set = [set = std::move(option.set), words = option.words](RunConfig& config,
                                                                   const std::string& text) {
    set(config, value_meant_by(text, words));
  };
  return option;
}

template <typename Enum>
Option choice(const std::string& key, const std::string& help, Member<Enum> member) {
  const std::string values = joined_names<Enum>();
  return of_names(setting(key, values, {}, help, member, "one of " + values, enum_from_name<Enum>,
                          name_of<Enum>));
}

/// The same with "auto", for none.
template <typename Enum>
Option choice(const std::string& key, const std::string& help, Member<std::optional<Enum>> member) {
  const std::string values = "auto, " + joined_names<Enum>();
  const auto parse = [](const std::string& text) {
    const auto value = enum_from_name<Enum>(text);
    return value || text == "auto" ? std::optional<std::optional<Enum>>(value) : std::nullopt;
  };
  return of_names(setting(key, values, {}, help, member, "one of " + values, parse,
                          [](const auto& value) { return value ? name_of(*value) : "auto"; }));
}

inline Option text(const std::string& key, const std::string& values, const std::string& help,
                   Member<std::string> member) {
  return {key,
          values,
          {},
          help,
          [=](RunConfig& config, const std::string& value) {
            if (value.find('\0') != std::string::npos) {
              refuse(key, value, "a text without a NUL byte");
            }
            member(config) = value;
          },
          [=](RunConfig config) { return member(config); }};
}

}  // namespace strata::config
