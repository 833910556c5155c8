#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "strata/core/shape.hpp"

#include "files/input_stream.hpp"
#include "files/raw_elements.hpp"

namespace strata::io {

/// An array in an IDX or .npy file, read row by row along its first dimension.
class ArrayFile {
 public:
  /// Source: the IDX format as Y. LeCun, C. Cortes, C. J. C. Burges describe it with MNIST.
  /// Throws: Error(kData) for a wrong magic number, invalid dimensions, or a file size that does
  /// not match the header.
  [[nodiscard]] static ArrayFile open_idx(const std::filesystem::path& path);
  /// Source: NumPy Enhancement Proposal 1, "A simple file format for NumPy arrays".
  /// Throws: Error(kData) as open_idx, and for Fortran order and unsupported element types.
  [[nodiscard]] static ArrayFile open_npy(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return stream_->path(); }
  [[nodiscard]] const RawType& type() const { return type_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] std::int64_t rows() const { return shape_[0]; }
  [[nodiscard]] std::int64_t row_bytes() const { return shape_.tail().count() * type_.bytes; }

  /// Reads the next rows, as many as `raw` holds. Pre: so many are left.
  void read(std::span<std::byte> raw);
  /// Reads to the end of the file.
  /// Throws: Error(kData) where it does not end after the last row.
  void finish();

 private:
  ArrayFile(std::unique_ptr<InputStream> stream, const RawType& type, const Shape& shape,
            std::int64_t header_bytes);

  std::unique_ptr<InputStream> stream_;
  RawType type_;
  Shape shape_;
  std::int64_t bytes_left_;
};

}  // namespace strata::io
