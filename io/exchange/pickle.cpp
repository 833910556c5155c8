#include "exchange/pickle.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"

#include "files/raw_elements.hpp"

namespace strata::io {
namespace {

namespace fs = std::filesystem;

using Object = PickleObject;
using Kind = Object::Kind;

constexpr const char* kRebuildTensor = "torch._utils._rebuild_tensor_v2";
constexpr const char* kOrderedDict = "collections.OrderedDict";

const std::map<std::string, StoredType>& storage_types() {
  static const std::map<std::string, StoredType> kTypes{
      {"torch.DoubleStorage", StoredType::kFloat64},
      {"torch.FloatStorage", StoredType::kFloat32},
      {"torch.HalfStorage", StoredType::kFloat16},
      {"torch.BFloat16Storage", StoredType::kBfloat16},
      {"torch.LongStorage", StoredType::kOther},
      {"torch.IntStorage", StoredType::kOther},
      {"torch.ShortStorage", StoredType::kOther},
      {"torch.CharStorage", StoredType::kOther},
      {"torch.ByteStorage", StoredType::kOther},
      {"torch.BoolStorage", StoredType::kOther}};
  return kTypes;
}

[[noreturn]] void refuse_file(const fs::path& path, const std::string& why) {
  fail(ExitCode::kData, "{} is no checkpoint that strata reads: {}", path.string(), why);
}

/// A machine with a stack that builds the objects. Source: CPython, Lib/pickletools.py; PyTorch,
/// torch/serialization.py.
class PickleReader {
 public:
  PickleReader(const fs::path& path, std::span<const std::byte> bytes)
      : path_(path), bytes_(bytes) {}

  /// Fills `objects` and returns the index of the one that the pickle is.
  std::size_t read(std::deque<Object>& objects) {
    while (step()) {
    }
    static_cast<void>(top());
    objects = std::move(objects_);
    return stack_.back();
  }

 private:
  enum Opcode : unsigned char {
    kMark = '(',
    kStop = '.',
    kBinFloat = 'G',
    kBinInt = 'J',
    kBinInt1 = 'K',
    kBinInt2 = 'M',
    kNone = 'N',
    kBinPersistentId = 'Q',
    kReduce = 'R',
    kBinUnicode = 'X',
    kAppend = 'a',
    kBuild = 'b',
    kGlobal = 'c',
    kAppends = 'e',
    kBinGet = 'h',
    kLongBinGet = 'j',
    kBinPut = 'q',
    kLongBinPut = 'r',
    kSetItem = 's',
    kTuple = 't',
    kSetItems = 'u',
    kEmptyDict = '}',
    kEmptyList = ']',
    kEmptyTuple = ')',
    kProtocol = 0x80,
    kTuple1 = 0x85,
    kTuple2 = 0x86,
    kTuple3 = 0x87,
    kNewTrue = 0x88,
    kNewFalse = 0x89,
    kLong1 = 0x8a,
    kShortBinUnicode = 0x8c
  };

  [[nodiscard]] const Object& at(std::size_t index) const { return objects_[index]; }

  [[noreturn]] void refuse_pickle(const std::string& why) const {
    refuse_file(path_, fmt::format("byte {} of its pickle {}", place_, why));
  }

