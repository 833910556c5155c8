#include "import/dataset_writer.hpp"

#include <algorithm>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"

#include "dataset/dataset_format.hpp"
#include "dataset/dataset_read.hpp"
#include "hdf5/hdf5_file.hpp"

namespace strata::io {
namespace names = dataset_format;

SplitWriter::SplitWriter(std::filesystem::path directory, std::string split, DatasetInfo info,
                         std::int64_t samples, std::int64_t shard_bytes)
    : SplitFiles(std::move(directory), std::move(split), samples,
                 std::max<std::int64_t>(1, shard_bytes / info.input_bytes())),
      info_(std::move(info)) {
  lay_out([&](hdf5::File& file, std::int64_t count, std::vector<std::int64_t>& offsets) {
    const auto make = [&](const char* name, DType dtype, const Shape& shape) {
      offsets.push_back(file.create_dataset(name, hdf5::element_type(dtype), shape.prepended(count))
                            .file_offset());
    };
    make(names::kInputs, info_.input_dtype, info_.input_shape);
    make(names::kTargets, info_.target_dtype, info_.target_shape);
    return Shape{count, names::kChecksumsPerSample};
  });
}

std::int64_t SplitWriter::predicted_bytes(const DatasetInfo& info, std::int64_t samples) {
  constexpr std::int64_t kChecksumBytes = 8 * names::kChecksumsPerSample;
  return samples * (info.input_bytes() + info.target_bytes() + kChecksumBytes);
}

void SplitWriter::write(const SampleBatch& batch, std::int64_t first,
                        std::span<const std::int64_t> places) {
  const std::int64_t input_bytes = info_.input_bytes();
  const std::int64_t target_bytes = info_.target_bytes();
  for (std::size_t i = 0; i < places.size();) {
    const ShardPlace place = place_of(places[i]);
    std::int64_t count = 0;
    checksums_.clear();
    const auto part = [&](const std::vector<std::byte>& bytes, std::int64_t size,
                          std::int64_t samples) {
      return std::span(bytes).subspan(
          static_cast<std::size_t>((first + static_cast<std::int64_t>(i)) * size),
          static_cast<std::size_t>(samples * size));
    };
    do {
      ++count;
    } while (count < place.left && i + static_cast<std::size_t>(count) < places.size() &&
             places[i + static_cast<std::size_t>(count)] == places[i] + count);
    const auto inputs = part(batch.inputs, input_bytes, count);
    const auto targets = part(batch.targets, target_bytes, count);
    for (std::int64_t sample = 0; sample < count; ++sample) {
      checksums_.push_back(hash_of(inputs.subspan(static_cast<std::size_t>(sample * input_bytes),
                                                  static_cast<std::size_t>(input_bytes))));
      checksums_.push_back(hash_of(targets.subspan(static_cast<std::size_t>(sample * target_bytes),
                                                   static_cast<std::size_t>(target_bytes))));
    }
    const ShardOffsets& offsets = offsets_of(place);
    constexpr std::int64_t kChecksumBytes = 8 * names::kChecksumsPerSample;
    write_at(place, offsets.data[0] + place.local * input_bytes, inputs);
    write_at(place, offsets.data[1] + place.local * target_bytes, targets);
    write_at(place, offsets.checksums + place.local * kChecksumBytes,
             std::as_bytes(std::span(checksums_)));
    add_written(count);
    i += static_cast<std::size_t>(count);
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
  if (!info.target_mean.empty()) {
    file.write_vector(names::kTargetMean, info.target_mean);
    file.write_vector(names::kTargetDeviation, info.target_deviation);
  }
  if (!info.class_names.empty()) {
    file.write_texts(names::kClassNames, info.class_names);
  }
  if (!info.column_names.empty()) {
    file.write_texts(names::kColumnNames, info.column_names);
  }
  write_table(file, info.table);
  finish_master(file, std::move(info));
}

}  // namespace strata::io
