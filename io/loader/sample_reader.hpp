#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "strata/io/dataset.hpp"
#include "strata/io/loader.hpp"

#include "loader/augmenter.hpp"
#include "loader/convert.hpp"

namespace strata::io {

/// Memory layout of one microbatch in a buffer.
struct MicrobatchLayout {
  Shape input_shape;
  DType input_dtype;
  Shape target_shape;
  DType target_dtype;
  std::int64_t input_bytes = 0;  ///< padded to the alignment; 0 where inputs are not read
  std::int64_t target_bytes = 0;

  MicrobatchLayout(const DatasetInfo& info, const LoaderOptions& options);

  [[nodiscard]] std::int64_t bytes() const { return input_bytes + target_bytes; }
  [[nodiscard]] std::int64_t input_row_bytes() const {
    return input_shape.tail().count() * size_bytes(input_dtype);
  }
  [[nodiscard]] std::int64_t target_row_bytes() const {
    return target_shape.tail().count() * size_bytes(target_dtype);
  }
};

/// Alignment of microbatches in bytes.
inline constexpr std::int64_t kMicrobatchAlignment = 64;

/// Reads, verifies and converts samples for one thread.
class SampleReader {
 public:
  /// Pre: the arguments outlive the reader.
  SampleReader(const Dataset& dataset, const LoaderOptions& options,
               const MicrobatchLayout& layout);

  /// Reads the sample at stream index `position` into a row of a microbatch.
  void read(std::int64_t position, std::int64_t row, std::byte* microbatch);

 private:
  void read_sample(std::int64_t position, std::int64_t row, std::byte* microbatch);
  void read_context(std::int64_t position, std::int64_t row, std::byte* microbatch);
  void read_input(std::int64_t sample, std::int64_t position, std::byte* out);
  void read_target(std::int64_t sample, std::byte* out);
  [[nodiscard]] std::int64_t sample_of(std::int64_t position) const;

  const Dataset& dataset_;
  const LoaderOptions& options_;
  const MicrobatchLayout& layout_;
  InputConverter converter_;
  std::optional<Augmenter> augmenter_;
  std::vector<std::byte> ordered_;  ///< a sample whose columns are stored in another order
  std::vector<std::byte> plain_;    ///< a sample before augmentation
  struct {
    std::int64_t position = -1;
    std::int64_t sample = 0;
  } upcoming_;                        ///< the prefetched sample
  std::vector<std::int64_t> tokens_;  ///< of one sample
  std::vector<double> values_;        ///< that are a sample's targets
};

}  // namespace strata::io
