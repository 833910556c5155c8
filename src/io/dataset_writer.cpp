#include "dataset_writer.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/error.hpp"

#include "dataset_format.hpp"
#include "hdf5_file.hpp"

namespace strata::io {
namespace names = dataset_format;

SplitWriter::SplitWriter(std::filesystem::path directory, std::string split, SampleLayout layout,
                         std::int64_t samples, std::int64_t shard_bytes)
    : directory_(std::move(directory)),
      split_(std::move(split)),
      layout_(std::move(layout)),
      samples_(samples),
      shard_samples_(std::max<std::int64_t>(1, shard_bytes / layout_.input_bytes())) {}

std::filesystem::path SplitWriter::master_path() const {
  return directory_ / (split_ + ".h5");
}

std::int64_t SplitWriter::predicted_bytes(const SampleLayout& layout, std::int64_t samples) {
  constexpr std::int64_t kChecksumBytes = 8 * names::kChecksumsPerSample;
  return samples * (layout.input_bytes() + layout.target_bytes() + kChecksumBytes);
}

void SplitWriter::open_shard() {
  OpenShard shard;
  shard.samples = std::min(shard_samples_, samples_left());
  const std::string name = fmt::format("{}-{:05}.h5", split_, shards_.size());
  const PendingFile& pending = files_.emplace_back(directory_ / name);
  {
    hdf5::File file = hdf5::File::create(pending.temporary(), ExitCode::kData);
    file.set_text(names::kFormat, names::kShardFormat);
    file.set_int64(names::kVersion, names::kVersionWritten);
    const auto make = [&](const char* dataset, const hdf5::ElementType& type, const Shape& shape) {
      return file.create_dataset(dataset, type, shape).file_offset();
    };
    shard.inputs_offset = make(names::kInputs, hdf5::element_type(layout_.input_dtype),
                               layout_.input_shape.prepended(shard.samples));
    shard.targets_offset = make(names::kTargets, hdf5::element_type(layout_.target_dtype),
                                layout_.target_shape.prepended(shard.samples));
    shard.checksums_offset = make(names::kChecksums, hdf5::uint64_type(),
                                  Shape{shard.samples, names::kChecksumsPerSample});
    shard.checksum_offset = make(names::kChecksum, hdf5::uint64_type(), Shape{});
    file.finish();
  }
  // HDF5 has laid the file out; what goes into the data sets is written past it, so that a full
  // disk is an ordinary error and not one inside HDF5's cache.
  shard.file = PosixFile(pending.temporary());
  shards_.push_back({name, shard.samples, 0, 0});
  shard_ = std::move(shard);
}

void SplitWriter::close_shard() {
  shards_.back().checksum = shard_->hash.digest();
  shard_->file.write_at(shard_->checksum_offset,
                        std::as_bytes(std::span(&shards_.back().checksum, 1)));
  shard_->file.finish();
  shard_.reset();
}

void SplitWriter::append(const SampleBatch& batch) {
  require(batch.count <= samples_left(), "{} samples for a split with {} to come", batch.count,
          samples_left());
  const std::int64_t input_bytes = layout_.input_bytes();
  const std::int64_t target_bytes = layout_.target_bytes();
  for (std::int64_t begin = 0; begin < batch.count;) {
    if (!shard_) {
      open_shard();
    }
    const std::int64_t count = std::min(batch.count - begin, shard_->samples - shard_->written);
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
    const auto checksums = std::as_bytes(std::span(checksums_));
    shard_->hash.update(checksums);
    shard_->file.write_at(shard_->inputs_offset + shard_->written * input_bytes, inputs);
    shard_->file.write_at(shard_->targets_offset + shard_->written * target_bytes, targets);
    shard_->file.write_at(shard_->checksums_offset + shard_->written * names::kChecksumsPerSample *
                                                         std::int64_t{sizeof(std::uint64_t)},
                          checksums);
    shard_->written += count;
    written_ += count;
    begin += count;
    if (shard_->written == shard_->samples) {
      close_shard();
    }
  }
}

void SplitWriter::finish(const MasterFacts& facts) {
  require(samples_left() == 0, "{} samples of a split were never given", samples_left());
  master_.emplace(master_path());
  hdf5::File file = hdf5::File::create(master_->temporary(), ExitCode::kData);
  file.set_text(names::kFormat, names::kMasterFormat);
  file.set_int64(names::kVersion, names::kVersionWritten);
  file.set_int64(names::kSamples, samples_);
  file.set_text(names::kSource, facts.source);
  file.set_text(names::kTask, name_of(layout_.task));
  file.set_int64(names::kClasses, facts.classes);
  show_whole(file, names::kInputs, hdf5::element_type(layout_.input_dtype), layout_.input_shape,
             shards_);
  show_whole(file, names::kTargets, hdf5::element_type(layout_.target_dtype), layout_.target_shape,
             shards_);
  show_whole(file, names::kChecksums, hdf5::uint64_type(), Shape{names::kChecksumsPerSample},
             shards_);
  write_vector(file, names::kMean, hdf5::element_type(DType::kFloat64), facts.mean);
  write_vector(file, names::kDeviation, hdf5::element_type(DType::kFloat64), facts.deviation);
  if (!layout_.class_names.empty()) {
    file.write_texts(names::kClassNames, layout_.class_names);
  }
  write_shard_list(file, shards_);
  DatasetInfo info;
  info.task = layout_.task;
  info.samples = samples_;
  info.input_shape = layout_.input_shape;
  info.input_dtype = layout_.input_dtype;
  info.target_shape = layout_.target_shape;
  info.target_dtype = layout_.target_dtype;
  info.classes = facts.classes;
  info.class_names = layout_.class_names;
  info.mean = facts.mean;
  info.deviation = facts.deviation;
  info.shards = shards_;
  file.set_uint64(names::kChecksum, facts_checksum(info));
  file.finish();
}

void SplitWriter::publish_shards() {
  for (PendingFile& file : files_) {
    file.publish();
  }
}

void SplitWriter::publish_master() {
  master_->publish();
}

}  // namespace strata::io
