#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "strata/io/dataset.hpp"
#include "strata/io/loader.hpp"

namespace strata::io {

/// Turns stored samples into what a network computes with: (x - shift) / scale, rounded once in
/// each operation of the compute dtype. Images come out channels last.
class InputConverter {
 public:
  InputConverter(const DatasetInfo& info, DType compute_dtype, Normalise normalise);

  /// Converts one sample; false where an element of the result is NaN or infinite.
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
  std::int64_t channels_ = 1;  ///< what comes out last, of images
  std::vector<double> shift_;
  std::vector<double> scale_;
  std::vector<std::uint64_t> aligned_;  ///< a stored sample, where it lies unaligned
};

}  // namespace strata::io
