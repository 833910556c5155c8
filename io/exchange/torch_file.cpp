#include <algorithm>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/tensor_files.hpp"

#include "exchange/pickle.hpp"
#include "exchange/tensor_contents.hpp"
#include "exchange/zip_file.hpp"

namespace strata::io {
namespace {

namespace fs = std::filesystem;

using Object = PickleObject;
using Kind = Object::Kind;

nlohmann::json fact_of(const Object& value) {
  switch (value.kind) {
    case Kind::kTruth:
      return value.integer != 0;
    case Kind::kInteger:
      return value.integer;
    case Kind::kNumber:
      return value.number;
    default:
      return nullptr;
  }
}

/// The tensor's bytes within its storage's file. Throws: Error(kData).
StoredTensor tensor_of(const Pickle& pickle, const std::string& name, const Object& object,
                       std::span<const std::byte> storage) {
  StoredTensor tensor{object.type, Shape(object.shape), storage};
  if (object.type == StoredType::kOther) {
    return tensor;
  }
  const std::int64_t size = size_bytes(object.type);
  const std::int64_t bytes = bytes_of(tensor);
  std::int64_t begin = 0;
  if (bytes < 0 || __builtin_mul_overflow(object.offset, size, &begin) ||
      begin > std::ssize(storage) || bytes > std::ssize(storage) - begin) {
    pickle.refuse(
        fmt::format("tensor {} of {} from element {} does not fit into its storage of {} "
                    "bytes",
                    printable(name), tensor.shape.text(), object.offset, storage.size()));
  }
  tensor.bytes = storage.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(bytes));
  return tensor;
}

}  // namespace

TensorFiles TensorFiles::open_torch(const fs::path& path) {
  constexpr std::size_t kMostPickleBytes = std::size_t{8} << 20U;
  constexpr std::string_view kPickle = "/data.pkl";
  constexpr std::string_view kCompiled = "_orig_mod.";
  Contents contents;
  contents.files.push_back(map_model_file(path));
  constexpr std::byte kPickleBegins{0x80};
  if (contents.files.back().bytes().front() == kPickleBegins) {
    fail(ExitCode::kData, "{} is a file of torch.save() in the form before PyTorch 1.6; {}",
         path.string(), kSaveAnew);
  }
  const auto entries = zip_entries(path, contents.files.back().bytes());
  const auto found = std::ranges::find_if(
      entries, [&](const auto& entry) { return entry.first.ends_with(kPickle); });
  if (found == entries.end() || found->second.size() > kMostPickleBytes) {
    fail(ExitCode::kData, "{} has no data.pkl of at most {} bytes, as torch.save() writes",
         path.string(), kMostPickleBytes);
  }
  const std::string root = found->first.substr(0, found->first.size() - kPickle.size());
  const Pickle pickle(path, found->second);
  const auto order = entries.find(root + "/byteorder");
  if (order != entries.end() &&
      !std::ranges::equal(order->second, std::as_bytes(std::span(std::string_view("little"))))) {
    pickle.refuse("its numbers are not little-endian");
  }
  const Object* const model = pickle.find(pickle.whole(), "model");
  const Object* const facts = pickle.find(pickle.whole(), "model_args");
  if (model == nullptr || model->kind != Kind::kDict || facts == nullptr ||
      facts->kind != Kind::kDict) {
    pickle.refuse(
        "it has no \"model\" and \"model_args\", as nanoGPT's ckpt.pt has; a state dict alone does "
        "not say the number of heads: in Python, torch.save({\"model\": STATE_DICT, "
        "\"model_args\": {\"n_layer\": .., \"n_head\": .., \"n_embd\": .., \"block_size\": .., "
        "\"vocab_size\": .., \"bias\": ..}}, \"model.pt\"), and import model.pt");
  }
  for (std::size_t i = 0; i + 1 < model->items.size(); i += 2) {
    std::string name = pickle.at(model->items[i]).text;
    const Object& tensor = pickle.at(model->items[i + 1]);
    if (tensor.kind != Kind::kTensor) {
      pickle.refuse(fmt::format("its entry {} is no tensor", printable(name)));
    }
    if (name.starts_with(kCompiled)) {
      name = name.substr(kCompiled.size());
    }
    const auto storage = entries.find(root + "/data/" + pickle.at(tensor.items.front()).text);
    if (storage == entries.end()) {
      pickle.refuse(
          fmt::format("it lacks the numbers of tensor {}: it is truncated", printable(name)));
    }
    if (!contents.tensors.emplace(name, tensor_of(pickle, name, tensor, storage->second)).second) {
      pickle.refuse(fmt::format("it has the tensor {} twice", printable(name)));
    }
  }
  for (std::size_t i = 0; i + 1 < facts->items.size(); i += 2) {
    const std::string& name = pickle.at(facts->items[i]).text;
    if (contents.facts.contains(name)) {
      pickle.refuse(fmt::format("its model_args have {} twice", printable(name)));
    }
    contents.facts[name] = fact_of(pickle.at(facts->items[i + 1]));
  }
  return TensorFiles(std::move(contents));
}

}  // namespace strata::io
