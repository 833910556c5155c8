#include "strata/io/json.hpp"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

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

}  // namespace

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
