#include "strata/pipeline/stage_times.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

namespace strata::pipeline {
namespace {

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

double parse_time(const TimesText& times, const std::string& text) {
  constexpr double kMost = 1e9;
  double value = 0.0;
  if (!parse_double(text, value) || !(value >= 0.0 && value <= kMost)) {
    fail(ExitCode::kUsage, "{} is \"{}\"; each of its numbers must be from 0 to {}, not \"{}\"",
         times.name, times.text, kMost, text);
  }
  return value;
}

/// By stage, then chunk.
std::vector<std::vector<double>> parse_stage_times(const TimesText& times, std::int64_t stages,
                                                   std::int64_t chunks) {
  std::vector<std::vector<double>> all;
  for (const std::string& stage : parts_of(times.text, ',')) {
    std::vector<double>& own = all.emplace_back();
    for (const std::string& chunk : parts_of(stage, '/')) {
      own.push_back(parse_time(times, chunk));
    }
    if (own.size() == 1) {
      own.resize(static_cast<std::size_t>(chunks), own.front());
    }
    if (std::ssize(own) != chunks) {
      fail(ExitCode::kUsage, "{} has {} times with slashes between them for {} chunk{} a rank",
           times.name, own.size(), chunks, chunks == 1 ? "" : "s");
    }
  }
  if (all.size() == 1) {
    all.resize(static_cast<std::size_t>(stages), all.front());
  }
  if (std::ssize(all) != stages) {
    fail(ExitCode::kUsage, "{} has {} times for {} rank{}", times.name, all.size(), stages,
         stages == 1 ? "" : "s");
  }
  return all;
}

}  // namespace

std::vector<double> parse_times(const TimesText& times, std::span<const std::int64_t> counts) {
  std::vector<double> values;
  for (const std::string& text : parts_of(times.text, ',')) {
    values.push_back(parse_time(times, text));
  }
  if (std::ranges::find(counts, std::ssize(values)) == counts.end()) {
    fail(ExitCode::kUsage, "{} has {} numbers, it must have {}", times.name, values.size(),
         fmt::join(counts, " or "));
  }
  return values;
}

std::vector<std::vector<ChunkTimes>> parse_chunk_times(const TimesText& forward,
                                                       const TimesText& backward_input,
                                                       const TimesText& backward_weight,
                                                       std::int64_t stages, std::int64_t chunks) {
  const auto forwards = parse_stage_times(forward, stages, chunks);
  const auto inputs = parse_stage_times(backward_input, stages, chunks);
  const auto weights = parse_stage_times(backward_weight, stages, chunks);
  std::vector<std::vector<ChunkTimes>> times(forwards.size());
  for (std::size_t stage = 0; stage < forwards.size(); ++stage) {
    for (std::size_t chunk = 0; chunk < forwards[stage].size(); ++chunk) {
      times[stage].push_back({.forward_seconds = forwards[stage][chunk],
                              .backward_input_seconds = inputs[stage][chunk],
                              .backward_weight_seconds = weights[stage][chunk]});
    }
  }
  return times;
}

}  // namespace strata::pipeline
