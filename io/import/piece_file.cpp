#include "import/piece_file.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "strata/core/error.hpp"

#include "import/token_writer.hpp"

namespace strata::io {
namespace {

constexpr std::int64_t kBufferBytes = std::int64_t{1} << 20;

/// The end of the file.
struct PieceTail {
  std::int64_t tokens = 0;
  std::int64_t index_bytes = 0;
  std::uint64_t key = 0;
  std::uint64_t checksum = 0;  ///< of all before the tail
};

/// Calls take() with each of the vectors of an index.
template <typename Index, typename Take>
void for_each_vector(Index& index, const Take& take) {
  take(index.documents.ends);
  take(index.documents.counted);
  take(index.hashes);
  take(index.characters);
}

template <typename T>
std::span<const std::byte> raw_bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

PieceTail tail_of(const InputFile& file) {
  PieceTail tail;
  if (file.size() >= std::ssize(raw_bytes_of(tail))) {
    file.read_at(file.size() - std::ssize(raw_bytes_of(tail)),
                 std::as_writable_bytes(std::span(&tail, 1)));
  }
  return tail;
}

}  // namespace

std::filesystem::path piece_path(const std::filesystem::path& directory, std::uint64_t key) {
  return directory / fmt::format("tokens-{}.piece", hash_text(key));
}

PieceWriter::PieceWriter(const std::filesystem::path& directory, std::uint64_t key, DType dtype)
    : key_(key), dtype_(dtype), pending_(piece_path(directory, key)), file_(pending_.temporary()) {}

void PieceWriter::append(std::span<const std::uint32_t> ids) {
  append_stored(ids, dtype_, bytes_);
  tokens_ += std::ssize(ids);
  if (std::ssize(bytes_) >= kBufferBytes) {
    write();
  }
}

void PieceWriter::write() {
  hash_.update(bytes_);
  file_.write_at(offset_, bytes_);
  offset_ += std::ssize(bytes_);
  bytes_.clear();
}

void PieceWriter::finish() {
  write();
  const std::int64_t before = offset_;
  const auto add = [&](std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  };
  add(raw_bytes_of(index_.counts));
  for_each_vector(index_, [&](const auto& vector) {
    add(raw_bytes_of(std::ssize(vector)));
    add(std::as_bytes(std::span(vector)));
  });
  write();
  add(raw_bytes_of(PieceTail{tokens_, offset_ - before, key_, hash_.digest()}));
  write();
  pending_.publish();
}

PieceReader::PieceReader(const std::filesystem::path& directory, std::uint64_t key, DType dtype)
    : dtype_(dtype),
      file_(piece_path(directory, key), ExitCode::kData),
      tokens_(tail_of(file_).tokens) {}

PieceIndex PieceReader::index() const {
  PieceIndex index;
  std::int64_t at = tokens_ * size_bytes(dtype_);
  const auto read = [&](auto span) {
    const auto bytes = std::as_writable_bytes(span);
    file_.read_at(at, bytes);
    at += std::ssize(bytes);
  };
  read(std::span(&index.counts, 1));
  for_each_vector(index, [&](auto& vector) {
    std::ptrdiff_t size = 0;
    read(std::span(&size, 1));
    vector.resize(static_cast<std::size_t>(size));
    read(std::span(vector));
  });
  return index;
}

void PieceReader::read(const grid::Range& tokens, std::vector<std::uint32_t>& ids) {
  bytes_.resize(static_cast<std::size_t>(tokens.count() * size_bytes(dtype_)));
  file_.read_at(tokens.begin * size_bytes(dtype_), bytes_);
  read_stored(bytes_, dtype_, ids);
}

std::optional<std::int64_t> PieceReader::verified_tokens(const std::filesystem::path& directory,
                                                         std::uint64_t key, DType dtype) {
  if (!regular_file_bytes(piece_path(directory, key), ExitCode::kData)) {
    return std::nullopt;
  }
  const PieceReader piece(directory, key, dtype);
  const PieceTail tail = tail_of(piece.file_);
  const std::int64_t size = piece.file_.size() - std::ssize(raw_bytes_of(tail));
  if (tail.key != key || tail.tokens < 0 || tail.index_bytes < 0 || tail.tokens > size ||
      tail.tokens * size_bytes(dtype) + tail.index_bytes != size) {
    return std::nullopt;
  }
  StreamingHash hash;
  std::vector<std::byte> bytes;
  for (std::int64_t at = 0; at < size; at += std::ssize(bytes)) {
    bytes.resize(static_cast<std::size_t>(std::min(kBufferBytes, size - at)));
    piece.file_.read_at(at, bytes);
    hash.update(bytes);
  }
  return hash.digest() == tail.checksum ? std::optional(tail.tokens) : std::nullopt;
}

}  // namespace strata::io
