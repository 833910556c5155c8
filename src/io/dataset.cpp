#include "strata/io/dataset.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"

#include "dataset_format.hpp"
#include "hdf5_file.hpp"
#include "posix_file.hpp"

namespace strata::io {
namespace {

namespace names = dataset_format;

struct Shard {
  MappedFile file;
  std::int64_t first_sample = 0;
  std::int64_t samples = 0;
  const std::byte* inputs = nullptr;
  const std::byte* targets = nullptr;
  const std::byte* checksums = nullptr;
};

void check_format(const hdf5::File& file, const char* format, const char* what) {
  const std::filesystem::path& path = file.origin().path;
  if (!file.has_attribute(names::kFormat) || file.text(names::kFormat) != format) {
    fail(ExitCode::kData,
         "{} is an HDF5 file but not {} of a strata data set; make one with "
         "strata data import",
         path.string(), what);
  }
  const std::int64_t version = file.int64(names::kVersion);
  if (version != names::kVersionWritten) {
    fail(ExitCode::kData, "{} has version {} of the data set format, this program reads version {}",
         path.string(), version, names::kVersionWritten);
  }
}

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

void read_shard_list(const hdf5::File& file, DatasetInfo& info) {
  const std::vector<std::string> files = file.read_texts(names::kShardFiles);
  const auto samples = read_vector<std::int64_t>(file, names::kShardSamples);
  const auto checksums = read_vector<std::uint64_t>(file, names::kShardChecksums);
  if (files.size() != samples.size() || files.size() != checksums.size() ||
      std::any_of(samples.begin(), samples.end(), [](std::int64_t count) { return count < 1; })) {
    fail(ExitCode::kData, "{} contradicts itself in its list of shards; import it anew",
         info.path.string());
  }
  std::int64_t total = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    info.shards.push_back({files[i], samples[i], 0, checksums[i]});
    total += samples[i];
  }
  if (total != info.samples || info.samples <= 0) {
    fail(ExitCode::kData, "{} promises {} samples but its shards hold {}", info.path.string(),
         info.samples, total);
  }
}

}  // namespace

std::uint64_t facts_checksum(const DatasetInfo& info) {
  std::string text = fmt::format(
      "{} samples; inputs {} {}; targets {} {}; {} with {} classes: {}; mean {}; deviation {}",
      info.samples, info.input_shape.text(), name_of(info.input_dtype), info.target_shape.text(),
      name_of(info.target_dtype), name_of(info.task), info.classes,
      fmt::join(info.class_names, ","), fmt::join(info.mean, ","), fmt::join(info.deviation, ","));
  for (const ShardInfo& shard : info.shards) {
    text += fmt::format("; {} {} {:016x}", shard.file, shard.samples, shard.checksum);
  }
  return hash_of(text);
}

