#include "token_writer.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "strata/core/error.hpp"

#include "dataset_format.hpp"
#include "hdf5_file.hpp"
#include "tokenizer_contents.hpp"

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
    : directory_(std::move(directory)),
      split_(std::move(split)),
      dtype_(dtype),
      tokens_(tokens),
      shard_tokens_(std::max<std::int64_t>(1, shard_bytes / (kBlock * size_bytes(dtype))) *
                    kBlock) {}

std::filesystem::path TokenSplitWriter::master_path() const {
  return directory_ / (split_ + ".h5");
}

void TokenSplitWriter::open_shard() {
  OpenShard shard;
  shard.tokens = std::min(shard_tokens_, tokens_left());
  const std::string name = fmt::format("{}-{:05}.h5", split_, shards_.size());
  const PendingFile& pending = files_.emplace_back(directory_ / name);
  {
    hdf5::File file = hdf5::File::create(pending.temporary(), ExitCode::kData);
    file.set_text(names::kFormat, names::kShardFormat);
    file.set_int64(names::kVersion, names::kVersionWritten);
    file.set_int64(names::kBlockTokens, kBlock);
    const auto make = [&](const char* dataset, const hdf5::ElementType& type, const Shape& shape) {
      return file.create_dataset(dataset, type, shape).file_offset();
    };
    shard.tokens_offset = make(names::kTokens, hdf5::element_type(dtype_), Shape{shard.tokens});
    shard.checksums_offset =
        make(names::kChecksums, hdf5::uint64_type(), Shape{names::blocks_of(shard.tokens)});
    shard.checksum_offset = make(names::kChecksum, hdf5::uint64_type(), Shape{});
    file.finish();
  }
  // HDF5 has laid the file out; what goes into the data sets is written past it, so that a full
  // disk is an ordinary error and not one inside HDF5's cache.
  shard.file = PosixFile(pending.temporary());
  shards_.push_back({name, shard.tokens, 0, 0});
  shard_ = std::move(shard);
}

void TokenSplitWriter::write_block() {
  const std::int64_t id_bytes = size_bytes(dtype_);
  const std::uint64_t checksum = hash_of(std::span<const std::byte>(block_));
  const auto checksum_bytes = std::as_bytes(std::span(&checksum, 1));
  OpenShard& shard = *shard_;
  shard.hash.update(checksum_bytes);
  shard.file.write_at(shard.tokens_offset + shard.written * id_bytes, block_);
  shard.file.write_at(shard.checksums_offset + shard.written / kBlock * std::ssize(checksum_bytes),
                      checksum_bytes);
  shard.written += std::ssize(block_) / id_bytes;
  block_.clear();
  if (shard.written == shard.tokens) {
    shards_.back().checksum = shard.hash.digest();
    shard.file.write_at(shard.checksum_offset,
                        std::as_bytes(std::span(&shards_.back().checksum, 1)));
    shard.file.finish();
    shard_.reset();
  }
}

void TokenSplitWriter::append(std::span<const std::uint32_t> ids) {
  const auto id_bytes = static_cast<std::size_t>(size_bytes(dtype_));
  require(std::ssize(ids) <= tokens_left(), "{} tokens for a split with {} to come", ids.size(),
          tokens_left());
  while (!ids.empty()) {
    if (!shard_) {
      open_shard();
    }
    const std::int64_t gathered = std::ssize(block_) / static_cast<std::int64_t>(id_bytes);
    const std::int64_t block = std::min(kBlock, shard_->tokens - shard_->written);
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
  info.shards = shards_;
  master_.emplace(master_path());
  hdf5::File file = hdf5::File::create(master_->temporary(), ExitCode::kData);
  file.set_text(names::kFormat, names::kMasterFormat);
  file.set_int64(names::kVersion, names::kVersionWritten);
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
  show_tokens(file, dtype_, shards_);
  write_shard_list(file, shards_);
  file.set_uint64(names::kChecksum, facts_checksum(info));
  file.finish();
}

void TokenSplitWriter::publish_shards() {
  for (PendingFile& file : files_) {
    file.publish();
  }
}

void TokenSplitWriter::publish_master() {
  master_->publish();
}

}  // namespace strata::io
