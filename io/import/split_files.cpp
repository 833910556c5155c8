#include "import/split_files.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/utf8.hpp"

#include "dataset/dataset_format.hpp"

namespace strata::io {

namespace names = dataset_format;

SplitFiles::SplitFiles(std::filesystem::path directory, std::string split, std::int64_t samples,
                       std::int64_t shard_samples, const ImportRanks& ranks)
    : directory_(std::move(directory)),
      split_(std::move(split)),
      samples_(samples),
      shard_samples_(shard_samples),
      rank_(static_cast<std::size_t>(ranks.rank)),
      ranks_(static_cast<std::size_t>(ranks.count)) {}

std::filesystem::path SplitFiles::master_path() const {
  return directory_ / (split_ + ".h5");
}

void SplitFiles::lay_out(const LayOut& lay_out) {
  for (std::int64_t first = 0; first < samples_; first += shard_samples_) {
    const std::int64_t samples = std::min(shard_samples_, samples_ - first);
    const std::size_t index = shards_.size();
    shards_.push_back({fmt::format("{}-{:05}.h5", split_, index), samples, 0, 0});
    std::optional<PendingFile>& pending = files_.emplace_back();
    ShardOffsets& offsets = offsets_.emplace_back();
    std::vector<grid::Range>& payload = payload_.emplace_back();
    if (index % ranks_ != rank_) {
      continue;
    }
    left_ += samples;
    pending.emplace(directory_ / shards_.back().file);
    hdf5::File file = hdf5::File::create(pending->temporary(), ExitCode::kData);
    file.set_format(names::kShardFormat, names::kVersionWritten);
    const Shape checksums = lay_out(file, samples, offsets.data);
    offsets.checksums =
        file.create_dataset(names::kChecksums, hdf5::uint64_type(), checksums).file_offset();
    offsets.checksum =
        file.create_dataset(names::kChecksum, hdf5::uint64_type(), Shape{}).file_offset();
    for (const char* data : {names::kInputs, names::kTargets, names::kTokens, names::kChecksums}) {
      if (file.has(data)) {
        payload.push_back(file.open_dataset(data).byte_range());
      }
    }
    file.finish();
  }
}

std::vector<grid::Range> SplitFiles::own() const {
  std::vector<grid::Range> own;
  for (std::size_t index = rank_; index < shards_.size(); index += ranks_) {
    const std::int64_t first = static_cast<std::int64_t>(index) * shard_samples_;
    own.push_back({first, first + shards_[index].samples});
  }
  return own;
}

SplitFiles::ShardPlace SplitFiles::place_of(std::int64_t sample) const {
  const auto shard = static_cast<std::size_t>(sample / shard_samples_);
  const std::int64_t local = sample % shard_samples_;
  return {shard, local, shards_[shard].samples - local};
}

void SplitFiles::write_at(const ShardPlace& place, std::int64_t offset,
                          std::span<const std::byte> bytes) {
  if (place.shard != open_shard_) {
    open_ = PosixFile(files_[place.shard]->temporary());
    open_shard_ = place.shard;
  }
  open_.write_at(offset, bytes);
}

ManifestEntry SplitFiles::finish_shard(std::size_t index) {
  const std::filesystem::path& path = files_[index]->temporary();
  const grid::Range& checksums = payload_[index].back();
  {
    const MappedFile file(path);
    shards_[index].checksum = hash_of(file.bytes().subspan(
        static_cast<std::size_t>(checksums.begin), static_cast<std::size_t>(checksums.count())));
  }
  PosixFile file(path);
  file.write_at(offsets_[index].checksum, std::as_bytes(std::span(&shards_[index].checksum, 1)));
  file.finish();
  ManifestEntry entry = manifest_entry_of(path, std::move(payload_[index]), ExitCode::kData);
  entry.file = shards_[index].file;
  return entry;
}

std::string SplitFiles::finish_shards() {
  require(left_ == 0, "{} samples of a split were never given", left_);
  nlohmann::json shards = nlohmann::json::array();
  for (std::size_t index = rank_; index < shards_.size(); index += ranks_) {
    const ManifestEntry entry = finish_shard(index);
    nlohmann::json payload = nlohmann::json::array();
    for (const grid::Range& range : entry.payload) {
      payload.push_back({range.begin, range.end});
    }
    shards.push_back({index, shards_[index].checksum, entry.bytes, entry.checksum, payload});
  }
  return shards.dump();
}

void SplitFiles::take_shards(const std::string& text) {
  manifest_.resize(shards_.size());
  for (const nlohmann::json& shard : nlohmann::json::parse(text)) {
    const auto index = shard[0].get<std::size_t>();
    shards_[index].checksum = shard[1];
    manifest_[index] = {shards_[index].file, shard[2], shard[3], {}};
    for (const nlohmann::json& range : shard[4]) {
      manifest_[index].payload.push_back({range[0], range[1]});
    }
  }
}

hdf5::File SplitFiles::begin_master(Task task, std::string_view source) {
  master_.emplace(master_path());
  hdf5::File file = hdf5::File::create(master_->temporary(), ExitCode::kData);
  file.set_format(names::kMasterFormat, names::kVersionWritten);
  file.set_int64(kManifestAttribute, 1);
  file.set_text(names::kSource, visible(source));
  file.set_text(names::kTask, name_of(task));
  return file;
}

void SplitFiles::write_virtual(hdf5::File& master, const char* name, const hdf5::ElementType& type,
                               const Shape& row_shape, std::int64_t samples_per_row) const {
  std::vector<hdf5::VirtualPart> parts;
  std::int64_t first = 0;
  for (const ShardInfo& shard : shards_) {
    const std::int64_t rows = (shard.samples + samples_per_row - 1) / samples_per_row;
    hdf5::VirtualPart part{shard.file, name, row_shape.prepended(rows), {}, {}};
    const Shape source = part.source_shape;
    part.source.count.assign(source.extents().begin(), source.extents().end());
    part.source.start.assign(source.rank(), 0);
    part.target = part.source;
    part.target.start[0] = first;
    parts.push_back(std::move(part));
    first += rows;
  }
  master.create_virtual(name, type, row_shape.prepended(first), parts);
}

void SplitFiles::finish_master(hdf5::File& master, DatasetInfo info) {
  std::vector<std::string> files;
  std::vector<std::int64_t> samples;
  std::vector<std::uint64_t> checksums;
  for (const ShardInfo& shard : shards_) {
    files.push_back(shard.file);
    samples.push_back(shard.samples);
    checksums.push_back(shard.checksum);
  }
  master.write_texts(names::kShardFiles, files);
  master.write_vector(names::kShardSamples, samples);
  master.write_vector(names::kShardChecksums, checksums);
  info.shards = shards_;
  master.set_uint64(names::kChecksum, facts_checksum(info));
  master.finish();
  ManifestEntry entry = manifest_entry_of(master_->temporary(), {}, ExitCode::kData);
  entry.file = master_path().filename().string();
  manifest_.insert(manifest_.begin(), std::move(entry));
  manifest_file_.emplace(manifest_path(master_path()));
  Manifest(std::move(manifest_)).write(manifest_file_->temporary(), ExitCode::kData);
}

void SplitFiles::publish_shards() {
  for (std::optional<PendingFile>& file : files_) {
    if (file) {
      file->publish();
    }
  }
  if (manifest_file_) {
    manifest_file_->publish();
  }
}

void SplitFiles::publish_master() {
  master_->publish();
}

}  // namespace strata::io
