#include "checkpoint/checkpoint_format.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"

#include "checkpoint/checkpoint_slices.hpp"
#include "files/manifest.hpp"

namespace strata::io {
namespace {

using nlohmann::json;

json json_of(const SliceRecord& slice) {
  const auto extents = slice.tensor.shape.extents();
  json value{{"tensor", slice.tensor.name},
             {"shape", std::vector<std::int64_t>(extents.begin(), extents.end())},
             {"dtype", std::string(name_of(slice.tensor.dtype))},
             {"range", {slice.range.begin, slice.range.end}},
             {"dataset", slice.dataset},
             {"checksum", hash_text(slice.checksum)}};
  if (slice.shard.dimension != ShardSlice::kNotSplit) {
    value["shard"] = {slice.shard.dimension, slice.shard.first, slice.shard.count};
  }
  return value;
}

std::uint64_t hash_at(const json& value, const char* key) {
  return std::stoull(value.at(key).get<std::string>(), nullptr, 16);
}

std::vector<std::int64_t> integers_of(const json& values) {
  std::vector<std::int64_t> integers;
  std::transform(values.begin(), values.end(), std::back_inserter(integers), integer_of);
  return integers;
}

json json_of(const grid::Range& range) {
  return {range.begin, range.end};
}

grid::Range range_of(const json& value) {
  const grid::Range range{.begin = integer_of(value.at(0)), .end = integer_of(value.at(1))};
  if (range.begin < 0 || range.end < range.begin) {
    fail(ExitCode::kCheckpoint, "a checkpoint record has a range from {} to {}", range.begin,
         range.end);
  }
  return range;
}

ShardSlice shard_of(const json& value, const Shape& shape) {
  if (!value.contains("shard")) {
    return {};
  }
  const std::vector<std::int64_t> numbers = integers_of(value.at("shard"));
  if (numbers.size() != 3) {
    fail(ExitCode::kCheckpoint, "a checkpoint record has a shard of {} numbers, 3 were expected",
         numbers.size());
  }
  const ShardSlice shard{.dimension = numbers[0], .first = numbers[1], .count = numbers[2]};
  if (!checkpoint::lies_within(shard, shape)) {
    fail(ExitCode::kCheckpoint,
         "a checkpoint record has {} indices from {} of dimension {} of a tensor of {}",
         shard.count, shard.first, shard.dimension, shape.text());
  }
  return shard;
}

SliceRecord slice_record_of(const json& value) {
  const auto dtype = enum_from_name<DType>(value.at("dtype").get<std::string>());
  if (!dtype) {
    fail(ExitCode::kCheckpoint, "a checkpoint record names the element type '{}', known are {}",
         value.at("dtype").get<std::string>(), joined_names<DType>());
  }
  const std::vector<std::int64_t> extents = integers_of(value.at("shape"));
  if (extents.size() > Shape::kMaxRank) {
    fail(ExitCode::kCheckpoint, "a checkpoint record has a tensor of {} dimensions, at most {} fit",
         extents.size(), Shape::kMaxRank);
  }
  SliceRecord slice{.tensor = {.name = value.at("tensor").get<std::string>(),
                               .shape = Shape(extents),
                               .dtype = *dtype},
                    .shard = shard_of(value, Shape(extents)),
                    .range = range_of(value.at("range")),
                    .dataset = value.at("dataset").get<std::string>(),
                    .checksum = hash_at(value, "checksum")};
  if (checked_bytes(slice.tensor.shape, size_bytes(*dtype)) < 0 ||
      slice.range.end > checkpoint::shape_of(slice.shard, slice.tensor.shape).count()) {
    fail(ExitCode::kCheckpoint, "a checkpoint record has elements {} to {} of a tensor of {}",
         slice.range.begin, slice.range.end - 1, slice.tensor.shape.text());
  }
  return slice;
}

}  // namespace

std::string text_of(const PartRecord& record) {
  json slices = json::array();
  for (const SliceRecord& slice : record.slices) {
    slices.push_back(json_of(slice));
  }
  json value{{"file", record.file}, {"bytes", record.bytes}, {"slices", std::move(slices)}};
  if (!record.save.empty()) {
    value["save"] = record.save;
  }
  for (const grid::Range& range : record.payload) {
    value["payload"].push_back(json_of(range));
  }
  if (record.header_checksum != 0) {
    value["header_checksum"] = hash_text(record.header_checksum);
  }
  return value.dump();
}

PartRecord part_record_of(const std::string& text) {
  try {
    const auto parsed = parse_json(text);
    if (!parsed) {
      fail(ExitCode::kCheckpoint, "a checkpoint's record of a part is not JSON");
    }
    const json& value = *parsed;
    PartRecord record{.file = value.at("file").get<std::string>(),
                      .bytes = integer_of(value.at("bytes")),
                      .save = value.value("save", "")};
    if (!is_file_name(record.file)) {
      fail(ExitCode::kCheckpoint, "a checkpoint's part has the name {}, which leads elsewhere",
           quoted_text(record.file));
    }
    if (value.contains("header_checksum")) {
      record.header_checksum = hash_at(value, "header_checksum");
      for (const json& range : value.value("payload", json::array())) {
        record.payload.push_back(range_of(range));
      }
    }
    for (const json& slice : value.at("slices")) {
      record.slices.push_back(slice_record_of(slice));
    }
    return record;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ExitCode::kCheckpoint, "a checkpoint's record of a part cannot be read: {}", error.what());
  }
}

