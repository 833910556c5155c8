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
  /// One of Parts; of all rows.
  struct Tensor {
    Shape shape;
    DType dtype = DType::kFloat32;
    std::int64_t offset = 0;
    std::int64_t bytes = 0;  ///< padded to the alignment; 0 where it is not read

    [[nodiscard]] std::int64_t row_bytes() const {
      return shape.tail().count() * size_bytes(dtype);
    }
    /// A row of the tensor in a microbatch; null where it is not read.
    [[nodiscard]] std::byte* row(std::byte* microbatch, std::int64_t row) const {
      return bytes > 0 ? microbatch + offset + row * row_bytes() : nullptr;
    }
  };
  Tensor inputs;
  Tensor targets;
  Tensor document_starts;
  Tensor positions;
  Tensor references;

  MicrobatchLayout(const DatasetInfo& info, const LoaderOptions& options);

  [[nodiscard]] std::int64_t bytes() const { return references.offset + references.bytes; }
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
  /// Reads a piece of a context, from its token `at` on; `microbatch` as in read_context().
  void read_piece(const Piece& piece, std::int64_t at, std::int64_t row, std::byte* microbatch);
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
  std::vector<std::int64_t> tokens_;  ///< of one piece
  /// Where a token's document matters or not all tokens count; else null.
  const Documents* documents_ = nullptr;
  std::vector<double> values_;  ///< that are a sample's targets
};

}  // namespace strata::io
