#include "strata/train/metrics.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"

#include "record/event_file.hpp"

namespace strata::train {
namespace {

constexpr const char* kTrainKind = "train";
constexpr const char* kEvaluateKind = "evaluate";

/// The first and the last step of a line.
using Steps = std::pair<std::int64_t, std::int64_t>;

/// As in "3 to 6, 9", of the steps from 1 to `last` that are not among `steps`.
std::string gaps_in(std::vector<Steps> steps, std::int64_t last) {
  constexpr int kMostNamed = 8;
  steps.emplace_back(last + 1, last + 1);
  std::ranges::sort(steps);
  std::string text;
  int gaps = 0;
  std::int64_t before = 0;
  for (const auto& [begin, end] : steps) {
    const std::int64_t first = std::exchange(before, std::max(before, end)) + 1;
    if (first >= begin || ++gaps > kMostNamed) {
      continue;
    }
    text += fmt::format("{}{}", text.empty() ? "" : ", ", first);
    text += first + 1 == begin ? "" : fmt::format(" to {}", begin - 1);
  }
  return gaps > kMostNamed ? fmt::format("{} and {} gaps more", text, gaps - kMostNamed) : text;
}

/// Seconds since 1970, to the millisecond.
double time_of_day() {
  using std::chrono::milliseconds;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<milliseconds>(now).count()) / 1e3;
}

}  // namespace

/// The complete lines of the steps that are kept.
struct MetricsFile::History {
  std::string lines;
  std::string missing_steps;

  History(const std::filesystem::path& path, const MetricsKept& keep) {
    std::vector<Steps> steps;
    io::read_lines(path, ExitCode::kData, [&](std::string_view text) {
      const auto line = metrics_line_of(text);
      if (line && (line->kind == kRunKind ||
                   line->step <=
                       (line->kind == kEvaluateKind ? keep.evaluation_step : keep.training_step))) {
        lines += text;
        lines += '\n';
        if (line->kind == kTrainKind && line->step > 0) {
          const auto count = std::ranges::find(line->numbers, kStepsKey, &MetricsLine::Number::key);
          const bool several = count != line->numbers.end() && count->value >= 1.0 &&
                               count->value <= static_cast<double>(line->step);
          const std::int64_t before = several ? std::llround(count->value) - 1 : 0;
          steps.emplace_back(line->step - before, line->step);
        }
      }
    });
    missing_steps = gaps_in(std::move(steps), keep.training_step);
  }
};

std::optional<MetricsLine> metrics_line_of(std::string_view text) {
  const auto object = io::parse_json(text);
  if (!object || !object->is_object()) {
    return std::nullopt;
  }
  const nlohmann::json kind = object->value("kind", nlohmann::json());
  const auto step = io::integer_in(object->value("step", nlohmann::json()));
  MetricsLine line{.kind = kind.is_string() && step ? kind.get<std::string>() : "",
                   .step = step.value_or(0)};
  for (const auto& [key, value] : object->items()) {
    if (value.is_number() || value.is_boolean() || value.is_null()) {
      line.numbers.push_back({key, value.is_null()      ? std::numeric_limits<double>::quiet_NaN()
                                   : value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0)
                                                        : value.get<double>()});
    }
  }
  if (line.numbers.size() > kMostMetrics) {
    return std::nullopt;
  }
  // The parser sorts the keys.
  std::vector<std::pair<std::size_t, MetricsLine::Number>> placed;
  for (MetricsLine::Number& number : line.numbers) {
    placed.emplace_back(text.find(fmt::format("\"{}\"", number.key)), std::move(number));
  }
  std::ranges::sort(placed, {}, [](const auto& number) { return number.first; });
  std::ranges::transform(placed, line.numbers.begin(),
                         [](auto& number) { return std::move(number.second); });
  return line;
}

std::vector<EvaluateRecord> evaluations_in(const std::filesystem::path& path) {
  std::vector<EvaluateRecord> records;
  io::read_lines(path, ExitCode::kData, [&](std::string_view text) {
    if (text.find(kEvaluateKind) == std::string_view::npos) {
      return;  // most lines of a long file, without parsing them
    }
    const auto line = metrics_line_of(text);
    if (!line || line->kind != kEvaluateKind) {
      return;
    }
    const auto number = [&](const char* key) {
      const auto found = std::ranges::find(line->numbers, key, &MetricsLine::Number::key);
      return found != line->numbers.end() && !std::isnan(found->value) ? std::optional(found->value)
                                                                       : std::nullopt;
    };
    if (const auto loss = number("loss")) {
      records.push_back({.step = line->step,
                         .loss = *loss,
                         .accuracy = number("accuracy"),
                         .perplexity = number("perplexity"),
                         .margin = number("margin")});
    }
  });
  return records;
}

