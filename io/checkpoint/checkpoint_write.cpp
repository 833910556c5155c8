#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/statvfs.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"

#include "checkpoint/checkpoint_format.hpp"
#include "checkpoint/checkpoint_slices.hpp"
#include "files/manifest.hpp"
#include "files/posix_file.hpp"
#include "hdf5/hdf5_file.hpp"
#include "tokenizer/tokenizer_contents.hpp"

namespace strata::io {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

// Upper bounds on HDF5's overhead; measured: 2 KiB per file, 0.4 KiB per slice in a part, 0.5 KiB
// per slice in a master.
constexpr std::int64_t kFileOverheadBytes = 16 * 1024;
constexpr std::int64_t kSliceOverheadBytes = 1024;

// Serialises to valid UTF-8; invalid bytes are replaced.
std::string dumped(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool is_tensor_name(const std::string& name) {
  return !name.empty() && name != kPartsDataset && name.front() != '/' && name.back() != '/' &&
         name.find("//") == std::string::npos && name.find('\0') == std::string::npos &&
         !name.starts_with(std::string(kPartsDataset) + '/') &&
         !name.starts_with(std::string(kTokenizerGroup) + '/');
}

void require_writable(const TensorSlice& slice) {
  require(is_tensor_name(slice.name), "'{}' cannot be a tensor's name in a checkpoint", slice.name);
  require(slice.data.dtype() == DType::kFloat32 || slice.data.dtype() == DType::kFloat64,
          "tensor '{}' is {}, checkpoints hold float32 and float64", slice.name,
          name_of(slice.data.dtype()));
  require(slice.data.memory_space() == MemorySpace::kHost, "tensor '{}' is not in host memory",
          slice.name);
  require(lies_within(slice.shard, slice.global_shape), "{}, which is {}",
          text_of(slice.name, slice.shard), slice.global_shape.text());
  const Shape shape = shape_of(slice.shard, slice.global_shape);
  require(slice.range.begin >= 0 && slice.range.begin <= slice.range.end &&
              slice.range.end <= shape.count(),
          "elements [{}, {}) of {}, which is {}", slice.range.begin, slice.range.end,
          text_of(slice.name, slice.shard), shape.text());
  require(slice.data.count() == slice.range.count(),
          "{} elements were given for [{}, {}) of tensor '{}'", slice.data.count(),
          slice.range.begin, slice.range.end, slice.name);
}

// Free bytes of the file system of `directory`; -1 where statvfs fails.
std::int64_t free_bytes(const fs::path& directory) {
  struct statvfs status {};
  if (::statvfs(directory.c_str(), &status) != 0) {
    return -1;
  }
  return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
}

// Preallocates the space of `file`, so that a disk filled by other writers at the same time is
// reported before the data are written. Returns the file, open for writing.
FileDescriptor reserve_space(const hdf5::File& file) {
  const hdf5::Origin& origin = file.origin();
  hdf5::check(H5Fflush(file.id(), H5F_SCOPE_GLOBAL), origin, "cannot write");
  hsize_t bytes = 0;
  hdf5::check(H5Fget_filesize(file.id(), &bytes), origin, "cannot find the size of");
  FileDescriptor descriptor(origin.path, O_WRONLY);
  if (!descriptor.is_open()) {
    fail(origin.code, "cannot open {}: {}", origin.path.string(), std::strerror(errno));
  }
  const int error = ::fallocate(descriptor.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  // Other errors mean that the file system does not preallocate; write() reports real failures.
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    fail(origin.code, "cannot write {}: {}", origin.path.string(), std::strerror(error));
  }
  return descriptor;
}

std::span<const std::byte> bytes_of(const ConstTensorView& data) {
  return {data.raw(), static_cast<std::size_t>(data.bytes())};
}

// Writes a slice piece by piece: hashed while it is in the cache, and on its way to the disk while
// the next pieces are copied. Returns the hash.
std::uint64_t write_elements(hdf5::Dataset& dataset, const FileDescriptor& file,
                             const ConstTensorView& data) {
  constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;
  const grid::Range range = dataset.byte_range();
  const std::int64_t most = kPieceBytes / size_bytes(data.dtype());
  StreamingHash hash;
  for (std::int64_t first = 0; first < data.count(); first += most) {
    const ConstTensorView piece = data.flat_slice(first, std::min(most, data.count() - first));
    hash.update(bytes_of(piece));
    dataset.write({first, first + piece.count()}, bytes_of(piece));
    // Only a hint: fsync reports what fails.
    static_cast<void>(::sync_file_range(file.get(), range.begin + first * size_bytes(data.dtype()),
                                        piece.bytes(), SYNC_FILE_RANGE_WRITE));
  }
  return hash.digest();
}

// Calls `write`, which creates `path`. On failure, removes the file and adds the bytes needed to
// the message.
template <typename Function>
void write_file(const fs::path& path, std::int64_t needed_bytes, Function&& write) {
  const std::int64_t free = free_bytes(path.parent_path());
  try {
    if (free >= 0 && free < needed_bytes) {
      fail(ExitCode::kCheckpoint, "cannot write {}: {}", path.string(), std::strerror(ENOSPC));
    }
    write();
  } catch (const Error& error) {
    std::error_code ignored;
    fs::remove(path, ignored);
    fail(ExitCode::kCheckpoint,
         "{}; the file needs {} bytes ({}) and {} were free; free some space or choose another "
         "run.dir; the last good checkpoint is kept",
         error.what(), needed_bytes, bytes_text(needed_bytes),
         free >= 0 ? bytes_text(free) : "an unknown number of bytes");
  }
}

void write_slices(const fs::path& path, std::int64_t part_index,
                  std::span<const TensorSlice> slices, PartRecord& record) {
  hdf5::File file = hdf5::File::create(path, ExitCode::kCheckpoint);
  file.set_format(kPartFormat, kVersion);
  file.set_int64("part", part_index);
  file.set_text(kSaveAttribute, record.save);
  std::vector<hdf5::Dataset> datasets;
  for (const TensorSlice& slice : slices) {
    const std::string name = fmt::format("slice-{:05d}", datasets.size());
    hdf5::Dataset& dataset = datasets.emplace_back(file.create_dataset(
        name, hdf5::element_type(slice.data.dtype()), Shape{slice.range.count()}));
    dataset.set_text(kTensorAttribute, slice.name);
    const ShardSlice shard = simplest(slice.shard, slice.global_shape);
    if (shard.dimension != ShardSlice::kNotSplit) {
      dataset.set_int64s(kShardAttribute, std::array{shard.dimension, shard.first, shard.count});
    }
    dataset.set_int64(kBeginAttribute, slice.range.begin);
    record.slices.push_back(
        {.tensor = {.name = slice.name, .shape = slice.global_shape, .dtype = slice.data.dtype()},
         .shard = shard,
         .range = slice.range,
         .dataset = name});
  }
  const FileDescriptor descriptor = reserve_space(file);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    record.slices[i].checksum = write_elements(datasets[i], descriptor, slices[i].data);
    record.payload.push_back(datasets[i].byte_range());
  }
  datasets.clear();
  file.finish();
  ManifestEntry entry = manifest_entry_of(path, std::move(record.payload), ExitCode::kCheckpoint);
  record.bytes = entry.bytes;
  record.header_checksum = entry.checksum;
  record.payload = std::move(entry.payload);
}

void write_virtual(hdf5::File& master, const TensorParts& parts) {
  std::vector<hdf5::VirtualPart> mappings;
  for (const TensorParts::Piece& piece : parts.pieces) {
    std::int64_t offset = 0;
    for (grid::Box& box : boxes_of(parts.tensor.shape, piece.slice->shard, piece.slice->range)) {
      const std::int64_t elements = box.elements();
      mappings.push_back({.file = piece.part->file,
                          .dataset = piece.slice->dataset,
                          .source_shape = Shape{piece.slice->range.count()},
                          .source = {.start = {offset}, .count = {elements}},
                          .target = std::move(box)});
      offset += elements;
    }
  }
  master.create_virtual(parts.tensor.name, hdf5::element_type(parts.tensor.dtype),
                        parts.tensor.shape, mappings);
}

void require_parts_present(const fs::path& directory, std::span<const PartRecord> records) {
  std::vector<std::string> files;
  for (const PartRecord& record : records) {
    if (record.save != records.front().save) {
      fail(ExitCode::kCheckpoint,
           "part {} belongs to save {}, the others to save {}; do two runs write to {}?",
           record.file, record.save, records.front().save,
           directory.parent_path().parent_path().string());
    }
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(directory / record.file, error);
    if (error) {
      fail(ExitCode::kCheckpoint, "part {} of the checkpoint is not there: {}",
           (directory / record.file).string(), error.message());
    }
    if (static_cast<std::int64_t>(bytes) != record.bytes) {
      fail(ExitCode::kCheckpoint, "part {} has {} bytes, {} were written",
           (directory / record.file).string(), bytes, record.bytes);
    }
    files.push_back(record.file);
  }
  std::sort(files.begin(), files.end());
  const auto twice = std::adjacent_find(files.begin(), files.end());
  require(twice == files.end(), "part {} was written twice",
          twice == files.end() ? std::string() : *twice);
}

void write_manifest(const fs::path& master, std::span<const PartRecord> records) {
  constexpr std::int64_t kLineBytes = 64;
  constexpr std::int64_t kRangeBytes = 32;
  std::vector<ManifestEntry> entries{manifest_entry_of(master, {}, ExitCode::kCheckpoint)};
  std::int64_t needed_bytes = 2 * kLineBytes;
  for (const PartRecord& record : records) {
    entries.push_back({record.file, record.bytes, record.header_checksum, record.payload});
    needed_bytes += kLineBytes + kRangeBytes * std::ssize(record.payload);
  }
  const fs::path path = manifest_path(master);
  write_file(path, needed_bytes,
             [&] { Manifest(std::move(entries)).write(path, ExitCode::kCheckpoint); });
}

}  // namespace

