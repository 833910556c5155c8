#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/io/dataset.hpp"

#include "files/manifest.hpp"
#include "files/posix_file.hpp"
#include "files/raw_elements.hpp"
#include "hdf5/hdf5_file.hpp"

namespace strata::io {

/// Throws: Error(kData) where the file has another format or version; `what` names the file.
void check_format(const hdf5::File& file, const char* format, const char* what);

/// Reads a whole data set of `rank` dimensions.
/// Throws: Error(kData) where it has another rank or type.
template <typename T>
std::vector<T> read_elements(const hdf5::File& file, const char* name, std::size_t rank) {
  const hdf5::Dataset dataset = file.open_dataset(name);
  if (dataset.shape().rank() != rank || !dataset.holds(hdf5::element_type<T>())) {
    fail(ExitCode::kData, "the data set '{}' of {} has another shape or type than expected", name,
         file.origin().path.string());
  }
  std::vector<T> values(static_cast<std::size_t>(dataset.shape().count()));
  dataset.read(std::as_writable_bytes(std::span(values)));
  return values;
}
template <typename T>
std::vector<T> read_vector(const hdf5::File& file, const char* name) {
  return read_elements<T>(file, name, 1);
}

/// A master and the manifest beside it, which sets of earlier versions lack.
struct ReadMaster {
  DatasetInfo info;
  std::optional<Manifest> manifest;
};

/// Reads a master, and shapes and types from its first shard.
/// Throws: Error(kData) where they are damaged or contradict each other.
[[nodiscard]] ReadMaster read_master(const std::filesystem::path& path);

/// Reads the documents of a master that stores them. Throws: Error(kData) where they are damaged.
[[nodiscard]] Documents read_documents(const ReadMaster& master);
/// Writes the documents to a master, where there are any, and their facts into `info`.
void write_documents(hdf5::File& file, const Documents& documents, DatasetInfo& info);

/// Writes what a master holds of a table's columns; nothing where there are none.
void write_table(hdf5::File& file, std::span<const TableColumn> table);

/// One shard of a data set, mapped into memory. Its elements need not be aligned.
struct MappedShard {
  MappedFile file;
  std::int64_t first = 0;              ///< index of its first sample or token in the data set
  std::int64_t count = 0;              ///< samples or tokens
  const std::byte* inputs = nullptr;   ///< or token ids
  const std::byte* targets = nullptr;  ///< null for tokens
  /// Hashes of each sample's input and target, or of each block of tokens.
  std::span<const std::byte> checksums;

  [[nodiscard]] std::uint64_t checksum(std::int64_t index) const {
    return load<std::uint64_t>(checksums.data() + index * std::int64_t{sizeof(std::uint64_t)});
  }
};

/// Maps all shards of a data set and writes their file sizes into `info`.
/// Throws: Error(kData) where a shard is missing, too short, of another format, shape or type, or
/// has another checksum than its master promises.
[[nodiscard]] std::vector<MappedShard> map_shards(ReadMaster& master);

/// The shard that holds a sample or token. Pre: one does.
[[nodiscard]] const MappedShard& shard_with(std::span<const MappedShard> shards,
                                            std::int64_t index);

/// Checks the list of checksums against `promised` and, by `problem_of(unit)`, the samples or
/// blocks 0 to units - 1; the first problem is kept.
template <typename Problem>
ShardCheck check_shard(const MappedShard& shard, std::uint64_t promised, std::int64_t units,
                       Problem&& problem_of) {
  ShardCheck check;
  if (hash_of(shard.checksums) != promised) {
    check.problem = "the list of checksums is damaged";
  }
  for (std::int64_t unit = 0; unit < units; ++unit) {
    std::string problem = problem_of(unit);
    if (!problem.empty() && check.bad_samples++ == 0 && check.problem.empty()) {
      check.problem = std::move(problem);
    }
  }
  return check;
}

}  // namespace strata::io
