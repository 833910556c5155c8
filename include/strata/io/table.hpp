#pragma once

#include <span>
#include <string>
#include <string_view>

#include "strata/io/dataset.hpp"

namespace strata::io {

/// Whether a field of a table says that a value is missing: it is empty, NA, N/A, nan, null or ?,
/// in letters of any case.
[[nodiscard]] bool is_missing(std::string_view field);

/// Writes the inputs of a field. Pre: `inputs` has column.inputs() elements.
/// Returns: what is wrong with the field, as in "is not a number"; empty where nothing is.
[[nodiscard]] std::string encode_field(const TableColumn& column, std::string_view field,
                                       std::span<float> inputs);

}  // namespace strata::io
