#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace strata::io {

/// What is read of a file: all of it, or the lines that begin in a range of its bytes.
struct InputPart {
  std::size_t file = 0;  ///< its number
  std::int64_t begin = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
};

/// Consecutive input that one rank reads at a time.
struct InputPiece {
  std::vector<InputPart> parts;
  bool is_test = false;  ///< of the test files
  /// Names the piece by its files, their sizes and times of change, and the range.
  std::string identity;
};

/// Whether files are cut between lines.
enum class CutFiles { kNo, kBetweenLines };

/// Cuts files into pieces of about a 64th of all bytes, but 1 to 64 MiB: small files come together,
/// large ones are cut; compressed files are not. They do not depend on the number of ranks.
/// `first_test`: the first of the test files. Throws: Error(kData) where a file cannot be opened.
[[nodiscard]] std::vector<InputPiece> pieces_of(const std::vector<std::filesystem::path>& files,
                                                std::size_t first_test, CutFiles cut);

}  // namespace strata::io
