#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "strata/core/hash.hpp"
#include "strata/core/tensor.hpp"
#include "strata/grid/grid.hpp"
#include "strata/io/documents.hpp"

#include "files/posix_file.hpp"
#include "import/document_filter.hpp"
#include "import/pending_file.hpp"

/// The tokens of pieces of the input, in files that the ranks of an import share and that outlive
/// one that is killed: tokens, the index, then the lengths of both, a key and a checksum.
namespace strata::io {

/// What is in a piece besides its tokens.
struct PieceIndex {
  Documents documents;
  /// Of the text of each document or pair, where the rules ask for it.
  std::vector<std::uint64_t> hashes;
  DocumentCounts counts;
  /// Where ids are characters: those of the piece, ascending.
  std::vector<std::uint32_t> characters;
};

/// The file of a piece. `key`: of all that decides its contents.
[[nodiscard]] std::filesystem::path piece_path(const std::filesystem::path& directory,
                                               std::uint64_t key);

/// Writes the file of a piece.
class PieceWriter {
 public:
  PieceWriter(const std::filesystem::path& directory, std::uint64_t key, DType dtype);

  /// Appends tokens. Pre: they fit the dtype.
  void append(std::span<const std::uint32_t> ids);
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] PieceIndex& index() { return index_; }
  /// Gives the file its name.
  void finish();

 private:
  void write();

  std::uint64_t key_;
  DType dtype_;
  PendingFile pending_;
  PosixFile file_;
  StreamingHash hash_;
  PieceIndex index_;
  std::vector<std::byte> bytes_;
  std::int64_t offset_ = 0;
  std::int64_t tokens_ = 0;
};

/// The file of a piece as it was written.
class PieceReader {
 public:
  PieceReader(const std::filesystem::path& directory, std::uint64_t key, DType dtype);

  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] PieceIndex index() const;
  /// Replaces `ids` by tokens.
  void read(const grid::Range& tokens, std::vector<std::uint32_t>& ids);
  /// The number of tokens where the file is there and whole; else nothing. Reads every byte.
  [[nodiscard]] static std::optional<std::int64_t> verified_tokens(
      const std::filesystem::path& directory, std::uint64_t key, DType dtype);

 private:
  DType dtype_;
  InputFile file_;
  std::int64_t tokens_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace strata::io
