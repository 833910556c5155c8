#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace strata {

/// The one table of an enum's names: parsing, printing, help and error text all come from it.
/// Specialise with `static constexpr std::array<std::pair<Enum, std::string_view>, N> kTable`.
template <typename Enum>
struct EnumNames;

/// The name of an enumerator.
template <typename Enum>
[[nodiscard]] constexpr std::string_view name_of(Enum value) {
  for (const auto& [enumerator, name] : EnumNames<Enum>::kTable) {
    if (enumerator == value) {
      return name;
    }
  }
  return "?";
}

/// The enumerator with this name, or nothing.
template <typename Enum>
[[nodiscard]] constexpr std::optional<Enum> enum_from_name(std::string_view text) {
  for (const auto& [enumerator, name] : EnumNames<Enum>::kTable) {
    if (name == text) {
      return enumerator;
    }
  }
  return std::nullopt;
}

}  // namespace strata
