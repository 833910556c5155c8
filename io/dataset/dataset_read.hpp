#pragma once

#include <cstddef>
#include <filesystem>
#include <type_traits>
#include <vector>

#include "strata/core/error.hpp"
#include "strata/io/dataset.hpp"

#include "files/posix_file.hpp"
#include "hdf5/hdf5_file.hpp"

namespace strata::io {

/// Throws: Error(kData) where the file is not of this format and version; `what` names it.
void check_format(const hdf5::File& file, const char* format, const char* what);

/// A one-dimensional data set whole.
template <typename T>
std::vector<T> read_vector(const hdf5::File& file, const char* name) {
  const hdf5::Dataset dataset = file.open_dataset(name);
  hdf5::ElementType type = hdf5::uint64_type();
  if constexpr (!std::is_same_v<T, std::uint64_t>) {
    type = hdf5::element_type(kDTypeOf<T>);
  }
  if (dataset.shape().rank() != 1 || !dataset.holds(type)) {
    fail(ExitCode::kData, "the data set '{}' of {} has another shape or type than expected", name,
         file.origin().path.string());
  }
  std::vector<T> values(static_cast<std::size_t>(dataset.shape().count()));
  dataset.read(std::as_writable_bytes(std::span(values)));
  return values;
}

/// What a master says. Throws: Error(kData) where it is damaged or contradicts itself.
[[nodiscard]] DatasetInfo read_master(const std::filesystem::path& path);

/// An existing shard, its format checked.
[[nodiscard]] hdf5::File open_shard_file(const DatasetInfo& info, const ShardInfo& entry);
/// Where a shard's data set lies in memory. Throws: Error(kData) for another shape or type, or a
/// file that is too short.
[[nodiscard]] const std::byte* mapped_dataset(const hdf5::File& file, const MappedFile& mapped,
                                              const char* name, const Shape& shape,
                                              const hdf5::ElementType& type);
/// Throws: Error(kData) where the shard's checksum is not the one that its master promises.
void check_shard_checksum(const hdf5::File& file, const DatasetInfo& info, const ShardInfo& entry);

}  // namespace strata::io
