#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/io/dataset.hpp"

namespace strata::io {

/// The place of each name in `all`, whose names differ; -1 for a name that is not there.
[[nodiscard]] std::vector<std::int64_t> places_of(std::span<const std::string> names,
                                                  std::span<const std::string> all);

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
