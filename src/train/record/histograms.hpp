#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/device/stream.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/plan/plan.hpp"

namespace strata::train {

/// How the elements of a tensor are distributed.
struct Histogram {
  std::string name;
  double min = 0.0;
  double max = 0.0;
  double count = 0.0;
  double sum = 0.0;
  double sum_squares = 0.0;
  /// Bucket i holds the elements from limits[i - 1] on that are below limits[i]. Empty ones at the
  /// ends are left out, consecutive empty ones between are joined.
  std::vector<double> limits;
  std::vector<double> counts;
};

/// The fixed buckets: every power of two from 2^-40 to 2^20 is divided in eight, for either sign.
inline constexpr std::size_t kHistogramBuckets = 964;
/// The bucket that holds a number.
[[nodiscard]] std::size_t bucket_of(double value);
/// The least number above a bucket; of the last one the greatest double.
[[nodiscard]] double limit_of(std::size_t bucket);

/// The histograms of the tensors PREFIX/PARAMETER that ranks have slices of, on rank 0 in canonical
/// order; elsewhere nothing. They have the same bits on every grid: counts and extremes
/// are exact, and sums are added over blocks of ParameterLayout::kBlock elements in fixed order.
/// Communication: all-reduces over the world, of 8 MiB or one parameter at most.
[[nodiscard]] std::vector<Histogram> histograms_of(const std::string& prefix,
                                                   std::span<const io::TensorSlice> slices,
                                                   const plan::Plan& plan,
                                                   comm::Communicator& world,
                                                   device::Stream& stream);

}  // namespace strata::train
