#include "import/dataset_writer.hpp"

#include <algorithm>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"

#include "dataset/dataset_format.hpp"
#include "hdf5/hdf5_file.hpp"

namespace strata::io {
namespace names = dataset_format;

SplitWriter::SplitWriter(std::filesystem::path directory, std::string split, DatasetInfo info,
                         std::int64_t samples, std::int64_t shard_bytes)
    : SplitFiles(std::move(directory), std::move(split), samples,
                 std::max<std::int64_t>(1, shard_bytes / info.input_bytes())),
      info_(std::move(info)) {}

std::int64_t SplitWriter::predicted_bytes(const DatasetInfo& info, std::int64_t samples) {
  constexpr std::int64_t kChecksumBytes = 8 * names::kChecksumsPerSample;
  return samples * (info.input_bytes() + info.target_bytes() + kChecksumBytes);
}

Shape SplitWriter::lay_out_shard(hdf5::File& file, std::int64_t samples) {
  const auto make = [&](const char* name, DType dtype, const Shape& shape) {
    return file.create_dataset(name, hdf5::element_type(dtype), shape.prepended(samples))
        .file_offset();
  };
  inputs_offset_ = make(names::kInputs, info_.input_dtype, info_.input_shape);
  targets_offset_ = make(names::kTargets, info_.target_dtype, info_.target_shape);
  return {samples, names::kChecksumsPerSample};
}

void SplitWriter::append(const SampleBatch& batch) {
  require(batch.count <= left(), "{} samples for a split with {} to come", batch.count, left());
  const std::int64_t input_bytes = info_.input_bytes();
  const std::int64_t target_bytes = info_.target_bytes();
  for (std::int64_t begin = 0; begin < batch.count;) {
    require_shard(
        [this](hdf5::File& file, std::int64_t samples) { return lay_out_shard(file, samples); });
    const std::int64_t count = std::min(batch.count - begin, shard_left());
    const auto part = [&](const std::vector<std::byte>& bytes, std::int64_t size) {
      return std::span(bytes).subspan(static_cast<std::size_t>(begin * size),
                                      static_cast<std::size_t>(count * size));
    };
    const auto inputs = part(batch.inputs, input_bytes);
    const auto targets = part(batch.targets, target_bytes);
    checksums_.clear();
    for (std::int64_t i = 0; i < count; ++i) {
      checksums_.push_back(hash_of(inputs.subspan(static_cast<std::size_t>(i * input_bytes),
                                                  static_cast<std::size_t>(input_bytes))));
      checksums_.push_back(hash_of(targets.subspan(static_cast<std::size_t>(i * target_bytes),
                                                   static_cast<std::size_t>(target_bytes))));
    }
    write_at(inputs_offset_ + shard_written() * input_bytes, inputs);
    write_at(targets_offset_ + shard_written() * target_bytes, targets);
    add_written(count, checksums_);
    begin += count;
  }
}

void SplitWriter::finish(DatasetInfo info) {
  info.samples = samples();
  hdf5::File file = begin_master(info.task, info.source);
  file.set_int64(names::kSamples, info.samples);
  file.set_int64(names::kClasses, info.classes);
  write_virtual(file, names::kInputs, hdf5::element_type(info.input_dtype), info.input_shape);
  write_virtual(file, names::kTargets, hdf5::element_type(info.target_dtype), info.target_shape);
  write_virtual(file, names::kChecksums, hdf5::uint64_type(), Shape{names::kChecksumsPerSample});
  file.write_vector(names::kMean, info.mean);
  file.write_vector(names::kDeviation, info.deviation);
  if (!info.class_names.empty()) {
    file.write_texts(names::kClassNames, info.class_names);
  }
  if (!info.column_names.empty()) {
    file.write_texts(names::kColumnNames, info.column_names);
  }
  finish_master(file, std::move(info));
}

}  // namespace strata::io
