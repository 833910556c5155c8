#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace strata::exchange {

/// A matrix in memory; its rows lie `stride` elements apart.
template <typename T>
struct Matrix {
  T* first = nullptr;
  std::int64_t stride = 0;
};

/// Writes the transpose of `rows` x `columns` elements, in tiles that are read and written in whole
/// cache lines.
template <typename T>
void transpose(const Matrix<const T>& from, std::int64_t rows, std::int64_t columns,
               const Matrix<T>& to) {
  constexpr std::int64_t kTile = 16;
  std::array<T, kTile * kTile> tile;
  for (std::int64_t r = 0; r < rows; r += kTile) {
    const std::int64_t height = std::min(kTile, rows - r);
    for (std::int64_t c = 0; c < columns; c += kTile) {
      const std::int64_t width = std::min(kTile, columns - c);
      for (std::int64_t i = 0; i < height; ++i) {
        const T* const row = from.first + (r + i) * from.stride + c;
        for (std::int64_t j = 0; j < width; ++j) {
          tile[static_cast<std::size_t>(j * kTile + i)] = row[j];
        }
      }
      for (std::int64_t j = 0; j < width; ++j) {
        std::copy_n(tile.data() + j * kTile, height, to.first + (c + j) * to.stride + r);
      }
    }
  }
}

}  // namespace strata::exchange
