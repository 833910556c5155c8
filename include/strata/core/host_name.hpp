#pragma once

#include <string>

namespace strata {

/// The node's name; "?" where it is unknown.
[[nodiscard]] std::string host_name();

}  // namespace strata
