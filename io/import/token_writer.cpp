#include "import/token_writer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"

#include "dataset/dataset_format.hpp"
#include "dataset/dataset_read.hpp"
#include "tokenizer/tokenizer_contents.hpp"

namespace strata::io {
namespace {

namespace names = dataset_format;

constexpr std::int64_t kBlockLength = names::kBlockTokensWritten;

template <typename Function>
void with_token_type(DType dtype, const Function& function) {
  if (dtype == DType::kUint8) {
    function(std::uint8_t{});
  } else if (dtype == DType::kUint16) {
    function(std::uint16_t{});
  } else {
    function(std::uint32_t{});
  }
}

}  // namespace

DType token_dtype(std::int64_t vocabulary) {
  constexpr std::int64_t kShort = std::int64_t{1} << 16;
  return vocabulary <= kShort ? DType::kUint16 : DType::kUint32;
}

void append_stored(std::span<const std::uint32_t> ids, DType dtype, std::vector<std::byte>& bytes) {
  const std::size_t before = bytes.size();
  with_token_type(dtype, [&]<typename T>(T) {
    bytes.resize(before + ids.size() * sizeof(T));
    std::byte* const to = bytes.data() + before;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const T id = static_cast<T>(ids[i]);
      std::memcpy(to + i * sizeof id, &id, sizeof id);
    }
  });
}

void read_stored(std::span<const std::byte> bytes, DType dtype, std::vector<std::uint32_t>& ids) {
  with_token_type(dtype, [&]<typename T>(T) {
    ids.resize(bytes.size() / sizeof(T));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      T id{};
      std::memcpy(&id, bytes.data() + i * sizeof id, sizeof id);
      ids[i] = id;
    }
  });
}

TokenSplitWriter::TokenSplitWriter(std::filesystem::path directory, std::string split, DType dtype,
                                   std::int64_t tokens, std::int64_t shard_bytes,
                                   const ImportRanks& ranks)
    : SplitFiles(std::move(directory), std::move(split), tokens,
                 std::max<std::int64_t>(1, shard_bytes / (kBlockLength * size_bytes(dtype))) *
                     kBlockLength,
                 ranks),
      dtype_(dtype) {
  lay_out([&](hdf5::File& file, std::int64_t count, std::vector<std::int64_t>& offsets) {
    file.set_int64(names::kBlockTokens, kBlockLength);
    offsets.push_back(file.create_dataset(names::kTokens, hdf5::element_type(dtype_), Shape{count})
                          .file_offset());
    return Shape{names::blocks_of(count)};
  });
}

void TokenSplitWriter::write_block() {
  const std::uint64_t checksum = hash_of(std::span<const std::byte>(block_));
  const ShardPlace place = place_of(next_);
  const ShardOffsets& offsets = offsets_of(place);
  write_at(place, offsets.data[0] + place.local * size_bytes(dtype_), block_);
  write_at(place, offsets.checksums + place.local / kBlockLength * std::int64_t{sizeof checksum},
           std::as_bytes(std::span(&checksum, 1)));
  add_written(buffered());
  next_ += buffered();
  block_.clear();
}

void TokenSplitWriter::append(std::span<const std::uint32_t> ids) {
  require(std::ssize(ids) <= tokens_left(), "{} tokens for a split with {} to come", ids.size(),
          tokens_left());
  while (!ids.empty()) {
    const std::int64_t block = std::min(kBlockLength, place_of(next_).left);
    const auto count = static_cast<std::size_t>(std::min(std::ssize(ids), block - buffered()));
    append_stored(ids.first(count), dtype_, block_);
    ids = ids.subspan(count);
    if (buffered() == block) {
      write_block();
    }
  }
}

void TokenSplitWriter::finish(const TokenFacts& facts) {
  DatasetInfo info;
  info.task = Task::kNextToken;
  info.tokens = samples();
  info.input_dtype = dtype_;
  info.classes = facts.vocabulary;
  info.tokenizer = facts.tokenizer != nullptr ? facts.tokenizer->kind() : TokenizerKind::kNone;
  info.tokenizer_checksum = facts.tokenizer != nullptr ? tokenizer_checksum(*facts.tokenizer) : 0;
  hdf5::File file = begin_master(info.task, facts.source);
  file.set_int64(names::kTokens, samples());
  file.set_int64(names::kVocabulary, facts.vocabulary);
  file.set_int64(names::kBlockTokens, kBlockLength);
  file.set_text(names::kTokenizer, name_of(info.tokenizer));
  file.set_uint64(names::kTokenizerChecksum, info.tokenizer_checksum);
  if (facts.tokenizer != nullptr) {
    write_tokenizer(file, *facts.tokenizer);
  }
  if (!facts.chat_template.empty()) {
    file.set_text(names::kChatTemplate, facts.chat_template);
  }
  write_documents(file, documents_, info);
  write_virtual(file, names::kTokens, hdf5::element_type(dtype_), Shape{});
  write_virtual(file, names::kChecksums, hdf5::uint64_type(), Shape{}, kBlockLength);
  finish_master(file, std::move(info));
}

}  // namespace strata::io
