#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strata/io/dataset.hpp"

#include "files/posix_file.hpp"

namespace strata::io {

/// The tokens of a data set, mapped into memory.
class TokenStream {
 public:
  /// Maps the shards and writes their sizes into `info`.
  /// Throws: Error(kData) where one is missing, not ours, or too short.
  explicit TokenStream(DatasetInfo& info);

  /// As Dataset::read_tokens.
  void read(const DatasetInfo& info, std::int64_t first, std::span<std::int64_t> tokens) const;
  /// As Dataset::verify.
  [[nodiscard]] std::vector<ShardCheck> verify(const DatasetInfo& info,
                                               const SampleProgress& progress) const;

 private:
  struct Shard {
    MappedFile file;
    std::int64_t first_token = 0;
    std::int64_t tokens = 0;
    const std::byte* ids = nullptr;
    const std::byte* checksums = nullptr;

    [[nodiscard]] std::span<const std::byte> block(std::int64_t local, std::int64_t id_bytes) const;
    [[nodiscard]] std::uint64_t checksum(std::int64_t local) const;
  };

  [[nodiscard]] const Shard& shard_of(std::int64_t token) const;

  std::vector<Shard> shards_;
};

}  // namespace strata::io
