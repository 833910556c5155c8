#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/grid/grid.hpp"
#include "strata/io/json.hpp"
#include "strata/io/tensor_files.hpp"

#include "exchange/tensor_contents.hpp"
#include "files/raw_elements.hpp"

namespace strata::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

struct ElementType {
  StoredType type = StoredType::kOther;
  std::int64_t bytes = 0;
};

const std::map<std::string, ElementType>& element_types() {
  static const std::map<std::string, ElementType> kTypes{
      {"F64", {StoredType::kFloat64, 8}},  {"F32", {StoredType::kFloat32, 4}},
      {"F16", {StoredType::kFloat16, 2}},  {"BF16", {StoredType::kBfloat16, 2}},
      {"I64", {StoredType::kOther, 8}},    {"U64", {StoredType::kOther, 8}},
      {"I32", {StoredType::kOther, 4}},    {"U32", {StoredType::kOther, 4}},
      {"I16", {StoredType::kOther, 2}},    {"U16", {StoredType::kOther, 2}},
      {"I8", {StoredType::kOther, 1}},     {"U8", {StoredType::kOther, 1}},
      {"BOOL", {StoredType::kOther, 1}},   {"F8_E4M3", {StoredType::kOther, 1}},
      {"F8_E5M2", {StoredType::kOther, 1}}};
  return kTypes;
}

[[noreturn]] void refuse(const fs::path& path, const std::string& why) {
  fail(ExitCode::kData, "{} is no good safetensors file: {}; copy it again", path.string(), why);
}

std::string name_of_type(StoredType type) {
  for (const auto& [name, element] : element_types()) {
    if (element.type == type) {
      return name;
    }
  }
  return "";
}

/// Whole numbers from 0; nothing where the value is another.
std::optional<std::vector<std::int64_t>> counts_in(const nlohmann::json& value) {
  if (!value.is_array()) {
    return std::nullopt;
  }
  std::vector<std::int64_t> counts;
  for (const nlohmann::json& entry : value) {
    counts.push_back(integer_in(entry).value_or(-1));
    if (counts.back() < 0) {
      return std::nullopt;
    }
  }
  return counts;
}

/// A tensor's bytes within the buffer.
grid::Range read_entry(const fs::path& path, const std::string& name, const nlohmann::json& entry,
                       std::span<const std::byte> buffer, StoredTensor& tensor) {
  const auto refuse_tensor = [&](const std::string& why) {
    refuse(path, fmt::format("tensor {} {}", printable(name), why));
  };
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") ||
      !entry["dtype"].is_string() || !entry.contains("shape") || !entry.contains("data_offsets")) {
    refuse_tensor("needs dtype, shape and data_offsets and nothing else");
  }
  const std::string dtype = entry["dtype"].get<std::string>();
  const auto type = element_types().find(dtype);
  if (type == element_types().end()) {
    refuse_tensor(fmt::format("has the unknown dtype {}", printable(dtype)));
  }
  const auto shape = counts_in(entry["shape"]);
  const auto offsets = counts_in(entry["data_offsets"]);
  if (!shape || shape->size() > Shape::kMaxRank) {
    refuse_tensor(fmt::format("has the shape {}, at most {} whole numbers from 0 were expected",
                              printable(entry["shape"].dump()), Shape::kMaxRank));
  }
  if (!offsets || offsets->size() != 2 || offsets->front() > offsets->back()) {
    refuse_tensor(fmt::format("has the offsets {}, a begin and an end were expected",
                              printable(entry["data_offsets"].dump())));
  }
  const grid::Range range{offsets->front(), offsets->back()};
  if (range.end > std::ssize(buffer)) {
    refuse_tensor(fmt::format("ends at byte {} of the buffer, which has {}: the file is truncated",
                              range.end, buffer.size()));
  }
  tensor.type = type->second.type;
  tensor.shape = Shape(*shape);
  const std::int64_t bytes = checked_bytes(tensor.shape, type->second.bytes);
  if (bytes != range.count()) {
    refuse_tensor(fmt::format("of {} in {} has {} bytes, {} were expected", tensor.shape.text(),
                              dtype, range.count(),
                              bytes < 0 ? "more than 64 bits count" : std::to_string(bytes)));
  }
  tensor.bytes = buffer.subspan(static_cast<std::size_t>(range.begin),
                                static_cast<std::size_t>(range.count()));
  return range;
}

std::map<std::string, StoredTensor> read_file(const fs::path& path,
                                              std::span<const std::byte> bytes) {
  if (bytes.size() < kLengthBytes) {
    refuse(path, fmt::format("it has {} bytes, a header needs more than 8", bytes.size()));
  }
  const auto length = load<std::uint64_t>(bytes.data());
  if (length > kMostHeaderBytes || length > bytes.size() - kLengthBytes) {
    refuse(path, fmt::format("its header claims {} bytes, the file has {} after the first 8 and "
                             "the limit is {}",
                             length, bytes.size() - kLengthBytes, kMostHeaderBytes));
  }
  const auto header = static_cast<std::size_t>(length);
  const auto parsed = parse_json(
      {reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, header}, RepeatedKeys::kRefused);
  if (!parsed || !parsed->is_object()) {
    refuse(path, "its header is no JSON object, or has a name twice");
  }
  const std::span<const std::byte> buffer = bytes.subspan(kLengthBytes + header);
  std::map<std::string, StoredTensor> tensors;
  std::vector<std::pair<grid::Range, std::string>> ranges;
  for (const auto& [name, entry] : parsed->items()) {
    if (name != kMetadata) {
      ranges.emplace_back(read_entry(path, name, entry, buffer, tensors[name]), name);
    }
  }
  std::ranges::sort(
      ranges, {}, [](const auto& entry) { return std::pair(entry.first.begin, entry.first.end); });
  std::int64_t end = 0;
  for (const auto& [range, name] : ranges) {
    if (range.begin != end) {
      refuse(path, fmt::format("tensor {} begins at byte {} of the buffer, {} was expected: "
                               "tensors overlap or leave a hole",
                               printable(name), range.begin, end));
    }
    end = range.end;
  }
  if (end != std::ssize(buffer)) {
    refuse(path, fmt::format("{} bytes follow the last tensor", std::ssize(buffer) - end));
  }
  return tensors;
}

