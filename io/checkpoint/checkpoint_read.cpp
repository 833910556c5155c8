#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"

#include "checkpoint/checkpoint_format.hpp"
#include "checkpoint/checkpoint_slices.hpp"
#include "files/manifest.hpp"
#include "files/posix_file.hpp"
#include "hdf5/hdf5_file.hpp"

namespace strata::io {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

// Verification reads this many elements at a time.
constexpr std::int64_t kVerifyElements = 1 << 20;
// Upper bound on open part files.
constexpr std::size_t kOpenParts = 64;

constexpr const char* kAdvice = "copy the checkpoint again or use an earlier one";

void require_part_on_disk(const fs::path& directory, const PartRecord& part) {
  const auto bytes = regular_file_bytes(directory / part.file, ExitCode::kCheckpoint);
  if (!bytes) {
    fail(ExitCode::kCheckpoint, "{} of the checkpoint {} is missing; {}", part.file,
         directory.string(), kAdvice);
  }
  if (*bytes != part.bytes) {
    fail(ExitCode::kCheckpoint, "{} of the checkpoint {} has {} bytes, {} were written; {}",
         part.file, directory.string(), *bytes, part.bytes, kAdvice);
  }
}

// Opens the slice's data set and checks its shape and type against the record.
hdf5::Dataset open_slice(const hdf5::File& file, const SliceRecord& slice) {
  hdf5::Dataset dataset = file.open_dataset(slice.dataset);
  const Shape expected{slice.range.count()};
  if (dataset.shape() != expected || dataset.dtype() != slice.tensor.dtype) {
    fail(ExitCode::kCheckpoint,
         "{} holds {} {} elements in '{}' for tensor '{}', {} {} were expected; {}",
         file.origin().path.string(), dataset.shape().count(), name_of(dataset.dtype()),
         slice.dataset, slice.tensor.name, expected.count(), name_of(slice.tensor.dtype), kAdvice);
  }
  return dataset;
}

hdf5::File open_part(const fs::path& directory, const PartRecord& part,
                     const std::optional<Manifest>& manifest) {
  require_part_on_disk(directory, part);
  if (manifest) {
    manifest->check(directory / part.file, ExitCode::kCheckpoint, kAdvice);
  }
  hdf5::File file = hdf5::File::open(directory / part.file, ExitCode::kCheckpoint);
  if (!file.has_format(kPartFormat)) {
    fail(ExitCode::kCheckpoint, "{} is not a part of a strata checkpoint; {}",
         file.origin().path.string(), kAdvice);
  }
  return file;
}

std::uint64_t checksum_of(const hdf5::Dataset& dataset, const SliceRecord& slice) {
  StreamingHash hash;
  std::vector<std::byte> buffer;
  for (std::int64_t begin = 0; begin < slice.range.count(); begin += kVerifyElements) {
    const std::int64_t count = std::min(kVerifyElements, slice.range.count() - begin);
    buffer.resize(static_cast<std::size_t>(count * size_bytes(slice.tensor.dtype)));
    const std::array<grid::Box, 1> box{grid::Box{.start = {begin}, .count = {count}}};
    dataset.read(box, buffer);
    hash.update(buffer);
  }
  return hash.digest();
}

void require_good(const fs::path& directory, const PartRecord& part, const SliceRecord& slice,
                  const hdf5::Dataset& dataset) {
  if (checksum_of(dataset, slice) != slice.checksum) {
    fail(ExitCode::kCheckpoint,
         "{} is damaged: elements {} to {} of {} do not match their checksum; {}",
         (directory / part.file).string(), slice.range.begin, slice.range.end - 1,
         checkpoint::text_of(slice.tensor.name, slice.shard), kAdvice);
  }
}

// A metadata value on one short line.
std::string summary_of(const nlohmann::json& value) {
  constexpr std::size_t kLongest = 72;
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text.size() <= kLongest && text.find('\n') == std::string::npos) {
    return text;
  }
  return fmt::format("({} characters)", count_text(static_cast<std::int64_t>(text.size())));
}

}  // namespace

struct Checkpoint::OpenParts {
  [[nodiscard]] const hdf5::File& file(const fs::path& directory, const PartRecord& part);

  std::optional<Manifest> manifest;
  std::vector<std::vector<TensorParts::Piece>> pieces;  ///< of each of tensors()
  std::map<const PartRecord*, hdf5::File> files;
  bool all_verified = false;
  std::set<const SliceRecord*> verified;
};

