#include "matmul/double_product.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "strata/ops/parallel_for.hpp"

namespace strata::ops {
namespace {

/// Register blocking: columns of b that are packed together and rows of a; their sums fill the
/// vector registers.
constexpr std::int64_t kPanel = 8;
constexpr std::int64_t kRowBlock = 4;

/// panel[p * kPanel + j] = b(p, first + j), zero beyond the last column.
void pack(const DoubleProduct& product, std::int64_t first, std::vector<double>& panel) {
  const std::int64_t columns = std::min(kPanel, product.n - first);
  const StridedMatrix& b = product.b;
  for (std::int64_t p = 0; p < product.k; ++p) {
    double* const row = panel.data() + p * kPanel;
    for (std::int64_t j = 0; j < columns; ++j) {
      row[j] = b.data[p * b.row + (first + j) * b.column];
    }
  }
}

double finished(const DoubleProduct& product, double sum, std::int64_t row, std::int64_t column) {
  if (product.bias != nullptr) {
    sum += product.bias[column];
  }
  if (product.accumulate == Accumulate::kAdd) {
    return product.c[row * product.n + column] + sum;
  }
  return product.activation == Activation::kRelu && sum < 0.0 ? 0.0 : sum;
}

template <std::int64_t kRows>
void rows_times_panel(const DoubleProduct& product, std::int64_t first_row,
                      std::int64_t first_column, const double* panel) {
  std::array<std::array<double, kPanel>, kRows> sums{};
  const double* a = product.a.data + first_row * product.a.row;
  for (std::int64_t p = 0; p < product.k; ++p) {
    for (std::size_t i = 0; i < kRows; ++i) {
      const double left = a[static_cast<std::int64_t>(i) * product.a.row + p * product.a.column];
      for (std::size_t j = 0; j < kPanel; ++j) {
        sums[i][j] += left * panel[p * kPanel + static_cast<std::int64_t>(j)];
      }
    }
  }
  const std::int64_t columns = std::min(kPanel, product.n - first_column);
  for (std::int64_t i = 0; i < kRows; ++i) {
    const std::int64_t row = first_row + i;
    for (std::int64_t j = 0; j < columns; ++j) {
      product.c[row * product.n + first_column + j] =
          finished(product, sums[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)], row,
                   first_column + j);
    }
  }
}

}  // namespace

void double_product(Context& context, const DoubleProduct& product) {
  constexpr std::int64_t kGrain = 4 * kPanel;
  parallel_for(context, product.n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> panel(static_cast<std::size_t>(product.k * kPanel));
    for (std::int64_t column = begin; column < end; column += kPanel) {
      if (column + kPanel > product.n) {
        std::fill(panel.begin(), panel.end(), 0.0);
      }
      pack(product, column, panel);
      std::int64_t row = 0;
      for (; row + kRowBlock <= product.m; row += kRowBlock) {
        rows_times_panel<kRowBlock>(product, row, column, panel.data());
      }
      for (; row < product.m; ++row) {
        rows_times_panel<1>(product, row, column, panel.data());
      }
    }
  });
}

}  // namespace strata::ops
