#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "blocks.hpp"
#include "cuda/mma.hpp"

// Tensor cores' instructions on a CPU, by the layouts that the PTX manual gives for them: which
// lane and register holds which row and column. Lanes look into each other's registers and wait
// until all have.
namespace strata::ops::cuda {
namespace {

using standin::kWarpThreads;

unsigned own_lane() {
  return threadIdx.x % kWarpThreads;
}

float number_of(std::uint32_t pair, unsigned half) {
  return std::bit_cast<float>(half == 0 ? pair << 16U : pair & 0xFFFF0000U);
}

/// Looks at what each lane gave while all lanes wait. Its type is not kept on the way.
template <typename T, typename Look>
void with_lanes(const T& own, const Look& look) {
  std::array<const T*, kWarpThreads> lanes;
  const standin::WarpValues& all =
      standin::exchange(standin::Stop::kMatrix, reinterpret_cast<std::uint64_t>(&own));
  for (unsigned lane = 0; lane < kWarpThreads; ++lane) {
    lanes[lane] = reinterpret_cast<const T*>(all[lane]);
  }
  look(lanes);
  standin::stop_at(standin::Stop::kMatrix);
}

struct Factors {
  const LeftMatrix& left;
  const RightMatrix& right;
};
using Lanes = std::array<const Factors*, kWarpThreads>;

/// Element (row, column) of the 16 x 16 left factor: rows from 8 on are in odd registers, columns
/// from 8 on in the last two, and four lanes share 8 columns.
float left_element(const Lanes& lanes, unsigned row, unsigned column) {
  const Factors& lane = *lanes[row % 8 * 4 + column % 8 / 2];
  return number_of(lane.left.pairs[row / 8 + column / 8 * 2], column % 2);
}

/// Element (row, column) of the 16 x 8 right factor: rows from 8 on are in the second register.
float right_element(const Lanes& lanes, unsigned row, unsigned column) {
  const Factors& lane = *lanes[column * 4 + row % 8 / 2];
  return number_of(lane.right.pairs[row / 8], row % 2);
}

using Rows = std::array<const __nv_bfloat16* const*, kWarpThreads>;

std::uint32_t bits_at(const __nv_bfloat16* element) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, element, sizeof(bits));
  return bits;
}

void require_pieces(const void* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) {
    standin::fail_kernel("a row of a matrix is not at a multiple of 16 bytes");
  }
}

}  // namespace

void multiply_add(const LeftMatrix& left, const RightMatrix& right, SumMatrix& sums) {
  const Factors own{left, right};
  with_lanes(own, [&](const Lanes& lanes) {
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = own_lane() / 4 + i / 2 * 8;
      const unsigned column = own_lane() % 4 * 2 + i % 2;
      double sum = static_cast<double>(sums.sums[i]);
      for (unsigned k = 0; k < 16; ++k) {
        sum += static_cast<double>(left_element(lanes, row, k)) *
               static_cast<double>(right_element(lanes, k, column));
      }
      sums.sums[i] = static_cast<float>(sum);
    }
  });
}

void load_matrices(const __nv_bfloat16* row, std::uint32_t (&pairs)[4]) {
  require_pieces(row);
  with_lanes(row, [&](const Rows& rows) {
    for (unsigned i = 0; i < 4; ++i) {
      const __nv_bfloat16* const elements = *rows[8 * i + own_lane() / 4] + own_lane() % 4 * 2;
      pairs[i] = bits_at(elements) | bits_at(elements + 1) << 16U;
    }
  });
}

void load_transposed_matrices(const __nv_bfloat16* row, std::uint32_t (&pairs)[4]) {
  require_pieces(row);
  with_lanes(row, [&](const Rows& rows) {
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned first = 8 * i + own_lane() % 4 * 2;
      const unsigned column = own_lane() / 4;
      pairs[i] = bits_at(*rows[first] + column) | bits_at(*rows[first + 1] + column) << 16U;
    }
  });
}

template <int kBytes>
void copy_async(void* shared, const void* source, bool exists) {
  standin::copy_later(shared, exists ? source : nullptr, kBytes);
}
template void copy_async<4>(void* shared, const void* source, bool exists);
template void copy_async<16>(void* shared, const void* source, bool exists);

void wait_for_copies() {
  standin::finish_copies();
}

}  // namespace strata::ops::cuda