PartRecord write_part(const fs::path& directory, std::int64_t part_index,
                      std::span<const TensorSlice> slices) {
  std::vector<TensorSlice> held;
  std::int64_t needed_bytes = kFileOverheadBytes;
  for (const TensorSlice& slice : slices) {
    require_writable(slice);
    if (slice.range.count() > 0) {
      held.push_back(slice);
      needed_bytes += slice.data.bytes() + kSliceOverheadBytes;
    }
  }
  PartRecord record{.file = fmt::format("part-{:05d}.h5", part_index), .save = save_of(directory)};
  const fs::path path = directory / record.file;
  write_file(path, needed_bytes, [&] { write_slices(path, part_index, held, record); });
  return record;
}

fs::path commit_checkpoint(const fs::path& root, std::int64_t step,
                           std::span<const PartRecord> records, const nlohmann::json& metadata,
                           const Tokenizer* tokenizer, const std::function<void()>& before_commit) {
  require(!records.empty(), "a checkpoint without parts");
  const fs::path directory =
      directory_of(root, step, DirectoryState::kPartial, records.front().save);
  require_parts_present(directory, records);
  const std::vector<TensorParts> tensors = covered_tensors(records);
  const std::string metadata_text = dumped(metadata);
  std::vector<std::string> record_texts;
  std::size_t longest = 0;
  std::size_t slices = 0;
  for (PartRecord record : records) {
    record.header_checksum = 0;  // of the manifest alone
    record.payload.clear();
    record_texts.push_back(text_of(record));
    longest = std::max(longest, record_texts.back().size());
    slices += record.slices.size();
  }
  const std::int64_t needed_bytes =
      static_cast<std::int64_t>(metadata_text.size() + longest * records.size()) +
      kFileOverheadBytes + static_cast<std::int64_t>(slices) * kSliceOverheadBytes +
      (tokenizer == nullptr ? 0 : stored_bytes(*tokenizer));
  const fs::path path = directory / kMasterFile;
  write_file(path, needed_bytes, [&] {
    hdf5::File master = hdf5::File::create(path, ExitCode::kCheckpoint);
    master.set_format(kMasterFormat, kVersion);
    master.set_int64(kManifestAttribute, 1);
    master.set_int64(kStepAttribute, step);
    master.set_text(kMetadataAttribute, metadata_text);
    master.set_uint64(kChecksumAttribute, master_checksum(step, metadata_text, record_texts));
    master.write_texts(kPartsDataset, record_texts);
    for (const TensorParts& parts : tensors) {
      write_virtual(master, parts);
    }
    if (tokenizer != nullptr) {
      write_tokenizer(master, *tokenizer);
    }
    master.finish();
  });
  write_manifest(path, records);
  sync_file(directory, ExitCode::kCheckpoint);
  before_commit();
  make_visible(directory, root, step);
  return directory_of(root, step, DirectoryState::kVisible);
}

}  // namespace strata::io
