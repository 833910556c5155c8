#include "checkpoint_format.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"

namespace strata::io {
namespace {

using nlohmann::json;

json json_of(const SliceRecord& slice) {
  const auto extents = slice.tensor.shape.extents();
  return {{"tensor", slice.tensor.name},
          {"shape", std::vector<std::int64_t>(extents.begin(), extents.end())},
          {"dtype", std::string(name_of(slice.tensor.dtype))},
          {"range", {slice.range.begin, slice.range.end}},
          {"dataset", slice.dataset},
          {"checksum", hash_text(slice.checksum)}};
}

SliceRecord slice_record_of(const json& value) {
  const auto dtype = enum_from_name<DType>(value.at("dtype").get<std::string>());
  if (!dtype) {
    fail(ExitCode::kCheckpoint, "a checkpoint record names the element type '{}', known are {}",
         value.at("dtype").get<std::string>(), joined_names<DType>());
  }
  const auto extents = value.at("shape").get<std::vector<std::int64_t>>();
  if (extents.size() > Shape::kMaxRank) {
    fail(ExitCode::kCheckpoint, "a checkpoint record has a tensor of {} dimensions, at most {} fit",
         extents.size(), Shape::kMaxRank);
  }
  return {.tensor = {.name = value.at("tensor").get<std::string>(),
                     .shape = Shape(extents),
                     .dtype = *dtype},
          .range = {.begin = value.at("range").at(0).get<std::int64_t>(),
                    .end = value.at("range").at(1).get<std::int64_t>()},
          .dataset = value.at("dataset").get<std::string>(),
          .checksum = std::stoull(value.at("checksum").get<std::string>(), nullptr, 16)};
}

}  // namespace

std::string text_of(const PartRecord& record) {
  json slices = json::array();
  for (const SliceRecord& slice : record.slices) {
    slices.push_back(json_of(slice));
  }
  return json{{"file", record.file}, {"bytes", record.bytes}, {"slices", std::move(slices)}}.dump();
}

PartRecord part_record_of(const std::string& text) {
  try {
    const json value = json::parse(text);
    PartRecord record{.file = value.at("file").get<std::string>(),
                      .bytes = value.at("bytes").get<std::int64_t>(),
                      .slices = {}};
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
      parts.pieces.push_back({.file = record.file, .slice = slice});
    }
  }
  std::vector<TensorParts> tensors;
  for (auto& [name, parts] : by_name) {
    std::stable_sort(parts.pieces.begin(), parts.pieces.end(), [](const auto& a, const auto& b) {
      return a.slice.range.begin < b.slice.range.begin;
    });
    std::int64_t covered = 0;
    for (const TensorParts::Piece& piece : parts.pieces) {
      const grid::Range& range = piece.slice.range;
      if (range.begin > covered) {
        fail(ExitCode::kCheckpoint, "elements {} to {} of tensor '{}' are in no part", covered,
             range.begin - 1, name);
      }
      if (range.begin < covered) {
        fail(ExitCode::kCheckpoint, "element {} of tensor '{}' is in two parts, the second is {}",
             range.begin, name, piece.file);
      }
      covered = range.end;
    }
    if (covered != parts.tensor.shape.count()) {
      fail(ExitCode::kCheckpoint, "elements {} to {} of tensor '{}' are in no part", covered,
           parts.tensor.shape.count() - 1, name);
    }
    tensors.push_back(std::move(parts));
  }
  return tensors;
}

}  // namespace checkpoint
}  // namespace strata::io
