#include "layer_line.hpp"

#include <limits>

#include "strata/core/text.hpp"

namespace strata::nn {
namespace {

constexpr std::int64_t kMostCount = std::numeric_limits<std::int32_t>::max();

}  // namespace

LayerLine::LayerLine(std::string line) : line_(std::move(line)) {
  const std::vector<std::string> words = split_words(line_);
  if (words.empty()) {
    refuse("it names no layer");
  }
  kind_ = words.front();
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    if (equals == std::string::npos) {
      values_.push_back(words[i]);
    } else {
      const std::string key = words[i].substr(0, equals);
      if (!options_.emplace(key, words[i].substr(equals + 1)).second) {
        refuse(fmt::format("{} is given twice; keep one", key));
      }
    }
  }
}

std::string LayerLine::take_value() {
  return next_value_ < values_.size() ? values_[next_value_++] : std::string();
}

std::string LayerLine::take_option(const std::string& key, const std::string& otherwise) {
  known_options_.push_back(key);
  const auto found = options_.find(key);
  if (found == options_.end()) {
    return otherwise;
  }
  std::string value = found->second;
  options_.erase(found);
  return value;
}

std::int64_t LayerLine::take_count(std::string_view what) {
  const std::string text = take_value();
  std::int64_t count = 0;
  if (!parse_int64(text, count) || count < 1 || count > kMostCount) {
    refuse(
        fmt::format("it needs {}, a whole number from 1 to {}, as its first value; it has \"{}\"",
                    what, kMostCount, text));
  }
  return count;
}

double LayerLine::take_number(std::string_view what) {
  const std::string text = take_value();
  double number = 0.0;
  if (!parse_double(text, number)) {
    refuse(fmt::format("it needs {} as its first value; it has \"{}\"", what, text));
  }
  return number;
}

double LayerLine::take_option_number(const std::string& key, double otherwise) {
  const std::string text = take_option(key, "");
  double number = otherwise;
  if (!text.empty() && !parse_double(text, number)) {
    refuse(fmt::format("{} is \"{}\", it must be a number", key, text));
  }
  return number;
}

std::int64_t LayerLine::take_option_count(const std::string& key, std::int64_t otherwise) {
  const std::string text = take_option(key, "");
  std::int64_t count = otherwise;
  if (!text.empty() && (!parse_int64(text, count) || count < 1 || count > kMostCount)) {
    refuse(
        fmt::format("{} is \"{}\", it must be a whole number from 1 to {}", key, text, kMostCount));
  }
  return count;
}

std::int64_t LayerLine::take_option_count_or_none(const std::string& key, std::int64_t otherwise) {
  const auto found = options_.find(key);
  if (found != options_.end() && found->second == "none") {
    known_options_.push_back(key);
    options_.erase(found);
    return 0;
  }
  return take_option_count(key, otherwise);
}

void LayerLine::finish() const {
  if (next_value_ < values_.size()) {
    refuse(fmt::format("\"{}\" is not understood", values_[next_value_]));
  }
  if (!options_.empty()) {
    const std::string& key = options_.begin()->first;
    refuse(fmt::format("{} has no option \"{}\"; the nearest is \"{}\"", kind_, key,
                       nearest(key, known_options_)));
  }
}

void LayerLine::refuse(std::string_view why) const {
  fail(ExitCode::kUsage, "model.layer \"{}\": {}", line_, why);
}

}  // namespace strata::nn