namespace checkpoint {

std::uint64_t master_checksum(std::int64_t step, const std::string& metadata,
                              std::span<const std::string> records) {
  std::string all = fmt::format("{}\n{}\n", step, metadata);
  for (const std::string& record : records) {
    all += record;
    all += '\n';
  }
  return hash_of(all);
}

namespace {

using Pieces = std::span<const TensorParts::Piece>;

auto sort_key_of(const TensorParts::Piece& piece) {
  const ShardSlice& shard = piece.slice->shard;
  return std::tuple(shard.dimension, shard.first, shard.count, piece.slice->range.begin);
}

// Throws unless the ranges of one shard's pieces cover the shard exactly once.
void require_ranges_cover(const TensorInfo& tensor, Pieces pieces) {
  const ShardSlice& shard = pieces.front().slice->shard;
  const std::int64_t elements = shape_of(shard, tensor.shape).count();
  std::int64_t covered = 0;
  for (const TensorParts::Piece& piece : pieces) {
    const grid::Range& range = piece.slice->range;
    if (range.begin > covered) {
      fail(ExitCode::kCheckpoint, "elements {} to {} of {} are in no part", covered,
           range.begin - 1, text_of(tensor.name, shard));
    }
    if (range.begin < covered) {
      fail(ExitCode::kCheckpoint, "element {} of {} is in two parts, the second is {}", range.begin,
           text_of(tensor.name, shard), piece.part->file);
    }
    covered = range.end;
  }
  if (covered != elements) {
    fail(ExitCode::kCheckpoint, "elements {} to {} of {} are in no part", covered, elements - 1,
         text_of(tensor.name, shard));
  }
}

void require_indices_follow(const TensorInfo& tensor, std::int64_t covered,
                            const TensorParts::Piece& piece) {
  const ShardSlice& shard = piece.slice->shard;
  if (shard.first > covered) {
    fail(ExitCode::kCheckpoint, "indices {} to {} of dimension {} of tensor '{}' are in no part",
         covered, shard.first - 1, shard.dimension, tensor.name);
  }
  if (shard.first < covered) {
    fail(ExitCode::kCheckpoint,
         "index {} of dimension {} of tensor '{}' is in two parts, the second is {}", shard.first,
         shard.dimension, tensor.name, piece.part->file);
  }
}

// Throws unless the shards cover the split dimension and the ranges cover each shard exactly once.
// Pre: the pieces are sorted.
void require_covered(const TensorInfo& tensor, Pieces pieces) {
  const std::int64_t dimension = pieces.front().slice->shard.dimension;
  if (pieces.back().slice->shard.dimension != dimension) {
    fail(ExitCode::kCheckpoint, "{} and {} are both in the checkpoint: only one dimension is split",
         text_of(tensor.name, pieces.front().slice->shard),
         text_of(tensor.name, pieces.back().slice->shard));
  }
  std::int64_t indices = 0;
  while (!pieces.empty()) {
    const ShardSlice shard = pieces.front().slice->shard;
    const auto end = std::find_if(pieces.begin(), pieces.end(),
                                  [&](const auto& piece) { return piece.slice->shard != shard; });
    const auto count = static_cast<std::size_t>(end - pieces.begin());
    require_indices_follow(tensor, indices, pieces.front());
    require_ranges_cover(tensor, pieces.first(count));
    indices += shard.count;
    pieces = pieces.subspan(count);
  }
  const std::int64_t extent =
      dimension == ShardSlice::kNotSplit ? 0 : tensor.shape[static_cast<std::size_t>(dimension)];
  if (indices != extent) {
    fail(ExitCode::kCheckpoint, "indices {} to {} of dimension {} of tensor '{}' are in no part",
         indices, extent - 1, dimension, tensor.name);
  }
}

}  // namespace

std::vector<TensorParts> covered_tensors(std::span<const PartRecord> records) {
  std::map<std::string, TensorParts> by_name;
  for (const PartRecord& record : records) {
    for (const SliceRecord& slice : record.slices) {
      TensorParts& parts =
          by_name.try_emplace(slice.tensor.name, TensorParts{slice.tensor, {}}).first->second;
      if (parts.tensor != slice.tensor) {
        fail(ExitCode::kCheckpoint,
             "tensor '{}' is {} {} in one part of the checkpoint and {} {} in {}",
             slice.tensor.name, name_of(parts.tensor.dtype), parts.tensor.shape.text(),
             name_of(slice.tensor.dtype), slice.tensor.shape.text(), record.file);
      }
      parts.pieces.push_back({.part = &record, .slice = &slice});
    }
  }
  std::vector<TensorParts> tensors;
  for (auto& [name, parts] : by_name) {
    std::stable_sort(parts.pieces.begin(), parts.pieces.end(),
                     [](const auto& a, const auto& b) { return sort_key_of(a) < sort_key_of(b); });
    require_covered(parts.tensor, parts.pieces);
    tensors.push_back(std::move(parts));
  }
  return tensors;
}

}  // namespace checkpoint
}  // namespace strata::io