namespace {

DatasetInfo read_master(const std::filesystem::path& path) {
  const hdf5::File file = hdf5::File::open(path, ExitCode::kData);
  check_format(file, names::kMasterFormat, "the master");
  DatasetInfo info;
  info.path = path;
  info.source = file.text(names::kSource);
  const std::string task = file.text(names::kTask);
  const auto known_task = enum_from_name<Task>(task);
  if (!known_task) {
    fail(ExitCode::kData, "{} has the task '{}', known are {}", path.string(), task,
         joined_names<Task>());
  }
  info.task = *known_task;
  info.samples = file.int64(names::kSamples);
  info.classes = file.int64(names::kClasses);
  const hdf5::Dataset inputs = file.open_dataset(names::kInputs);
  const hdf5::Dataset targets = file.open_dataset(names::kTargets);
  info.input_shape = inputs.shape().tail();
  info.input_dtype = inputs.dtype();
  info.target_shape = targets.shape().tail();
  info.target_dtype = targets.dtype();
  info.mean = read_vector<double>(file, names::kMean);
  info.deviation = read_vector<double>(file, names::kDeviation);
  if (file.has(names::kClassNames)) {
    info.class_names = file.read_texts(names::kClassNames);
  }
  const auto statistics = static_cast<std::int64_t>(info.mean.size());
  const bool classes = info.task == Task::kClassification;
  if (info.deviation.size() != info.mean.size() ||
      (statistics != 1 && statistics != info.input_shape.count()) ||
      info.target_dtype != (classes ? DType::kInt64 : DType::kFloat64) ||
      (classes && (info.target_shape.rank() != 0 || info.classes < 1)) ||
      info.input_dtype == DType::kInt64) {
    fail(ExitCode::kData,
         "{} contradicts itself in its shapes, types or statistics; import it anew", path.string());
  }
  read_shard_list(file, info);
  info.checksum = file.uint64(names::kChecksum);
  if (info.checksum != facts_checksum(info)) {
    fail(ExitCode::kData,
         "{} is damaged: what it says of its samples and shards does not have its checksum; import "
         "it "
         "anew",
         path.string());
  }
  return info;
}

const std::byte* mapped_dataset(const hdf5::File& file, const MappedFile& mapped, const char* name,
                                const Shape& shape, const hdf5::ElementType& type) {
  const hdf5::Dataset dataset = file.open_dataset(name);
  if (!(dataset.shape() == shape) || !dataset.holds(type)) {
    fail(ExitCode::kData,
         "the shard {} holds '{}' as {} elements or of another type, its master promises {}",
         file.origin().path.string(), name, dataset.shape().text(), shape.text());
  }
  const std::int64_t offset = dataset.file_offset();
  const std::int64_t end = offset + shape.count() * type.bytes;
  const auto size = static_cast<std::int64_t>(mapped.bytes().size());
  if (end > size) {
    fail(ExitCode::kData, "the shard {} was cut short: '{}' ends at byte {}, the file at {}",
         file.origin().path.string(), name, end, size);
  }
  return mapped.bytes().data() + offset;
}

Shard open_shard(const DatasetInfo& info, ShardInfo& entry, std::int64_t first_sample) {
  const std::filesystem::path path = info.path.parent_path() / entry.file;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    fail(ExitCode::kData, "the shard {} of {} is missing; put it beside its master or import anew",
         entry.file, info.path.string());
  }
  const hdf5::File file = hdf5::File::open(path, ExitCode::kData);
  check_format(file, names::kShardFormat, "a shard");
  Shard shard{MappedFile(path), first_sample, entry.samples};
  entry.file_bytes = static_cast<std::int64_t>(shard.file.bytes().size());
  shard.inputs =
      mapped_dataset(file, shard.file, names::kInputs, info.input_shape.prepended(entry.samples),
                     hdf5::element_type(info.input_dtype));
  shard.targets =
      mapped_dataset(file, shard.file, names::kTargets, info.target_shape.prepended(entry.samples),
                     hdf5::element_type(info.target_dtype));
  shard.checksums =
      mapped_dataset(file, shard.file, names::kChecksums,
                     Shape{entry.samples, names::kChecksumsPerSample}, hdf5::uint64_type());
  std::uint64_t checksum = 0;
  file.open_dataset(names::kChecksum).read(std::as_writable_bytes(std::span(&checksum, 1)));
  if (checksum != entry.checksum) {
    fail(ExitCode::kData,
         "the shard {} belongs to another import than {}: its checksum is {}, expected {}",
         path.string(), info.path.string(), hash_text(checksum), hash_text(entry.checksum));
  }
  return shard;
}

std::span<const std::byte> slice(const std::byte* base, std::int64_t index, std::int64_t bytes) {
  return {base + index * bytes, static_cast<std::size_t>(bytes)};
}

std::uint64_t stored_checksum(const Shard& shard, std::int64_t local, std::int64_t column) {
  std::uint64_t checksum = 0;
  std::memcpy(&checksum,
              shard.checksums +
                  (local * names::kChecksumsPerSample + column) * std::int64_t{sizeof checksum},
              sizeof checksum);
  return checksum;
}

}  // namespace

struct Dataset::Contents {
  DatasetInfo info;
  std::vector<Shard> shards;
  std::int64_t input_bytes = 0;
  std::int64_t target_bytes = 0;

  [[nodiscard]] const Shard& shard_of(std::int64_t sample) const {
    require(sample >= 0 && sample < info.samples, "sample {} of {}", sample, info.samples);
    return *std::prev(std::upper_bound(
        shards.begin(), shards.end(), sample,
        [](std::int64_t value, const Shard& shard) { return value < shard.first_sample; }));
  }
  void check(std::span<const std::byte> bytes, std::int64_t sample, std::int64_t column,
             const char* part, const Dataset& dataset) const {
    const Shard& shard = shard_of(sample);
    if (hash_of(bytes) != stored_checksum(shard, sample - shard.first_sample, column)) {
      fail(ExitCode::kData, "the {} of {} does not match its checksum: the file is damaged; {}",
           part, dataset.sample_text(sample), "restore it or import anew");
    }
  }
};

