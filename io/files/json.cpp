#include "strata/io/json.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/core/utf8.hpp"

namespace strata::io {
namespace {

using nlohmann::json;

/// Builds a document as it is parsed. nlohmann's own parser with a callback looks at all members of
/// an object after each object in it, which is quadratic.
class Builder : public json::json_sax_t {
 public:
  explicit Builder(RepeatedKeys repeated) : repeated_(repeated) {}

  [[nodiscard]] json take() { return std::move(whole_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(json::number_integer_t value) override { return add(value); }
  bool number_unsigned(json::number_unsigned_t value) override { return add(value); }
  bool number_float(json::number_float_t value, const std::string& /*text*/) override {
    return add(value);
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(json::binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*elements*/) override { return open(json::object()); }
  bool start_array(std::size_t /*elements*/) override { return open(json::array()); }
  bool key(std::string& key) override {
    const auto [member, is_new] = open_.back()->emplace(std::move(key), nullptr);
    member_ = &*member;
    return is_new || repeated_ == RepeatedKeys::kLastCounts;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const json::exception& /*error*/) override {
    return false;
  }

 private:
  bool add(json value) {
    place() = std::move(value);
    return true;
  }
  bool open(json container) {
    constexpr std::size_t kMostDepth = 64;
    if (open_.size() == kMostDepth) {
      return false;
    }
    json& here = place();
    here = std::move(container);
    open_.push_back(&here);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  /// Where the next value goes.
  json& place() {
    if (open_.empty()) {
      return whole_;
    }
    return open_.back()->is_array() ? open_.back()->emplace_back(nullptr) : *member_;
  }

  RepeatedKeys repeated_;
  json whole_;
  std::vector<json*> open_;  ///< the containers around the next value
  json* member_ = nullptr;   ///< of the last key
};

/// Reads an object and keeps one text of it. What it does not read may be JSON all the same:
/// numbers that may be too large, deep nesting.
class OneTextReader {
 public:
  OneTextReader(std::string_view object, std::string_view name) : json_(object), name_(name) {}

  [[nodiscard]] bool read() {
    skip_space();
    if (!take('{') || !members(0)) {
      return false;
    }
    skip_space();
    return at_ == json_.size() && found_;
  }
  [[nodiscard]] std::string take_text() { return std::move(text_); }

 private:
  static constexpr int kMostDepth = 32;

  [[nodiscard]] char next() const { return at_ < json_.size() ? json_[at_] : '\0'; }
  [[nodiscard]] bool take(char wanted) {
    const bool is_there = next() == wanted;
    at_ += is_there ? 1 : 0;
    return is_there;
  }
  void skip_space() {
    while (next() == ' ' || next() == '\t' || next() == '\n' || next() == '\r') {
      ++at_;
    }
  }

  /// Behind the brace.
  [[nodiscard]] bool members(int depth) {
    skip_space();
    if (take('}')) {
      return true;
    }
    do {
      skip_space();
      if (!string(key_)) {
        return false;
      }
      const bool wanted = depth == 0 && key_ == name_;
      skip_space();
      if (!take(':')) {
        return false;
      }
      skip_space();
      if (wanted ? !string(text_) : !value(depth)) {
        return false;
      }
      found_ = found_ || wanted;
      skip_space();
    } while (take(','));
    return take('}');
  }

  [[nodiscard]] bool elements(int depth) {
    skip_space();
    if (take(']')) {
      return true;
    }
    do {
      skip_space();
      if (!value(depth)) {
        return false;
      }
      skip_space();
    } while (take(','));
    return take(']');
  }

  [[nodiscard]] bool value(int depth) {
    if (next() == '"') {
      return string(unused_);
    }
    if (take('{')) {
      return depth < kMostDepth && members(depth + 1);
    }
    if (take('[')) {
      return depth < kMostDepth && elements(depth + 1);
    }
    for (const std::string_view word : {"true", "false", "null"}) {
      if (json_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return true;
      }
    }
    return number();
  }

  [[nodiscard]] std::size_t digits() {
    const std::size_t first = at_;
    while (next() >= '0' && next() <= '9') {
      ++at_;
    }
    return at_ - first;
  }

  [[nodiscard]] bool number() {
    constexpr std::size_t kMostDigits = 300;  // of a finite one
    at_ += next() == '-' ? 1 : 0;
    const bool zero = next() == '0';
    const std::size_t whole = digits();
    return whole > 0 && whole < kMostDigits && (!zero || whole == 1) &&
           (!take('.') || digits() > 0) && next() != 'e' && next() != 'E';
  }

  /// Of the bytes from at_ on: how many are text as it stands.
  [[nodiscard]] std::size_t plain() const {
    constexpr std::uint64_t kOnes = ~std::uint64_t{0} / 255;
    constexpr std::uint64_t kHigh = kOnes << 7U;
    // A byte that is 0 gets its high bit.
    const auto has_zero = [](std::uint64_t word) { return (word - kOnes) & ~word & kHigh; };
    std::size_t end = at_;
    for (; end + sizeof(std::uint64_t) <= json_.size(); end += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, json_.data() + end, sizeof word);
      const bool stops = (has_zero(word ^ kOnes * '"') | has_zero(word ^ kOnes * '\\') |
                          ((word - kOnes * ' ') & ~word & kHigh)) != 0;
      if (stops) {
        break;
      }
    }
    const auto is_plain = [](char byte) {
      return byte != '"' && byte != '\\' && static_cast<unsigned char>(byte) >= ' ';
    };
    while (end < json_.size() && is_plain(json_[end])) {
      ++end;
    }
    return end - at_;
  }

  /// Replaces `text` by a string.
  [[nodiscard]] bool string(std::string& text) {
    if (!take('"')) {
      return false;
    }
    text.clear();
    while (true) {
      const std::size_t count = plain();
      text.append(json_, at_, count);
      at_ += count;
      if (take('"')) {
        break;
      }
      if (!take('\\') || !escape(text)) {
        return false;
      }
    }
    return utf8_prefix(text).rest == Utf8Prefix::Rest::kNothing;
  }

  [[nodiscard]] bool escape(std::string& text) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
    const char letter = next();
    ++at_;
    if (const std::size_t which = kLetters.find(letter); which != std::string_view::npos) {
      text += kMeant[which];
      return true;
    }
    std::uint32_t code = 0;
    if (letter != 'u' || !hexadecimal(code)) {
      return false;
    }
    if (code >= 0xD800 && code < 0xE000) {  // UTF-16's surrogates come in pairs
      std::uint32_t low = 0;
      if (code >= 0xDC00 || !take('\\') || !take('u') || !hexadecimal(low) || low < 0xDC00 ||
          low >= 0xE000) {
        return false;
      }
      code = 0x10000 + ((code - 0xD800) << 10U) + (low - 0xDC00);
    }
    append_utf8(code, text);
    return true;
  }

  [[nodiscard]] bool hexadecimal(std::uint32_t& code) {
    constexpr std::size_t kHexDigits = 4;
    constexpr int kBase = 16;
    const std::string_view digits = json_.substr(std::min(at_, json_.size()), kHexDigits);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), code, kBase);
    at_ += digits.size();
    return digits.size() == kHexDigits && error == std::errc() &&
           end == digits.data() + digits.size();
  }

  std::string_view json_;
  std::string_view name_;
  std::size_t at_ = 0;
  std::string key_;
  std::string text_;
  std::string unused_;
  bool found_ = false;
};

}  // namespace

std::optional<std::string> text_member(std::string_view object, std::string_view name) {
  OneTextReader member(object, name);
  return member.read() ? std::optional(member.take_text()) : std::nullopt;
}

std::optional<json> parse_json(std::string_view text, RepeatedKeys repeated) {
  Builder builder(repeated);
  return json::sax_parse(text, &builder) ? std::optional(builder.take()) : std::nullopt;
}

std::optional<std::int64_t> integer_in(const json& value) {
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<std::int64_t>(value.get<std::uint64_t>())
                        : value.is_number_integer();
  return fits ? std::optional(value.get<std::int64_t>()) : std::nullopt;
}

std::int64_t integer_of(const json& value) {
  const std::optional<std::int64_t> integer = integer_in(value);
  if (!integer) {
    throw std::out_of_range(value.dump() + " is no whole number of 64 bits");
  }
  return *integer;
}

}  // namespace strata::io
