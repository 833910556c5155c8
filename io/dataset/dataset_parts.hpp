#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strata/io/dataset.hpp"

#include "hdf5/hdf5_file.hpp"

namespace strata::io {

/// A file under a temporary name; the destructor removes it unless it was published.
class PendingFile {
 public:
  explicit PendingFile(std::filesystem::path final_path);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  PendingFile(PendingFile&& other) noexcept
      : final_(std::move(other.final_)), temporary_(std::exchange(other.temporary_, {})) {}
  PendingFile& operator=(PendingFile&& other) noexcept {
    std::swap(final_, other.final_);
    std::swap(temporary_, other.temporary_);
    return *this;
  }

  [[nodiscard]] const std::filesystem::path& temporary() const { return temporary_; }
  /// Renames the file to its final name.
  void publish();

 private:
  std::filesystem::path final_;
  std::filesystem::path temporary_;  ///< empty once published or moved from
};

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