std::int64_t last_metrics_step(const std::filesystem::path& path) {
  std::int64_t last = 0;
  io::read_lines(path, ExitCode::kData, [&](std::string_view text) {
    const auto line = metrics_line_of(text);
    last = std::max(last, line && line->kind != kRunKind ? line->step : 0);
  });
  return last;
}

MetricsFile::MetricsFile(const std::filesystem::path& path, const MetricsKept& keep,
                         const std::optional<EventsWanted>& events)
    : MetricsFile(path, History(path, keep), keep.training_step, events) {}

MetricsFile::MetricsFile(const std::filesystem::path& path, const History& kept, std::int64_t step,
                         const std::optional<EventsWanted>& events)
    : lines_(path, kept.lines), missing_steps_(kept.missing_steps), step_(step) {
  if (events) {
    const double now = time_of_day();
    const AddedEvents added = added_events(events->directory);
    const std::filesystem::path file = new_event_file(events->directory, now);
    events_.emplace(file, first_events(now, events->config_text, events->model) +
                              events_of(kept.lines, now, added));
    delete_other_event_files(file);
  }
}

void MetricsFile::sync() {
  const bool synced = lines_.sync();
  failed_ = !synced || (events_ && !events_->sync()) || failed_;
}

void MetricsFile::line(nlohmann::ordered_json object) {
  step_ = object["step"];
  object["time"] = time_of_day();
  // Paths may hold anything.
  const std::string text =
      object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const bool written = lines_.append(text);
  failed_ = !written || (events_ && !events_->append(events_of(text, 0.0))) || failed_;
}

void MetricsFile::write_event(std::int64_t step, const std::string& values) {
  if (events_ && !values.empty()) {
    failed_ = !events_->append(event_of_values(time_of_day(), step, values)) || failed_;
  }
}

void MetricsFile::write(const TrainRecord& r) {
  nlohmann::ordered_json object{{"kind", kTrainKind},
                                {"step", r.step},
                                {"loss", r.loss},
                                {"grad_norm", r.grad_norm},
                                {"learning_rate", r.learning_rate},
                                {"step_seconds", r.times.step},
                                {"samples_per_second", r.samples_per_second}};
  if (r.steps > 1) {
    object[kStepsKey] = r.steps;
  }
  if (r.tokens_per_second) {
    object["tokens_per_second"] = *r.tokens_per_second;
  }
  if (r.mfu) {
    object["mfu"] = *r.mfu;
  }
  for (const auto& [name, seconds] : named_parts(r.times)) {
    object[name] = seconds;
  }
  for (const auto& [name, number] : r.further) {
    object[name] = number;
  }
  if (r.skipped) {
    object["skipped"] = true;
  }
  line(std::move(object));
}

void MetricsFile::write(const CheckpointRecord& r) {
  line({{"kind", "checkpoint"},
        {"step", r.step},
        {"bytes", r.bytes},
        {"blocked_seconds", r.blocked_seconds},
        {"write_seconds", r.write_seconds}});
}

void MetricsFile::write(RunEvent event, const nlohmann::ordered_json& facts) {
  nlohmann::ordered_json object{{"kind", kRunKind}, {"step", step_}, {"event", name_of(event)}};
  object.update(facts);
  line(std::move(object));
}

void MetricsFile::write(const EvaluateRecord& r) {
  nlohmann::ordered_json object{{"kind", kEvaluateKind}, {"step", r.step}, {"loss", r.loss}};
  if (r.accuracy) {
    object["accuracy"] = *r.accuracy;
  }
  if (r.perplexity) {
    object["perplexity"] = *r.perplexity;
  }
  if (r.margin) {
    object["margin"] = *r.margin;
  }
  if (r.sets.size() <= kMostSets) {
    for (const auto& [name, loss] : r.sets) {
      object["loss/" + name] = loss;
    }
  }
  line(std::move(object));
}

}  // namespace strata::train
