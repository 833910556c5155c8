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

float number_of(std::uint32_t pair, unsigned half) {
  return std::bit_cast<float>(half == 0 ? pair << 16U : pair & 0xFFFF0000U);
}

/// A lane's part of an instruction: what it gives, and where its part of the result goes.
template <typename Given, typename Taken>
struct Lane {
  const Given& given;
  Taken& taken;
};

/// The last lane does the work of all of them, as the others wait. Its type is not kept on the way.
template <typename Given, typename Taken, typename Work>
void with_lanes(const Given& given, Taken& taken, const Work& work) {
  using One = Lane<Given, Taken>;
  const One own{given, taken};
  const standin::WarpValues* const all =
      standin::offer(standin::Stop::kMatrix, reinterpret_cast<std::uint64_t>(&own));
  if (all != nullptr) {
    std::array<const One*, kWarpThreads> lanes;
    for (unsigned lane = 0; lane < kWarpThreads; ++lane) {
      lanes[lane] = reinterpret_cast<const One*>((*all)[lane]);
    }
    work(lanes);
  }
  standin::stop_at(standin::Stop::kMatrix);
}

struct Factors {
  const LeftMatrix& left;
  const RightMatrix& right;
};

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
  with_lanes(Factors{left, right}, sums, [](const auto& lanes) {
    // Rows from 8 on of the 16 x 16 left factor are in odd registers, columns from 8 on in the last
    // two, and four lanes share 8 columns. Rows from 8 on of the 16 x 8 right factor are in the
    // second register.
    double lefts[16][16];
    double rights[16][8];
    for (unsigned lane = 0; lane < kWarpThreads; ++lane) {
      const Factors& given = lanes[lane]->given;
      const unsigned group = lane / 4;
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned place = lane % 4 * 2 + half;
        for (unsigned i = 0; i < 4; ++i) {
          lefts[group + i % 2 * 8][place + i / 2 * 8] =
              static_cast<double>(number_of(given.left.pairs[i], half));
        }
        for (unsigned i = 0; i < 2; ++i) {
          rights[place + i * 8][group] = static_cast<double>(number_of(given.right.pairs[i], half));
        }
      }
    }
    for (unsigned row = 0; row < 16; ++row) {
      double results[8];
      for (unsigned column = 0; column < 8; ++column) {
        const SumMatrix& own = lanes[row % 8 * 4 + column / 2]->taken;
        results[column] = static_cast<double>(own.sums[column % 2 + row / 8 * 2]);
      }
      for (unsigned k = 0; k < 16; ++k) {
        for (unsigned column = 0; column < 8; ++column) {
          results[column] += lefts[row][k] * rights[k][column];
        }
      }
      for (unsigned column = 0; column < 8; ++column) {
        SumMatrix& own = lanes[row % 8 * 4 + column / 2]->taken;
        own.sums[column % 2 + row / 8 * 2] = static_cast<float>(results[column]);
      }
    }
  });
}

void load_matrices(const __nv_bfloat16* row, std::uint32_t (&pairs)[4]) {
  require_pieces(row);
  with_lanes(row, pairs, [](const auto& lanes) {
    for (unsigned lane = 0; lane < kWarpThreads; ++lane) {
      for (unsigned i = 0; i < 4; ++i) {
        const __nv_bfloat16* const elements = lanes[8 * i + lane / 4]->given + lane % 4 * 2;
        lanes[lane]->taken[i] = bits_at(elements) | bits_at(elements + 1) << 16U;
      }
    }
  });
}

void load_transposed_matrices(const __nv_bfloat16* row, std::uint32_t (&pairs)[4]) {
  require_pieces(row);
  with_lanes(row, pairs, [](const auto& lanes) {
    for (unsigned lane = 0; lane < kWarpThreads; ++lane) {
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned first = 8 * i + lane % 4 * 2;
        const unsigned column = lane / 4;
        lanes[lane]->taken[i] = bits_at(lanes[first]->given + column) |
                                bits_at(lanes[first + 1]->given + column) << 16U;
      }
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
