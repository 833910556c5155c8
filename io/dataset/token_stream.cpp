#include "dataset/token_stream.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"

#include "dataset/dataset_format.hpp"
#include "dataset/dataset_read.hpp"

namespace strata::io {
namespace {

namespace names = dataset_format;

constexpr std::int64_t kBlock = names::kBlockTokensWritten;

// Largest of the ids; they lie as the file has them, not necessarily aligned.
template <typename Id>
std::int64_t widen(const std::byte* stored, std::span<std::int64_t> tokens) {
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    Id id = 0;
    std::memcpy(&id, stored + i * sizeof id, sizeof id);
    tokens[i] = id;
    largest = std::max(largest, tokens[i]);
  }
  return largest;
}

std::int64_t widen(DType dtype, const std::byte* stored, std::span<std::int64_t> tokens) {
  return dtype == DType::kUint16 ? widen<std::uint16_t>(stored, tokens)
                                 : widen<std::uint32_t>(stored, tokens);
}

}  // namespace

std::span<const std::byte> TokenStream::Shard::block(std::int64_t local,
                                                     std::int64_t id_bytes) const {
  const std::int64_t first = local * kBlock;
  return {ids + first * id_bytes,
          static_cast<std::size_t>(std::min(kBlock, tokens - first) * id_bytes)};
}

std::uint64_t TokenStream::Shard::checksum(std::int64_t local) const {
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, checksums + local * std::int64_t{sizeof checksum}, sizeof checksum);
  return checksum;
}

TokenStream::TokenStream(DatasetInfo& info) {
  std::int64_t first_token = 0;
  for (ShardInfo& entry : info.shards) {
    if (first_token % kBlock != 0) {
      fail(ExitCode::kData,
           "{} contradicts itself: {} begins within a block of tokens; import it "
           "anew",
           info.path.string(), entry.file);
    }
    const hdf5::File file = open_shard_file(info, entry);
    Shard shard{MappedFile(file.origin().path), first_token, entry.samples};
    entry.file_bytes = static_cast<std::int64_t>(shard.file.bytes().size());
    shard.ids = mapped_dataset(file, shard.file, names::kTokens, Shape{entry.samples},
                               hdf5::element_type(info.input_dtype));
    shard.checksums = mapped_dataset(file, shard.file, names::kChecksums,
                                     Shape{names::blocks_of(entry.samples)}, hdf5::uint64_type());
    check_shard_checksum(file, info, entry);
    shards_.push_back(std::move(shard));
    first_token += entry.samples;
  }
}

const TokenStream::Shard& TokenStream::shard_of(std::int64_t token) const {
  return *std::prev(std::upper_bound(
      shards_.begin(), shards_.end(), token,
      [](std::int64_t value, const Shard& shard) { return value < shard.first_token; }));
}

void TokenStream::read(const DatasetInfo& info, std::int64_t first,
                       std::span<std::int64_t> tokens) const {
  const std::int64_t id_bytes = size_bytes(info.input_dtype);
  require(first >= 0 && first + std::ssize(tokens) <= info.tokens, "the tokens {} to {} of {}",
          first, first + std::ssize(tokens), info.tokens);
  while (!tokens.empty()) {
    const Shard& shard = shard_of(first);
    const std::int64_t local = (first - shard.first_token) / kBlock;
    const std::int64_t begin = (first - shard.first_token) % kBlock;
    const auto block = shard.block(local, id_bytes);
    const std::int64_t block_tokens = std::ssize(block) / id_bytes;
    const auto place = [&] {
      const std::int64_t from = first - begin;
      const auto index = static_cast<std::size_t>(&shard - shards_.data());
      return fmt::format("block {} of {} (the tokens {} to {})", local,
                         (info.path.parent_path() / info.shards[index].file).string(), from,
                         from + block_tokens - 1);
    };
    if (hash_of(block) != shard.checksum(local)) {
      fail(ExitCode::kData,
           "{} does not match its checksum: the file is damaged; restore it or "
           "import anew",
           place());
    }
    const auto count = static_cast<std::size_t>(std::min(std::ssize(tokens), block_tokens - begin));
    const std::int64_t largest =
        widen(info.input_dtype, block.data() + begin * id_bytes, tokens.first(count));
    if (largest >= info.classes) {
      fail(ExitCode::kData, "{} holds the token {}, the vocabulary ends at {}; import it anew",
           place(), largest, info.classes - 1);
    }
    tokens = tokens.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
}

std::vector<ShardCheck> TokenStream::verify(const DatasetInfo& info,
                                            const SampleProgress& progress) const {
  const std::int64_t id_bytes = size_bytes(info.input_dtype);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(kBlock));
  std::vector<ShardCheck> checks;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const Shard& shard = shards_[i];
    ShardCheck check;
    const std::int64_t blocks = names::blocks_of(shard.tokens);
    const std::span<const std::byte> checksums(
        shard.checksums, static_cast<std::size_t>(blocks) * sizeof(std::uint64_t));
    if (hash_of(checksums) != info.shards[i].checksum) {
      check.problem = "the list of checksums is damaged";
    }
    for (std::int64_t local = 0; local < blocks; ++local) {
      const auto block = shard.block(local, id_bytes);
      const std::int64_t count = std::ssize(block) / id_bytes;
      const std::int64_t largest = widen(info.input_dtype, block.data(),
                                         std::span(tokens).first(static_cast<std::size_t>(count)));
      const bool damaged = hash_of(block) != shard.checksum(local);
      if ((damaged || largest >= info.classes) && check.bad_samples++ == 0 &&
          check.problem.empty()) {
        check.problem = damaged ? fmt::format("block {} is damaged", local)
                                : fmt::format(
                                      "block {} holds the token {}, the vocabulary ends at "
                                      "{}",
                                      local, largest, info.classes - 1);
      }
      if (progress) {
        progress(shard.first_token + local * kBlock + count, info.tokens);
      }
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace strata::io
