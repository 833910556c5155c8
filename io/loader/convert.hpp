#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "strata/io/dataset.hpp"
#include "strata/io/loader.hpp"

namespace strata::io {

/// Converts stored samples to the compute dtype: (x - shift) / scale, rounded after each operation.
/// Images become channels-last.
class InputConverter {
 public:
  InputConverter(const DatasetInfo& info, const LoaderOptions& options);

  /// Converts one sample; false where the result holds NaN or infinity.
  /// Pre: `out` is aligned and has room for a sample in the compute dtype.
  [[nodiscard]] bool convert(std::span<const std::byte> stored, std::byte* out);

 private:
  template <typename To>
  bool convert_to(std::span<const std::byte> stored, To* out);
  template <typename From, typename To>
  bool convert_from(std::span<const std::byte> stored, To* out);
  template <typename From, typename To, typename Stride>
  void convert_planes(const From* in, std::size_t count, Stride stride, To* out) const;

  DType stored_dtype_;
  DType compute_dtype_;
  bool identity_;
  std::int64_t channels_ = 1;  ///< 1 for samples that are not images
  std::vector<double> shift_;
  std::vector<double> scale_;
  std::vector<std::uint64_t> aligned_;  ///< aligned copy of an unaligned sample
};

}  // namespace strata::io
