#include "dataset/token_stream.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"

#include "dataset/dataset_format.hpp"

namespace strata::io {
namespace {

namespace names = dataset_format;

constexpr std::int64_t kBlock = names::kBlockTokensWritten;

// Widens stored ids and returns the largest.
template <typename Id>
std::int64_t widen(const std::byte* stored, std::span<std::int64_t> tokens) {
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = load<Id>(stored + i * sizeof(Id));
    largest = std::max(largest, tokens[i]);
  }
  return largest;
}

std::int64_t widen(DType dtype, const std::byte* stored, std::span<std::int64_t> tokens) {
  return dtype == DType::kUint16 ? widen<std::uint16_t>(stored, tokens)
                                 : widen<std::uint32_t>(stored, tokens);
}

// The ids of block `index` of a shard.
std::span<const std::byte> block_of(const MappedShard& shard, std::int64_t index,
                                    std::int64_t id_bytes) {
  const std::int64_t first = index * kBlock;
  return {shard.inputs + first * id_bytes,
          static_cast<std::size_t>(std::min(kBlock, shard.count - first) * id_bytes)};
}

}  // namespace

void read_tokens(const DatasetInfo& info, std::span<const MappedShard> shards, std::int64_t first,
                 std::span<std::int64_t> tokens) {
  const std::int64_t id_bytes = size_bytes(info.input_dtype);
  require(first >= 0 && first + std::ssize(tokens) <= info.tokens, "the tokens {} to {} of {}",
          first, first + std::ssize(tokens), info.tokens);
  while (!tokens.empty()) {
    const MappedShard& shard = shard_with(shards, first);
    const std::int64_t index = (first - shard.first) / kBlock;
    const std::int64_t begin = (first - shard.first) % kBlock;
    const auto block = block_of(shard, index, id_bytes);
    const std::int64_t block_tokens = std::ssize(block) / id_bytes;
    const auto block_text = [&] {
      const std::int64_t from = first - begin;
      const ShardInfo& entry = info.shards[static_cast<std::size_t>(&shard - shards.data())];
      return fmt::format("block {} of {} (the tokens {} to {})", index,
                         (info.path.parent_path() / entry.file).string(), from,
                         from + block_tokens - 1);
    };
    if (hash_of(block) != shard.checksum(index)) {
      fail(ExitCode::kData,
           "{} does not match its checksum: the file is damaged; restore it or import it anew",
           block_text());
    }
    const auto count = static_cast<std::size_t>(std::min(std::ssize(tokens), block_tokens - begin));
    const std::int64_t largest =
        widen(info.input_dtype, block.data() + begin * id_bytes, tokens.first(count));
    if (largest >= info.classes) {
      fail(ExitCode::kData, "{} holds the token {}, the vocabulary ends at {}; import it anew",
           block_text(), largest, info.classes - 1);
    }
    tokens = tokens.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
}

DocumentSeparator separator_of(const Tokenizer& tokenizer) {
  const std::int64_t id = tokenizer.separator();
  const std::vector<std::uint32_t>& before = tokenizer.frame().before;
  return {id, std::ranges::find(before, id) != before.end()};
}

DocumentSeparator separator_of(const DatasetInfo& info) {
  return info.tokenizer == TokenizerKind::kNone ? DocumentSeparator()
                                                : separator_of(Tokenizer::of(info));
}

Documents separated_documents(const DatasetInfo& info, std::span<const MappedShard> shards) {
  const auto [separator, begins] = separator_of(info);
  if (separator < 0) {
    fail(ExitCode::kData,
         "{} does not say where its documents end: it was made from one text or by an earlier "
         "version, and its tokenizer has no token between documents; import it anew, with a file "
         "or, by --text-field, a line for each document",
         info.path.string());
  }
  Documents documents;
  std::vector<std::int64_t> tokens;
  for (std::int64_t first = 0; first < info.tokens; first += kBlock) {
    tokens.resize(static_cast<std::size_t>(std::min(kBlock, info.tokens - first)));
    read_tokens(info, shards, first, tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int64_t end = first + static_cast<std::int64_t>(i) + (begins ? 0 : 1);
      if (tokens[i] == separator && end > 0 && end < info.tokens) {
        documents.ends.push_back(end);
      }
    }
  }
  documents.ends.push_back(info.tokens);
  return documents;
}

std::vector<ShardCheck> verify_tokens(const DatasetInfo& info, std::span<const MappedShard> shards,
                                      const SampleProgress& progress) {
  const std::int64_t id_bytes = size_bytes(info.input_dtype);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(kBlock));
  std::vector<ShardCheck> checks;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const MappedShard& shard = shards[i];
    const auto problem_of = [&](std::int64_t index) -> std::string {
      const auto block = block_of(shard, index, id_bytes);
      const std::int64_t count = std::ssize(block) / id_bytes;
      const std::int64_t largest = widen(info.input_dtype, block.data(),
                                         std::span(tokens).first(static_cast<std::size_t>(count)));
      if (progress) {
        progress(shard.first + index * kBlock + count, info.tokens);
      }
      if (hash_of(block) != shard.checksum(index)) {
        return fmt::format("block {} is damaged", index);
      }
      return largest < info.classes
                 ? ""
                 : fmt::format("block {} holds the token {}, the vocabulary ends at {}", index,
                               largest, info.classes - 1);
    };
    checks.push_back(
        check_shard(shard, info.shards[i].checksum, names::blocks_of(shard.count), problem_of));
  }
  return checks;
}

}  // namespace strata::io
