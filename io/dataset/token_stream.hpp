#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dataset/dataset_read.hpp"

namespace strata::io {

/// As Dataset::read_tokens.
void read_tokens(const DatasetInfo& info, std::span<const MappedShard> shards, std::int64_t first,
                 std::span<std::int64_t> tokens);

/// The token between documents.
struct DocumentSeparator {
  std::int64_t id = -1;  ///< negative: none
  bool begins = false;   ///< whether it is the first of a document, not the last
};
[[nodiscard]] DocumentSeparator separator_of(const Tokenizer& tokenizer);
[[nodiscard]] DocumentSeparator separator_of(const DatasetInfo& info);
/// The documents that the tokenizer's separator tells.
/// Throws: Error(kData) where it has none, or as read_tokens().
[[nodiscard]] Documents separated_documents(const DatasetInfo& info,
                                            std::span<const MappedShard> shards);

/// As Dataset::verify, for tokens.
[[nodiscard]] std::vector<ShardCheck> verify_tokens(const DatasetInfo& info,
                                                    std::span<const MappedShard> shards,
                                                    const SampleProgress& progress);

}  // namespace strata::io