  std::span<const std::byte> take(std::size_t count) {
    if (count > bytes_.size() - place_) {
      refuse_pickle("is the last, and more were expected: it is truncated");
    }
    place_ += count;
    return bytes_.subspan(place_ - count, count);
  }
  template <typename T>
  T take_number() {
    return load<T>(take(sizeof(T)).data());
  }
  std::string take_text(std::size_t count) {
    const std::span<const std::byte> text = take(count);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  std::string take_line() {
    const auto rest = bytes_.subspan(place_);
    const auto end = std::ranges::find(rest, std::byte{'\n'});
    if (end == rest.end()) {
      refuse_pickle("begins a name without an end");
    }
    std::string line = take_text(static_cast<std::size_t>(end - rest.begin()));
    take(1);
    return line;
  }

  void push(Object object) {
    stack_.push_back(objects_.size());
    objects_.push_back(std::move(object));
  }
  std::size_t pop() {
    if (stack_.empty() || (!marks_.empty() && stack_.size() == marks_.back())) {
      refuse_pickle("takes an object from an empty stack");
    }
    const std::size_t index = stack_.back();
    stack_.pop_back();
    return index;
  }
  Object& top() {
    if (stack_.empty()) {
      refuse_pickle("needs an object on an empty stack");
    }
    return objects_[stack_.back()];
  }
  Object& top(Kind kind) {
    if (top().kind != kind) {
      refuse_pickle("adds to an object that is no list or dict");
    }
    return top();
  }
  std::vector<std::size_t> pop_to_mark() {
    if (marks_.empty()) {
      refuse_pickle("needs a mark that is not there");
    }
    const auto mark = static_cast<std::ptrdiff_t>(marks_.back());
    marks_.pop_back();
    std::vector<std::size_t> items(stack_.begin() + mark, stack_.end());
    stack_.resize(static_cast<std::size_t>(mark));
    return items;
  }
  void push_tuple(std::size_t count) {
    std::vector<std::size_t> items(count);
    for (std::size_t i = count; i-- > 0;) {
      items[i] = pop();
    }
    push({.kind = Kind::kTuple, .items = std::move(items)});
  }
  void add(Kind kind, const std::vector<std::size_t>& items) {
    Object& object = top(kind);
    if (kind == Kind::kDict && items.size() % 2 != 0) {
      refuse_pickle("sets a key without a value");
    }
    object.items.insert(object.items.end(), items.begin(), items.end());
  }

  void push_global() {
    const std::string module = take_line();
    const std::string name = module + "." + take_line();
    if (name != kRebuildTensor && name != kOrderedDict && !storage_types().contains(name)) {
      refuse_file(
          path_,
          fmt::format("its pickle refers to {}, and strata reads plain values and tensors only, "
                      "and executes nothing; {}",
                      printable(name), kSaveAnew));
    }
    push({.kind = Kind::kName, .text = name});
  }

  void push_storage() {
    const Object& id = at(pop());
    const auto item = [&](std::size_t index) -> const Object& { return at(id.items[index]); };
    if (id.kind != Kind::kTuple || id.items.size() < 5 || item(0).text != "storage" ||
        item(1).kind != Kind::kName || !storage_types().contains(item(1).text) ||
        item(2).kind != Kind::kText) {
      refuse_pickle("refers to something else than a tensor's storage");
    }
    push(
        {.kind = Kind::kStorage, .items = {id.items[2]}, .type = storage_types().at(item(1).text)});
  }

  std::vector<std::int64_t> integers(const Object& tuple) const {
    std::vector<std::int64_t> values;
    if (tuple.items.size() > Shape::kMaxRank) {
      refuse_pickle(fmt::format("has a tensor of {} dimensions, at most {} were expected",
                                tuple.items.size(), Shape::kMaxRank));
    }
    for (const std::size_t index : tuple.items) {
      if (tuple.kind != Kind::kTuple || at(index).kind != Kind::kInteger || at(index).integer < 0) {
        refuse_pickle("has a shape that is no tuple of whole numbers from 0");
      }
      values.push_back(at(index).integer);
    }
    return values;
  }

  void reduce() {
    const std::size_t arguments_index = pop();
    const std::size_t name_index = pop();
    const Object& arguments = at(arguments_index);
    const Object& name = at(name_index);
    if (name.kind == Kind::kName && name.text == kOrderedDict && arguments.items.empty()) {
      push({.kind = Kind::kDict});
      return;
    }
    if (name.kind != Kind::kName || name.text != kRebuildTensor || arguments.kind != Kind::kTuple ||
        arguments.items.size() < 4) {
      refuse_pickle("builds something else than an ordered dict or a tensor");
    }
    const Object& storage = at(arguments.items[0]);
    const Object& offset = at(arguments.items[1]);
    if (storage.kind != Kind::kStorage || offset.kind != Kind::kInteger || offset.integer < 0) {
      refuse_pickle("builds a tensor without a storage or with a negative offset");
    }
    Object tensor{.kind = Kind::kTensor, .items = storage.items, .type = storage.type};
    tensor.offset = offset.integer;
    tensor.shape = integers(at(arguments.items[2]));
    const std::vector<std::int64_t> strides = integers(at(arguments.items[3]));
    std::int64_t stride = 1;
    for (std::size_t d = tensor.shape.size(); d-- > 0;) {
      if (strides.size() != tensor.shape.size() || (tensor.shape[d] > 1 && strides[d] != stride) ||
          __builtin_mul_overflow(stride, tensor.shape[d], &stride)) {
        refuse_pickle(fmt::format("has a tensor that is not contiguous; {}", kSaveAnew));
      }
    }
    push(std::move(tensor));
  }

  void push_long() {
    const std::size_t count = take_number<std::uint8_t>();
    std::int64_t value = 0;
    if (count > sizeof value) {
      refuse_pickle("has a whole number of more than 64 bits");
    }
    const std::span<const std::byte> digits = take(count);
    if (count > 0 && (digits.back() & std::byte{0x80}) != std::byte{0}) {
      value = -1;
    }
    std::memcpy(&value, digits.data(), count);
    push({.kind = Kind::kInteger, .integer = value});
  }

  void get(std::uint32_t number) {
    const auto found = memo_.find(number);
    if (found == memo_.end()) {
      refuse_pickle(fmt::format("reads entry {} of the memo, which is not there", number));
    }
    stack_.push_back(found->second);
  }
  void put(std::uint32_t number) {
    static_cast<void>(top());
    memo_[number] = stack_.back();
  }

  /// Executes one opcode; false after the last.
  bool step() {
    const auto opcode = take_number<std::uint8_t>();
    switch (opcode) {
      case kProtocol:
        take(1);
        break;
      case kStop:
        return false;
      case kMark:
        marks_.push_back(stack_.size());
        break;
      case kNone:
        push({});
        break;
      case kNewTrue:
      case kNewFalse:
        push({.kind = Kind::kTruth, .integer = opcode == kNewTrue ? 1 : 0});
        break;
      case kBinInt:
        push({.kind = Kind::kInteger, .integer = take_number<std::int32_t>()});
        break;
      case kBinInt1:
        push({.kind = Kind::kInteger, .integer = take_number<std::uint8_t>()});
        break;
      case kBinInt2:
        push({.kind = Kind::kInteger, .integer = take_number<std::uint16_t>()});
        break;
      case kLong1:
        push_long();
        break;
      case kBinFloat: {
        const auto bits = __builtin_bswap64(take_number<std::uint64_t>());
        push({.kind = Kind::kNumber, .number = std::bit_cast<double>(bits)});
        break;
      }
      case kBinUnicode:
        push({.kind = Kind::kText, .text = take_text(take_number<std::uint32_t>())});
        break;
      case kShortBinUnicode:
        push({.kind = Kind::kText, .text = take_text(take_number<std::uint8_t>())});
        break;
      case kEmptyDict:
        push({.kind = Kind::kDict});
        break;
      case kEmptyList:
        push({.kind = Kind::kList});
        break;
      case kEmptyTuple:
        push({.kind = Kind::kTuple});
        break;
      case kTuple:
        push({.kind = Kind::kTuple, .items = pop_to_mark()});
        break;
      case kTuple1:
        push_tuple(1);
        break;
      case kTuple2:
        push_tuple(2);
        break;
      case kTuple3:
        push_tuple(3);
        break;
      case kAppend: {
        const std::size_t value = pop();
        add(Kind::kList, {value});
        break;
      }
      case kAppends:
        add(Kind::kList, pop_to_mark());
        break;
      case kSetItem: {
        const std::size_t value = pop();
        const std::size_t key = pop();
        add(Kind::kDict, {key, value});
        break;
      }
      case kSetItems:
        add(Kind::kDict, pop_to_mark());
        break;
      case kBuild:
        pop();  // attributes of an ordered dict: the versions of its modules
        static_cast<void>(top(Kind::kDict));
        break;
      case kGlobal:
        push_global();
        break;
      case kBinPersistentId:
        push_storage();
        break;
      case kReduce:
        reduce();
        break;
      case kBinPut:
        put(take_number<std::uint8_t>());
        break;
      case kLongBinPut:
        put(take_number<std::uint32_t>());
        break;
      case kBinGet:
        get(take_number<std::uint8_t>());
        break;
      case kLongBinGet:
        get(take_number<std::uint32_t>());
        break;
      default:
        refuse_pickle(fmt::format("has the opcode 0x{:02x}, which tensors do not need", opcode));
    }
    return true;
  }

  const fs::path& path_;
  std::span<const std::byte> bytes_;
  std::size_t place_ = 0;
  std::deque<Object> objects_;
  std::vector<std::size_t> stack_;
  std::vector<std::size_t> marks_;  ///< sizes of the stack
  std::map<std::uint32_t, std::size_t> memo_;
};

}  // namespace

Pickle::Pickle(fs::path path, std::span<const std::byte> bytes) : path_(std::move(path)) {
  whole_ = PickleReader(path_, bytes).read(objects_);
}

const Object* Pickle::find(const Object& dict, std::string_view key) const {
  for (std::size_t i = 0; dict.kind == Kind::kDict && i + 1 < dict.items.size(); i += 2) {
    if (at(dict.items[i]).kind == Kind::kText && at(dict.items[i]).text == key) {
      return &at(dict.items[i + 1]);
    }
  }
  return nullptr;
}

void Pickle::refuse(const std::string& why) const {
  refuse_file(path_, why);
}

}  // namespace strata::io
