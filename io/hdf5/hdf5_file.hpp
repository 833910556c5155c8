#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <hdf5.h>
#include <nlohmann/json_fwd.hpp>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/core/shape.hpp"
#include "strata/grid/slices.hpp"

/// HDF5 with owned handles and exceptions. Every failure throws an Error with the exit code given
/// at opening, the file's name and HDF5's reason; HDF5 prints nothing.
namespace strata::io::hdf5 {

/// An owned HDF5 identifier of any kind.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }

  [[nodiscard]] hid_t get() const { return id_; }
  /// Releases the identifier without closing it.
  [[nodiscard]] hid_t release() { return std::exchange(id_, -1); }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

/// File name and exit code of errors; size of a file opened for reading.
struct Origin {
  std::filesystem::path path;
  ExitCode code = ExitCode::kData;
  std::optional<std::int64_t> bytes = std::nullopt;
};

/// An element's type in a file (little-endian) and in memory. The identifiers are predefined by
/// HDF5 and are not closed.
struct ElementType {
  hid_t file = -1;
  hid_t memory = -1;
  std::int64_t bytes = 0;
};

[[nodiscard]] ElementType element_type(DType dtype);
/// 64-bit unsigned integers, the type of checksums.
[[nodiscard]] ElementType uint64_type();

/// The type of elements T.
template <typename T>
[[nodiscard]] ElementType element_type() {
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    return uint64_type();
  } else {
    return element_type(kDTypeOf<T>);
  }
}

/// A file's root group or a data set; holds attributes.
class Object {
 public:
  [[nodiscard]] const Origin& origin() const { return origin_; }
  [[nodiscard]] hid_t id() const { return handle_.get(); }

  [[nodiscard]] bool has_attribute(const std::string& name) const;
  void set_text(const std::string& name, std::string_view text);
  void set_int64(const std::string& name, std::int64_t value);
  void set_uint64(const std::string& name, std::uint64_t value);
  void set_int64s(const std::string& name, std::span<const std::int64_t> values);

  /// Getters throw where the attribute is missing or of another type.
  [[nodiscard]] std::string text(const std::string& name) const;
  [[nodiscard]] std::int64_t int64(const std::string& name) const;
  [[nodiscard]] std::uint64_t uint64(const std::string& name) const;
  [[nodiscard]] nlohmann::json json(const std::string& name) const;

 protected:
  Object(Handle handle, Origin origin) : handle_(std::move(handle)), origin_(std::move(origin)) {}

  /// Throws: where `bytes` is negative or more than the file has.
  void require_within_file(std::int64_t bytes, const std::string& name) const;

  Handle handle_;
  Origin origin_;

 private:
  void set(const std::string& name, const Shape& shape, const ElementType& type, const void* data);
  void get(const std::string& name, const ElementType& type, std::size_t count, void* data) const;
};

/// An open data set. Elements are bytes of its dtype in row-major order.
class Dataset : public Object {
 public:
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Shape shape() const;
  /// Throws: where the element type has no DType.
  [[nodiscard]] DType dtype() const;
  /// Whether the elements are stored as this type.
  [[nodiscard]] bool holds(const ElementType& type) const;

  void write(std::span<const std::byte> elements);
  /// Writes a range of the elements of a data set with one dimension.
  void write(grid::Range range, std::span<const std::byte> elements);
  void read(std::span<std::byte> elements) const;
  /// Reads the elements of all boxes, concatenated.
  void read(std::span<const grid::Box> boxes, std::span<std::byte> elements) const;

  /// File offset of the elements of a contiguous data set.
  /// Throws: for another layout, and before space is allocated.
  [[nodiscard]] std::int64_t file_offset() const;
  /// The bytes of the file that hold the elements of a contiguous data set.
  /// Throws: as file_offset, and where 64 bits do not hold their end.
  [[nodiscard]] grid::Range byte_range() const;

 private:
  friend class File;
  Dataset(Handle handle, Origin origin, std::string name)
      : Object(std::move(handle), std::move(origin)), name_(std::move(name)) {}
  /// Throws: unless the elements are stored in the file itself, in one piece without compression,
  /// and take no more than its bytes.
  void require_plain() const;
  /// Of all elements; -1 where 64 bits do not hold the number.
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] Handle stored_type() const;
  [[nodiscard]] hid_t memory_type() const;
  /// The type of the elements in memory. Pre: `bytes` is the size of all elements.
  [[nodiscard]] hid_t type_of_whole(std::size_t bytes) const;

  std::string name_;
};

/// One piece of a virtual data set: maps `source` in another file's data set to `target`. Pre: both
/// boxes hold the same number of elements.
struct VirtualPart {
  /// Relative to the directory of the file with the virtual data set.
  std::string file;
  std::string dataset;
  Shape source_shape;
  grid::Box source;
  grid::Box target;
};

/// An open HDF5 file with close degree STRONG; also its root group.
class File : public Object {
 public:
  /// Creates a file, truncating an existing one.
  [[nodiscard]] static File create(const std::filesystem::path& path, ExitCode code);
  /// Opens an existing file read-only.
  /// Throws: where the file is missing, is not HDF5 or cannot be opened.
  [[nodiscard]] static File open(const std::filesystem::path& path, ExitCode code);

  /// The attributes with the name and version of the strata format of this file.
  void set_format(std::string_view format, std::int64_t version);
  [[nodiscard]] bool has_format(std::string_view format) const;
  [[nodiscard]] std::int64_t version() const;

  /// Creates a contiguous, uncompressed data set with space allocated early and no fill values.
  /// '/' in the name creates groups.
  Dataset create_dataset(const std::string& name, const ElementType& type, const Shape& shape);
  Dataset create_virtual(const std::string& name, const ElementType& type, const Shape& shape,
                         std::span<const VirtualPart> parts);
  /// Throws: where there is none; in a file opened for reading also for one that is virtual, in
  /// chunks, in another file, or larger than the file.
  [[nodiscard]] Dataset open_dataset(const std::string& name) const;
  /// Whether a data set or group with this path exists.
  /// Throws: where the path holds a soft or external link.
  [[nodiscard]] bool has(const std::string& name) const;

  /// Writes a one-dimensional data set.
  template <typename T>
  void write_vector(const std::string& name, const std::vector<T>& values) {
    create_dataset(name, element_type<T>(), Shape{std::ssize(values)})
        .write(std::as_bytes(std::span(values)));
  }
  /// Writes a one-dimensional data set of UTF-8 texts.
  void write_texts(const std::string& name, std::span<const std::string> texts);
  [[nodiscard]] std::vector<std::string> read_texts(const std::string& name) const;

  /// Flushes, closes and calls fsync.
  void finish();

 private:
  File(Handle handle, Origin origin) : Object(std::move(handle), std::move(origin)) {}
};

/// Throws `<what> <path>: <HDF5's reason>` where `status` is negative.
void check(std::int64_t status, const Origin& origin, std::string_view what);
/// Whether an HDF5 function that looks for something found it; damage counts as absence.
/// Throws: FileSystemError where a system call failed.
[[nodiscard]] bool is_found(std::int64_t status, const Origin& origin, std::string_view what);

}  // namespace strata::io::hdf5