Checkpoint::Checkpoint(fs::path directory, std::int64_t step, nlohmann::json metadata,
                       std::vector<PartRecord> parts, std::unique_ptr<OpenParts> open_parts)
    : directory_(std::move(directory)),
      step_(step),
      metadata_(std::make_unique<nlohmann::json>(std::move(metadata))),
      parts_(std::move(parts)),
      open_parts_(std::move(open_parts)) {
  for (TensorParts& tensor : covered_tensors(parts_)) {
    tensors_.push_back(std::move(tensor.tensor));
    open_parts_->pieces.push_back(std::move(tensor.pieces));
  }
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

namespace {

// Checks the file against its manifest, where it has one, before HDF5 opens it.
hdf5::File open_master(const fs::path& directory, const std::optional<Manifest>& manifest) {
  const fs::path path = directory / kMasterFile;
  if (manifest) {
    manifest->check(path, ExitCode::kCheckpoint, kAdvice);
  }
  hdf5::File master = hdf5::File::open(path, ExitCode::kCheckpoint);
  if (!master.has_format(kMasterFormat)) {
    fail(ExitCode::kCheckpoint, "{} is not the master file of a strata checkpoint, or is damaged",
         path.string());
  }
  const std::int64_t version = master.version();
  if (version != kVersion) {
    fail(ExitCode::kCheckpoint, "{} has format version {}, this program reads version {}",
         path.string(), version, kVersion);
  }
  if (!manifest && master.has_attribute(kManifestAttribute)) {
    fail(ExitCode::kCheckpoint, "{} is missing: the checkpoint was not copied whole; {}",
         manifest_path(path).string(), kAdvice);
  }
  return master;
}

void require_step_of_name(const fs::path& directory, std::int64_t step) {
  const auto named = step_of_name(directory);
  if (named && *named != step) {
    fail(ExitCode::kCheckpoint,
         "{} holds a checkpoint of step {}: the directory was renamed; give it the name of its "
         "step, or use an earlier one",
         directory.string(), step);
  }
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& directory) {
  const fs::path path = directory / kMasterFile;
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (!fs::status_known(status)) {
    throw FileSystemError(ExitCode::kCheckpoint, error.value(),
                          fmt::format("cannot read {}: {}", directory.string(), error.message()));
  }
  if (!fs::is_directory(status)) {
    fail(ExitCode::kCheckpoint, "there is no checkpoint directory {}", directory.string());
  }
  if (!regular_file_bytes(path, ExitCode::kCheckpoint)) {
    fail(ExitCode::kCheckpoint, "{} has no {}: it is no checkpoint, or was not copied whole",
         directory.string(), kMasterFile);
  }
  auto open_parts = std::make_unique<OpenParts>();
  open_parts->manifest = Manifest::read(path, ExitCode::kCheckpoint);
  const hdf5::File master = open_master(directory, open_parts->manifest);
  const std::int64_t step = master.int64(kStepAttribute);
  const std::string metadata = master.text(kMetadataAttribute);
  const std::vector<std::string> records = master.read_texts(kPartsDataset);
  if (master_checksum(step, metadata, records) != master.uint64(kChecksumAttribute)) {
    fail(ExitCode::kCheckpoint, "{} is damaged: its metadata do not match their checksum; {}",
         path.string(), kAdvice);
  }
  require_step_of_name(directory, step);
  std::vector<PartRecord> parts;
  for (const std::string& record : records) {
    parts.push_back(part_record_of(record));
    require_part_on_disk(directory, parts.back());
  }
  return {directory, step, master.json(kMetadataAttribute), std::move(parts),
          std::move(open_parts)};
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(tensors_, name, {}, &TensorInfo::name);
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

std::string Checkpoint::warning() const {
  return open_parts_->manifest ? "" : no_manifest_text(master());
}

fs::path Checkpoint::master() const {
  return directory_ / kMasterFile;
}

void Checkpoint::verify_part(std::int64_t part) const {
  require(part >= 0 && part < part_count(), "part {} of {}", part, part_count());
  const PartRecord& record = parts_[static_cast<std::size_t>(part)];
  const hdf5::File file = open_part(directory_, record, open_parts_->manifest);
  for (const SliceRecord& slice : record.slices) {
    require_good(directory_, record, slice, open_slice(file, slice));
  }
}

void Checkpoint::set_verified() {
  open_parts_->all_verified = true;
}

const TensorInfo& Checkpoint::tensor_as(const std::string& name, const Shape& shape,
                                        DType dtype) const {
  const TensorInfo* const tensor = find(name);
  if (tensor == nullptr) {
    std::vector<std::string> names;
    for (const TensorInfo& one : tensors_) {
      names.push_back(one.name);
    }
    fail(ExitCode::kCheckpoint,
         "the checkpoint {} has no tensor '{}' (the nearest is '{}'): it is of another model",
         directory_.string(), name, nearest(name, names));
  }
  if (tensor->shape != shape || tensor->dtype != dtype) {
    fail(ExitCode::kCheckpoint,
         "tensor '{}' is {} {} in the checkpoint {}, {} {} was expected: it is of another model",
         name, name_of(tensor->dtype), tensor->shape.text(), directory_.string(), name_of(dtype),
         shape.text());
  }
  return *tensor;
}

const hdf5::File& Checkpoint::OpenParts::file(const fs::path& directory, const PartRecord& part) {
  auto found = files.find(&part);
  if (found == files.end()) {
    if (files.size() == kOpenParts) {
      files.clear();
    }
    found = files.emplace(&part, open_part(directory, part, manifest)).first;
  }
  return found->second;
}

void Checkpoint::read(const std::string& name, const Shape& shape, const ShardSlice& shard,
                      const grid::Range& range, TensorView out) const {
  const std::int64_t tensor = &tensor_as(name, shape, out.dtype()) - tensors_.data();
  require(lies_within(shard, shape), "{}, which is {}", checkpoint::text_of(name, shard),
          shape.text());
  require(
      range.begin >= 0 && range.begin <= range.end && range.end <= shape_of(shard, shape).count(),
      "elements [{}, {}) of {}, which is {}", range.begin, range.end,
      checkpoint::text_of(name, shard), shape_of(shard, shape).text());
  require(out.memory_space() == MemorySpace::kHost && out.count() == range.count(),
          "{} elements of tensor '{}' into {} of {} memory", range.count(), name, out.count(),
          name_of(out.memory_space()));
  const ShardSlice wanted_shard = simplest(shard, shape);
  const std::vector<grid::Box> wanted = boxes_of(shape, wanted_shard, range);
  for (const auto& [part, stored] : open_parts_->pieces[static_cast<std::size_t>(tensor)]) {
    const SliceRecord& slice = *stored;
    if (slice.shard == wanted_shard &&
        (slice.range.end <= range.begin || slice.range.begin >= range.end)) {
      continue;
    }
    const std::vector<Run> runs = common_runs(boxes_of(shape, slice.shard, slice.range), wanted);
    if (!runs.empty()) {
      const hdf5::Dataset dataset = open_slice(open_parts_->file(directory_, *part), slice);
      if (!open_parts_->all_verified && !open_parts_->verified.contains(stored)) {
        require_good(directory_, *part, slice, dataset);
        open_parts_->verified.insert(stored);
      }
      read_runs(dataset, runs, out);
    }
  }
}

std::string Checkpoint::describe() const {
  std::int64_t file_bytes = 0;
  for (const PartRecord& part : parts_) {
    file_bytes += part.bytes;
  }
  std::string text = fmt::format("checkpoint {}\nstep {}\npart files {}, {}\n", directory_.string(),
                                 step_, parts_.size(), bytes_text(file_bytes));
  if (metadata_->is_object()) {
    for (const auto& [key, value] : metadata_->items()) {
      text += fmt::format("{} = {}\n", key, summary_of(value));
    }
  }
  std::vector<std::vector<std::string>> rows{{"tensor", "shape", "dtype", "elements", "bytes"}};
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
  for (const TensorInfo& tensor : tensors_) {
    const std::int64_t count = tensor.shape.count();
    rows.push_back({tensor.name, tensor.shape.text(), std::string(name_of(tensor.dtype)),
                    count_text(count), count_text(count * size_bytes(tensor.dtype))});
    elements += count;
    bytes += count * size_bytes(tensor.dtype);
  }
  rows.push_back({"total", "", "", count_text(elements), count_text(bytes)});
  return text + table_text(rows);
}

}  // namespace strata::io
