#include "import/token_writer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"

#include "dataset/dataset_format.hpp"
#include "tokenizer/tokenizer_contents.hpp"

namespace strata::io {
namespace {

namespace names = dataset_format;

constexpr std::int64_t kBlock = names::kBlockTokensWritten;

// As show_whole, for data sets of one dimension.
void show_tokens(hdf5::File& file, DType dtype, const std::vector<ShardInfo>& shards) {
  show_whole(file, names::kTokens, hdf5::element_type(dtype), Shape{}, shards);
  std::vector<ShardInfo> blocks = shards;
  for (ShardInfo& shard : blocks) {
    shard.samples = names::blocks_of(shard.samples);
  }
  show_whole(file, names::kChecksums, hdf5::uint64_type(), Shape{}, blocks);
}

}  // namespace

DType token_dtype(std::int64_t vocabulary) {
  constexpr std::int64_t kShort = std::int64_t{1} << 16;
  return vocabulary <= kShort ? DType::kUint16 : DType::kUint32;
}

TokenSplitWriter::TokenSplitWriter(std::filesystem::path directory, std::string split, DType dtype,
                                   std::int64_t tokens, std::int64_t shard_bytes)
    : files_(std::move(directory), std::move(split)),
      dtype_(dtype),
      tokens_(tokens),
      shard_tokens_(std::max<std::int64_t>(1, shard_bytes / (kBlock * size_bytes(dtype))) *
                    kBlock) {}

void TokenSplitWriter::open_shard() {
  const std::int64_t tokens = std::min(shard_tokens_, tokens_left());
  files_.open_shard(tokens, Shape{names::blocks_of(tokens)}, [&](hdf5::File& file) {
    file.set_int64(names::kBlockTokens, kBlock);
    tokens_offset_ = file.create_dataset(names::kTokens, hdf5::element_type(dtype_), Shape{tokens})
                         .file_offset();
  });
}

void TokenSplitWriter::write_block() {
  const std::int64_t id_bytes = size_bytes(dtype_);
  const std::uint64_t checksum = hash_of(std::span<const std::byte>(block_));
  files_.write_at(tokens_offset_ + files_.shard_written() * id_bytes, block_);
  files_.add_written(std::ssize(block_) / id_bytes, std::span(&checksum, 1));
  block_.clear();
}

void TokenSplitWriter::append(std::span<const std::uint32_t> ids) {
  const auto id_bytes = static_cast<std::size_t>(size_bytes(dtype_));
  require(std::ssize(ids) <= tokens_left(), "{} tokens for a split with {} to come", ids.size(),
          tokens_left());
  while (!ids.empty()) {
    if (!files_.shard_is_open()) {
      open_shard();
    }
    const std::int64_t gathered = std::ssize(block_) / static_cast<std::int64_t>(id_bytes);
    const std::int64_t block = std::min(kBlock, files_.shard_left());
    const auto count = static_cast<std::size_t>(std::min(std::ssize(ids), block - gathered));
    const std::size_t at = block_.size();
    block_.resize(at + count * id_bytes);
    for (std::size_t i = 0; i < count; ++i) {
      // Little-endian: an id's low bytes come first.
      std::memcpy(block_.data() + at + i * id_bytes, &ids[i], id_bytes);
    }
    ids = ids.subspan(count);
    written_ += static_cast<std::int64_t>(count);
    if (gathered + static_cast<std::int64_t>(count) == block) {
      write_block();
    }
  }
}

void TokenSplitWriter::finish(const TokenFacts& facts) {
  require(tokens_left() == 0, "{} tokens of a split were never given", tokens_left());
  DatasetInfo info;
  info.task = Task::kNextToken;
  info.tokens = tokens_;
  info.input_dtype = dtype_;
  info.classes = facts.vocabulary;
  info.tokenizer = facts.tokenizer != nullptr ? facts.tokenizer->kind() : TokenizerKind::kNone;
  info.tokenizer_checksum = facts.tokenizer != nullptr ? tokenizer_checksum(*facts.tokenizer) : 0;
  hdf5::File file = files_.begin_master();
  file.set_int64(names::kTokens, tokens_);
  file.set_text(names::kSource, facts.source);
  file.set_text(names::kTask, name_of(info.task));
  file.set_int64(names::kVocabulary, facts.vocabulary);
  file.set_int64(names::kBlockTokens, kBlock);
  file.set_text(names::kTokenizer, name_of(info.tokenizer));
  file.set_uint64(names::kTokenizerChecksum, info.tokenizer_checksum);
  if (facts.tokenizer != nullptr) {
    write_tokenizer(file, *facts.tokenizer);
  }
  show_tokens(file, dtype_, files_.shards());
  files_.finish_master(file, std::move(info));
}

}  // namespace strata::io
