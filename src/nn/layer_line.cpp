#include "strata/nn/layer_line.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/text.hpp"
#include "strata/nn/adapters.hpp"

namespace strata::nn {
namespace {

constexpr std::int64_t kMostCount = std::numeric_limits<std::int32_t>::max();

/// Height and width from "3" or "3x5"; nothing for any other text.
std::optional<std::array<std::int64_t, 2>> window_of(std::string_view text) {
  const std::size_t by = text.find('x');
  const std::string_view height = text.substr(0, by);
  const std::string_view width = by == std::string_view::npos ? height : text.substr(by + 1);
  std::array<std::int64_t, 2> window{};
  if (!parse_int64(height, window[0]) || !parse_int64(width, window[1]) || window[0] < 1 ||
      window[1] < 1 || window[0] > kMostCount || window[1] > kMostCount) {
    return std::nullopt;
  }
  return window;
}

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

std::optional<std::string> LayerLine::take_given(const std::string& key) {
  known_options_.push_back(key);
  const auto found = options_.find(key);
  if (found == options_.end()) {
    return std::nullopt;
  }
  std::string value = std::move(found->second);
  options_.erase(found);
  return value;
}

ops::Activation LayerLine::take_relu() {
  const std::string activation = take_value();
  if (!activation.empty() && activation != "relu") {
    refuse(fmt::format("only relu can follow on the line of {}; give \"{}\" a line of its own",
                       kind_, activation));
  }
  return activation.empty() ? ops::Activation::kNone : ops::Activation::kRelu;
}

std::string LayerLine::take_option(const std::string& key, const std::string& otherwise) {
  return take_given(key).value_or(otherwise);
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

double LayerLine::take_probability(std::string_view what) {
  const std::string text = take_value();
  double number = 0.0;
  if (!parse_double(text, number) || !std::isfinite(number)) {
    refuse(
        fmt::format("it needs {}, a finite number, as its first value; it has \"{}\"", what, text));
  }
  check_probability(what, number);
  return number;
}

std::array<std::int64_t, 2> LayerLine::take_window(std::string_view what) {
  const std::string text = take_value();
  const auto window = window_of(text);
  if (!window) {
    refuse(
        fmt::format("it needs {} as its next value, one whole number from 1 on, as \"3\", or "
                    "height and width, as \"3x5\"; it has \"{}\"",
                    what, text));
  }
  return *window;
}

double LayerLine::take_option_number(const std::string& key, double otherwise) {
  double number = otherwise;
  const auto text = take_given(key);
  if (text && (!parse_double(*text, number) || !std::isfinite(number))) {
    refuse(fmt::format("{} is \"{}\", it must be a finite number", key, *text));
  }
  return number;
}

double LayerLine::take_option_probability(const std::string& key, double otherwise) {
  const double probability = take_option_number(key, otherwise);
  check_probability(key, probability);
  return probability;
}

void LayerLine::check_probability(std::string_view what, double probability) const {
  if (probability < 0.0 || probability >= 1.0) {
    refuse(fmt::format("{} is {}, it must be at least 0 and below 1", what, probability));
  }
}

std::array<std::int64_t, 2> LayerLine::take_option_window(const std::string& key,
                                                          std::array<std::int64_t, 2> otherwise) {
  const auto text = take_given(key);
  if (!text) {
    return otherwise;
  }
  const auto window = window_of(*text);
  if (!window) {
    refuse(
        fmt::format("{} is \"{}\", it must be one whole number from 1 on, as \"3\", or height and "
                    "width, as \"3x5\"",
                    key, *text));
  }
  return *window;
}

std::int64_t LayerLine::take_option_count(const std::string& key, std::int64_t otherwise,
                                          std::int64_t least) {
  const auto text = take_given(key);
  std::int64_t count = otherwise;
  if (text && (!parse_int64(*text, count) || count < least || count > kMostCount)) {
    refuse(fmt::format("{} is \"{}\", it must be a whole number from {} to {}", key, *text, least,
                       kMostCount));
  }
  return count;
}

std::int64_t LayerLine::take_option_count_or_none(const std::string& key, std::int64_t otherwise) {
  const auto found = options_.find(key);
  if (found == options_.end() || found->second != "none") {
    return take_option_count(key, otherwise);
  }
  known_options_.push_back(key);
  options_.erase(found);
  return 0;
}

void LayerLine::finish() const {
  if (next_value_ < values_.size()) {
    refuse(fmt::format("\"{}\" is not understood", values_[next_value_]));
  }
  if (!options_.empty()) {
    const auto& [key, value] = *options_.begin();
    if (key == "activation" || key == "act") {
      refuse(fmt::format(
          "{0} has no option \"{1}\"; write {2} behind its value, as in \"{0} 128 {2}\", "
          "or on a line of its own",
          kind_, key, value));
    }
    refuse(fmt::format("{} has no option \"{}\"; the nearest is \"{}\"", kind_, key,
                       nearest(key, known_options_)));
  }
}

void LayerLine::refuse(std::string_view why) const {
  fail(ExitCode::kUsage, "model.layer \"{}\": {}", line_, why);
}

std::string line_of_weights(const std::string& line) {
  constexpr std::array<std::string_view, 6> kTraining{
      "dropout=", "deviation=", "output_deviation=", "vocabulary=", "mask=", "reset_positions="};
  std::vector<std::string> words = split_words(without_adapters(line));
  std::erase_if(words, [&](const std::string& word) {
    return std::ranges::any_of(kTraining, [&](auto start) { return word.starts_with(start); });
  });
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace strata::nn
