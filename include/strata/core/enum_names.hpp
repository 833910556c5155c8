#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace strata {

/// The one table of an enum's names: parsing, printing, help and error text all come from it.
/// It stands below the enum, whose enumerators count from 0:
///   constexpr auto enum_names(Switch) { return names_in_order("off", "on"); }
template <typename... Names>
[[nodiscard]] constexpr auto names_in_order(Names... names) {
  return std::array<std::string_view, sizeof...(Names)>{names...};
}

/// Every enumerator with its name, in the order of the enum.
template <typename Enum>
[[nodiscard]] constexpr auto enum_table() {
  constexpr auto kNames = enum_names(Enum{});
  std::array<std::pair<Enum, std::string_view>, kNames.size()> table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i] = {static_cast<Enum>(i), kNames[i]};
  }
  return table;
}

/// The name of an enumerator.
template <typename Enum>
[[nodiscard]] constexpr std::string_view name_of(Enum value) {
  for (const auto& [enumerator, name] : enum_table<Enum>()) {
    if (enumerator == value) {
      return name;
    }
  }
  return "?";
}

/// The enumerator with this name, or nothing.
template <typename Enum>
[[nodiscard]] constexpr std::optional<Enum> enum_from_name(std::string_view text) {
  for (const auto& [enumerator, name] : enum_table<Enum>()) {
    if (name == text) {
      return enumerator;
    }
  }
  return std::nullopt;
}

}  // namespace strata
