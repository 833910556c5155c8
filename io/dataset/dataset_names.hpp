#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/io/dataset.hpp"

namespace strata::io {

/// The columns of a file.
struct Columns {
  std::string file;
  std::span<const std::string> names;  ///< all different
};
/// The place of each column of `some` in `all`. Throws: Error(kData), which calls columns `what`
/// and ends in `advice`, naming one that `all` lacks.
[[nodiscard]] std::vector<std::int64_t> places_of(const Columns& some, const Columns& all,
                                                  std::string_view what, std::string_view advice);

/// The stored place of each input column of `model`; empty where one of them is no table.
/// Throws: Error(kData), which ends in `advice`, naming a column that only one of them has.
[[nodiscard]] std::vector<std::int64_t> matched_columns(const DatasetInfo& info,
                                                        const DatasetInfo& model,
                                                        std::string_view advice);

/// The class of `model` that has the name of each class of `info`, -1 for none; empty where names
/// are equal or not known, or where one of them has none and those of the other are no numbers.
[[nodiscard]] std::vector<std::int64_t> matched_classes(const DatasetInfo& info,
                                                        const DatasetInfo& model);

}  // namespace strata::io
