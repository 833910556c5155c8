#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dataset/dataset_read.hpp"

namespace strata::io {

/// As Dataset::read_tokens.
void read_tokens(const DatasetInfo& info, std::span<const MappedShard> shards, std::int64_t first,
                 std::span<std::int64_t> tokens);

/// As Dataset::verify, for tokens.
[[nodiscard]] std::vector<ShardCheck> verify_tokens(const DatasetInfo& info,
                                                    std::span<const MappedShard> shards,
                                                    const SampleProgress& progress);

}  // namespace strata::io