Dataset::Dataset(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {}
Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&& other) noexcept = default;
Dataset& Dataset::operator=(Dataset&& other) noexcept = default;

Dataset Dataset::open(const std::filesystem::path& master) {
  auto contents = std::make_unique<Contents>();
  contents->info = read_master(master);
  DatasetInfo& info = contents->info;
  contents->input_bytes = info.input_bytes();
  contents->target_bytes = info.target_bytes();
  std::int64_t first_sample = 0;
  for (ShardInfo& entry : info.shards) {
    contents->shards.push_back(open_shard(info, entry, first_sample));
    first_sample += entry.samples;
  }
  return Dataset(std::move(contents));
}

const DatasetInfo& Dataset::info() const {
  return contents_->info;
}

std::span<const std::byte> Dataset::sample_input(std::int64_t sample) const {
  const Shard& shard = contents_->shard_of(sample);
  return slice(shard.inputs, sample - shard.first_sample, contents_->input_bytes);
}

std::span<const std::byte> Dataset::sample_target(std::int64_t sample) const {
  const Shard& shard = contents_->shard_of(sample);
  return slice(shard.targets, sample - shard.first_sample, contents_->target_bytes);
}

void Dataset::prefetch(std::int64_t sample) const {
  constexpr std::int64_t kLine = 64;
  // What is longer, the processor's own prefetching finds.
  constexpr std::int64_t kMostBytes = 1024;
  const Shard& shard = contents_->shard_of(sample);
  const std::int64_t local = sample - shard.first_sample;
  const std::byte* input = shard.inputs + local * contents_->input_bytes;
  for (std::int64_t at = 0; at < std::min(contents_->input_bytes, kMostBytes); at += kLine) {
    __builtin_prefetch(input + at);
  }
  __builtin_prefetch(shard.targets + local * contents_->target_bytes);
  __builtin_prefetch(shard.checksums +
                     local * names::kChecksumsPerSample * std::int64_t{sizeof(std::uint64_t)});
}

void Dataset::check_input(std::int64_t sample) const {
  contents_->check(sample_input(sample), sample, 0, "input", *this);
}

void Dataset::check_target(std::int64_t sample) const {
  contents_->check(sample_target(sample), sample, 1, "target", *this);
}

std::string Dataset::sample_text(std::int64_t sample) const {
  const Shard& shard = contents_->shard_of(sample);
  const auto index = static_cast<std::size_t>(&shard - contents_->shards.data());
  return fmt::format("sample {} (number {} of {})", sample, sample - shard.first_sample,
                     (info().path.parent_path() / info().shards[index].file).string());
}

std::vector<ShardCheck> Dataset::verify(const SampleProgress& progress) const {
  constexpr std::int64_t kReportEvery = 1 << 14;
  std::vector<ShardCheck> checks;
  for (std::size_t i = 0; i < contents_->shards.size(); ++i) {
    const Shard& shard = contents_->shards[i];
    ShardCheck check;
    const auto checksums =
        slice(shard.checksums, 0,
              shard.samples * names::kChecksumsPerSample * std::int64_t{sizeof(std::uint64_t)});
    if (hash_of(checksums) != info().shards[i].checksum) {
      check.problem = "the list of checksums is damaged";
    }
    for (std::int64_t local = 0; local < shard.samples; ++local) {
      const auto input = slice(shard.inputs, local, contents_->input_bytes);
      const auto target = slice(shard.targets, local, contents_->target_bytes);
      if (hash_of(input) != stored_checksum(shard, local, 0) ||
          hash_of(target) != stored_checksum(shard, local, 1)) {
        if (check.bad_samples++ == 0 && check.problem.empty()) {
          check.problem = fmt::format("sample {} is damaged", shard.first_sample + local);
        }
      }
      const std::int64_t done = shard.first_sample + local + 1;
      if (progress && (done % kReportEvery == 0 || done == info().samples)) {
        progress(done, info().samples);
      }
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

std::vector<std::int64_t> Dataset::class_counts() const {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(info().classes));
  if (info().task != Task::kClassification) {
    return {};
  }
  for (std::int64_t sample = 0; sample < info().samples; ++sample) {
    std::int64_t label = 0;
    std::memcpy(&label, sample_target(sample).data(), sizeof label);
    if (label < 0 || label >= info().classes) {
      fail(ExitCode::kData, "the label of {} is {}, expected 0 to {}", sample_text(sample), label,
           info().classes - 1);
    }
    ++counts[static_cast<std::size_t>(label)];
  }
  return counts;
}

}  // namespace strata::io
