#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/io/tensor_files.hpp"

namespace strata::io {

/// How a checkpoint is saved so that strata reads it.
constexpr const char* kSaveAnew =
    "in Python: c = torch.load(FILE, map_location=\"cpu\", weights_only=False); "
    "torch.save({\"model\": {k: v.detach().contiguous() for k, v in c[\"model\"].items()}, "
    "\"model_args\": {k: getattr(v, \"item\", lambda: v)() for k, v in "
    "c[\"model_args\"].items()}}, \"model.pt\"), and import model.pt";

/// An object of a pickle. Objects refer to others by their index.
struct PickleObject {
  enum class Kind {
    kNone,
    kTruth,
    kInteger,
    kNumber,
    kText,
    kTuple,
    kList,
    kDict,
    kName,
    kStorage,
    kTensor
  };

  Kind kind = Kind::kNone;
  std::int64_t integer = 0;
  double number = 0.0;
  /// Of kText; of kName module and name, as in "torch.FloatStorage".
  std::string text;
  /// Elements; of a dict key, value, key, value; of a storage or tensor the storage's key.
  std::vector<std::size_t> items;
  /// Of kTensor: in elements of the storage.
  std::int64_t offset = 0;
  std::vector<std::int64_t> shape;
  StoredType type = StoredType::kOther;
};

/// The plain values, dicts and tensors of a pickle that torch.save() wrote. Reading it calls
/// nothing.
class Pickle {
 public:
  /// `path` is for messages. Throws: Error(kData), also for an object of another kind.
  Pickle(std::filesystem::path path, std::span<const std::byte> bytes);

  /// The object that the pickle is.
  [[nodiscard]] const PickleObject& whole() const { return at(whole_); }
  [[nodiscard]] const PickleObject& at(std::size_t index) const { return objects_[index]; }
  /// The value of a key of a dict; null where there is none.
  [[nodiscard]] const PickleObject* find(const PickleObject& dict, std::string_view key) const;

  [[noreturn]] void refuse(const std::string& why) const;

 private:
  std::filesystem::path path_;
  std::deque<PickleObject> objects_;
  std::size_t whole_ = 0;
};

}  // namespace strata::io
