#include "import/input_pieces.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "files/input_stream.hpp"

namespace strata::io {
namespace {

struct PieceInput {
  std::int64_t bytes = 0;
  bool is_compressed = false;
  std::string identity;
};

PieceInput input_of(const std::filesystem::path& path) {
  // Report missing files before encoding, which may take hours.
  const InputStream stream(path);
  PieceInput input;
  input.is_compressed = stream.known_size() < 0;
  input.bytes = static_cast<std::int64_t>(std::filesystem::file_size(path));
  input.identity = fmt::format("{} {} {}", std::filesystem::absolute(path).string(), input.bytes,
                               std::filesystem::last_write_time(path).time_since_epoch().count());
  return input;
}

}  // namespace

std::vector<InputPiece> pieces_of(const std::vector<std::filesystem::path>& files,
                                  std::size_t first_test, CutFiles cut) {
  constexpr std::int64_t kMostPieces = 64;
  constexpr std::int64_t kSmallestPiece = std::int64_t{1} << 20;
  constexpr std::int64_t kLargestPiece = std::int64_t{64} << 20;
  std::vector<PieceInput> inputs(files.size());
  std::ranges::transform(files, inputs.begin(), input_of);
  const std::int64_t all =
      std::accumulate(inputs.begin(), inputs.end(), std::int64_t{0},
                      [](std::int64_t sum, const PieceInput& input) { return sum + input.bytes; });
  const std::int64_t target = std::clamp(all / kMostPieces, kSmallestPiece, kLargestPiece);
  std::vector<InputPiece> pieces;
  std::int64_t room = -1;  // in the last piece
  for (std::size_t file = 0; file < files.size(); ++file) {
    const PieceInput& input = inputs[file];
    const std::int64_t parts = cut == CutFiles::kBetweenLines && !input.is_compressed
                                   ? std::max<std::int64_t>(1, input.bytes / target)
                                   : 1;
    for (std::int64_t part = 0; part < parts; ++part) {
      if (parts > 1 || room < input.bytes || pieces.back().is_test != (file >= first_test)) {
        // A file that is given twice has other pieces.
        pieces.push_back({.parts = {},
                          .is_test = file >= first_test,
                          .identity = fmt::format("{}\n", pieces.size())});
        room = target;
      }
      InputPart& range = pieces.back().parts.emplace_back(InputPart{.file = file});
      range.begin = part * (input.bytes / parts);
      if (part + 1 < parts) {
        range.end = range.begin + input.bytes / parts;
      }
      pieces.back().identity += fmt::format("{} {} {}\n", input.identity, range.begin, range.end);
      room -= parts > 1 ? room : input.bytes;
    }
  }
  return pieces;
}

}  // namespace strata::io
