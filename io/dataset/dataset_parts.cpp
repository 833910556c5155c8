#include "dataset/dataset_parts.hpp"

#include "dataset/dataset_format.hpp"

namespace strata::io {

namespace names = dataset_format;

void write_virtual(hdf5::File& file, const char* name, const hdf5::ElementType& type,
                   const Shape& sample_shape, const std::vector<ShardInfo>& shards) {
  std::vector<hdf5::VirtualPart> parts;
  std::int64_t first_sample = 0;
  for (const ShardInfo& shard : shards) {
    hdf5::VirtualPart part{shard.file, name, sample_shape.prepended(shard.samples), {}, {}};
    const Shape source = part.source_shape;
    part.source.count.assign(source.extents().begin(), source.extents().end());
    part.source.start.assign(source.rank(), 0);
    part.target = part.source;
    part.target.start[0] = first_sample;
    parts.push_back(std::move(part));
    first_sample += shard.samples;
  }
  file.create_virtual(name, type, sample_shape.prepended(first_sample), parts);
}

void write_shard_list(hdf5::File& file, const std::vector<ShardInfo>& shards) {
  std::vector<std::string> files;
  std::vector<std::int64_t> samples;
  std::vector<std::uint64_t> checksums;
  for (const ShardInfo& shard : shards) {
    files.push_back(shard.file);
    samples.push_back(shard.samples);
    checksums.push_back(shard.checksum);
  }
  file.write_texts(names::kShardFiles, files);
  write_vector(file, names::kShardSamples, hdf5::element_type(DType::kInt64), samples);
  write_vector(file, names::kShardChecksums, hdf5::uint64_type(), checksums);
}

}  // namespace strata::io
