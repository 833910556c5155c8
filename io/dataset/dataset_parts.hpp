#pragma once

#include <span>
#include <vector>

#include "strata/io/dataset.hpp"

#include "hdf5/hdf5_file.hpp"

namespace strata::io {

template <typename T>
void write_vector(hdf5::File& file, const char* name, const hdf5::ElementType& type,
                  const std::vector<T>& values) {
  file.create_dataset(name, type, Shape{static_cast<std::int64_t>(values.size())})
      .write(std::as_bytes(std::span(values)));
}

/// Creates a virtual data set that concatenates one data set of all shards.
void write_virtual(hdf5::File& file, const char* name, const hdf5::ElementType& type,
                   const Shape& sample_shape, const std::vector<ShardInfo>& shards);

/// Writes names, sizes and checksums of the shards.
void write_shard_list(hdf5::File& file, const std::vector<ShardInfo>& shards);

}  // namespace strata::io
