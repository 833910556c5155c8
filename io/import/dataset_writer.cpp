#include "import/dataset_writer.hpp"

#include <algorithm>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"

#include "dataset/dataset_format.hpp"
#include "hdf5/hdf5_file.hpp"

namespace strata::io {
namespace names = dataset_format;

SplitWriter::SplitWriter(std::filesystem::path directory, std::string split, SampleLayout layout,
                         std::int64_t samples, std::int64_t shard_bytes)
    : layout_(std::move(layout)),
      files_(std::move(directory), std::move(split), samples,
             std::max<std::int64_t>(1, shard_bytes / layout_.input_bytes())) {}

std::int64_t SplitWriter::predicted_bytes(const SampleLayout& layout, std::int64_t samples) {
  constexpr std::int64_t kChecksumBytes = 8 * names::kChecksumsPerSample;
  return samples * (layout.input_bytes() + layout.target_bytes() + kChecksumBytes);
}

Shape SplitWriter::lay_out_shard(hdf5::File& file, std::int64_t samples) {
  const auto make = [&](const char* name, DType dtype, const Shape& shape) {
    return file.create_dataset(name, hdf5::element_type(dtype), shape.prepended(samples))
        .file_offset();
  };
  inputs_offset_ = make(names::kInputs, layout_.input_dtype, layout_.input_shape);
  targets_offset_ = make(names::kTargets, layout_.target_dtype, layout_.target_shape);
  return {samples, names::kChecksumsPerSample};
}

void SplitWriter::append(const SampleBatch& batch) {
  require(batch.count <= samples_left(), "{} samples for a split with {} to come", batch.count,
          samples_left());
  const std::int64_t input_bytes = layout_.input_bytes();
  const std::int64_t target_bytes = layout_.target_bytes();
  for (std::int64_t begin = 0; begin < batch.count;) {
    files_.require_shard(
        [this](hdf5::File& file, std::int64_t samples) { return lay_out_shard(file, samples); });
    const std::int64_t count = std::min(batch.count - begin, files_.shard_left());
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
    files_.write_at(inputs_offset_ + files_.shard_written() * input_bytes, inputs);
    files_.write_at(targets_offset_ + files_.shard_written() * target_bytes, targets);
    files_.add_written(count, checksums_);
    begin += count;
  }
}

void SplitWriter::finish(const MasterFacts& facts) {
  hdf5::File file = files_.begin_master(layout_.task, facts.source);
  file.set_int64(names::kSamples, files_.samples());
  file.set_int64(names::kClasses, facts.classes);
  write_virtual(file, names::kInputs, hdf5::element_type(layout_.input_dtype), layout_.input_shape,
                files_.shards());
  write_virtual(file, names::kTargets, hdf5::element_type(layout_.target_dtype),
                layout_.target_shape, files_.shards());
  write_virtual(file, names::kChecksums, hdf5::uint64_type(), Shape{names::kChecksumsPerSample},
                files_.shards());
  write_vector(file, names::kMean, hdf5::element_type(DType::kFloat64), facts.mean);
  write_vector(file, names::kDeviation, hdf5::element_type(DType::kFloat64), facts.deviation);
  if (!layout_.class_names.empty()) {
    file.write_texts(names::kClassNames, layout_.class_names);
  }
  if (!layout_.column_names.empty()) {
    file.write_texts(names::kColumnNames, layout_.column_names);
  }
  DatasetInfo info;
  info.task = layout_.task;
  info.samples = files_.samples();
  info.input_shape = layout_.input_shape;
  info.input_dtype = layout_.input_dtype;
  info.target_shape = layout_.target_shape;
  info.target_dtype = layout_.target_dtype;
  info.classes = facts.classes;
  info.class_names = layout_.class_names;
  info.mean = facts.mean;
  info.deviation = facts.deviation;
  files_.finish_master(file, std::move(info));
}

}  // namespace strata::io
