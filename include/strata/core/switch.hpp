#pragma once

#include "strata/core/enum_names.hpp"

namespace strata {

/// A setting that is off or on.
enum class Switch { kOff, kOn };

constexpr auto enum_names(Switch) {
  return names_in_order("off", "on");
}

}  // namespace strata