/// The shard of each tensor, as the index says.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const MappedFile file = map_model_file(path);
  const auto parsed =
      parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                 RepeatedKeys::kRefused);
  std::map<std::string, std::string> shards;
  if (parsed && parsed->is_object() && parsed->contains("weight_map") &&
      parsed->at("weight_map").is_object()) {
    for (const auto& [name, shard] : parsed->at("weight_map").items()) {
      if (!shard.is_string() || fs::path(shard.get<std::string>()).has_parent_path()) {
        fail(ExitCode::kData, "{} puts tensor {} into {}, a file name was expected", path.string(),
             printable(name), printable(shard.dump()));
      }
      shards[name] = shard.get<std::string>();
    }
  }
  if (shards.empty()) {
    fail(ExitCode::kData,
         "{} has no weight_map of tensors and files, or a key twice; copy it again", path.string());
  }
  return shards;
}

void read_sharded(const fs::path& index, TensorFiles::Contents& contents) {
  const std::map<std::string, std::string> shards = read_index(index);
  std::set<std::string> files;
  for (const auto& [name, shard] : shards) {
    files.insert(shard);
  }
  for (const std::string& shard : files) {
    const fs::path path = index.parent_path() / shard;
    if (!regular_file_bytes(path, ExitCode::kData)) {
      fail(ExitCode::kData, "{} is missing, which {} names; copy it too", printable(path.string()),
           index.string());
    }
    contents.files.push_back(map_model_file(path));
    for (auto& [name, tensor] : read_file(path, contents.files.back().bytes())) {
      const auto named = shards.find(name);
      if (named == shards.end() || named->second != shard) {
        fail(ExitCode::kData, "{} holds tensor {}, which {} {}; copy the model again",
             path.string(), printable(name), index.string(),
             named == shards.end() ? "does not name" : "puts into " + named->second);
      }
      contents.tensors.emplace(name, tensor);
    }
  }
  for (const auto& [name, shard] : shards) {
    if (!contents.tensors.contains(name)) {
      fail(ExitCode::kData, "{} has no tensor {}, which {} puts there; copy the model again",
           (index.parent_path() / shard).string(), printable(name), index.string());
    }
  }
}

}  // namespace

TensorFiles TensorFiles::open_safetensors(const fs::path& path) {
  Contents contents;
  std::error_code error;
  const bool directory = fs::is_directory(path, error);
  const fs::path index = directory ? path / kIndexFile : path;
  if (index.extension() == ".json" && fs::exists(index, error)) {
    read_sharded(index, contents);
    return TensorFiles(std::move(contents));
  }
  const fs::path single = directory ? path / kSingleFile : path;
  if (directory && !fs::exists(single, error)) {
    fail(ExitCode::kData,
         "{} has neither {} nor {}; give the directory of a model with weights in safetensors; "
         "torch_to_safetensors.py in share/strata/python makes them of pytorch_model.bin",
         path.string(), kSingleFile, kIndexFile);
  }
  contents.files.push_back(map_model_file(single));
  contents.tensors = read_file(single, contents.files.back().bytes());
  return TensorFiles(std::move(contents));
}

TensorFileWriter TensorFileWriter::safetensors(const fs::path& path,
                                               std::span<const TensorToStore> tensors) {
  nlohmann::ordered_json header{{kMetadata, {{"format", "pt"}}}};
  // Its operator[] compares a name with all earlier ones.
  auto& entries = header.get_ref<nlohmann::ordered_json::object_t&>();
  std::int64_t end = 0;
  for (const TensorToStore& tensor : tensors) {
    const std::int64_t begin = end;
    end += tensor.shape.count() * size_bytes(tensor.type);
    entries.emplace_back(
        tensor.name, nlohmann::ordered_json{{"dtype", name_of_type(tensor.type)},
                                            {"shape", std::vector(tensor.shape.extents().begin(),
                                                                  tensor.shape.extents().end())},
                                            {"data_offsets", {begin, end}}});
  }
  std::string text = header.dump();
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  if (text.size() > kMostHeaderBytes) {
    fail(ExitCode::kData, "{} tensors need a header of {} bytes, the limit is {}", tensors.size(),
         text.size(), kMostHeaderBytes);
  }
  const std::uint64_t length = text.size();
  std::vector<std::byte> bytes(kLengthBytes + text.size());
  std::memcpy(bytes.data(), &length, kLengthBytes);
  std::memcpy(bytes.data() + kLengthBytes, text.data(), text.size());
  return TensorFileWriter(path, bytes);
}

}  // namespace strata::io
