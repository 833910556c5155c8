#include "strata/train/metrics.hpp"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"

#include "event_file.hpp"

namespace strata::train {
namespace {

constexpr const char* kEvaluateKind = "evaluate";

/// The complete lines of the steps that are kept.
std::string kept_lines(const std::string& all, const MetricsKept& keep) {
  std::istringstream in(all);
  std::string kept;
  for (std::string text; std::getline(in, text);) {
    const auto line = metrics_line_of(text);
    if (line &&
        line->step <= (line->kind == kEvaluateKind ? keep.evaluation_step : keep.training_step)) {
      kept += text + "\n";
    }
  }
  return kept;
}

/// Seconds since 1970, to the millisecond.
double time_of_day() {
  using std::chrono::milliseconds;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<milliseconds>(now).count()) / 1e3;
}

}  // namespace

std::string text_in(const std::filesystem::path& path) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 34;
  return io::read_text(path, ExitCode::kData, kMostBytes).value_or("");
}

std::optional<MetricsLine> metrics_line_of(const std::string& text) {
  const auto object = io::parse_json(text);
  if (!object || !object->is_object()) {
    return std::nullopt;
  }
  const nlohmann::json kind = object->value("kind", nlohmann::json());
  return MetricsLine{.kind = kind.is_string() ? kind.get<std::string>() : "",
                     .step = io::integer_in(object->value("step", nlohmann::json())).value_or(0)};
}

std::optional<EvaluateRecord> evaluate_record_of(const std::string& text) {
  if (text.find(kEvaluateKind) == std::string::npos) {
    return std::nullopt;  // most lines of a long file, without parsing them
  }
  const auto line = metrics_line_of(text);
  if (!line || line->kind != kEvaluateKind) {
    return std::nullopt;
  }
  const nlohmann::json object = io::parse_json(text).value();
  const auto number = [&](const char* key) {
    const nlohmann::json value = object.value(key, nlohmann::json());
    return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
  };
  const std::optional<double> loss = number("loss");
  return loss ? std::optional(EvaluateRecord{.step = line->step,
                                             .loss = *loss,
                                             .accuracy = number("accuracy"),
                                             .perplexity = number("perplexity")})
              : std::nullopt;
}

std::int64_t last_metrics_step(const std::filesystem::path& path) {
  std::istringstream in(text_in(path));
  std::int64_t last = 0;
  for (std::string text; std::getline(in, text);) {
    const auto line = metrics_line_of(text);
    last = std::max(last, line ? line->step : 0);
  }
  return last;
}

MetricsFile::MetricsFile(const std::filesystem::path& path, const MetricsKept& keep,
                         const std::optional<EventsWanted>& events)
    : MetricsFile(path, kept_lines(text_in(path), keep), events) {}

MetricsFile::MetricsFile(const std::filesystem::path& path, const std::string& kept,
                         const std::optional<EventsWanted>& events)
    : lines_(path, kept) {
  if (events) {
    const double now = time_of_day();
    const std::filesystem::path file = new_event_file(events->directory, now);
    events_.emplace(file, first_events(now, events->config_text) + events_of(kept, now));
    delete_other_event_files(file);
  }
}

void MetricsFile::sync() {
  const bool synced = lines_.sync();
  failed_ = !synced || (events_ && !events_->sync()) || failed_;
}

void MetricsFile::line(nlohmann::ordered_json object) {
  object["time"] = time_of_day();
  const std::string text = object.dump() + "\n";
  const bool written = lines_.append(text);
  failed_ = !written || (events_ && !events_->append(events_of(text, 0.0))) || failed_;
}

void MetricsFile::write(const TrainRecord& r) {
  nlohmann::ordered_json object;
  object["kind"] = "train";
  object["step"] = r.step;
  object["loss"] = r.loss;
  object["grad_norm"] = r.grad_norm;
  object["learning_rate"] = r.learning_rate;
  object["step_seconds"] = r.times.step;
  object["samples_per_second"] = r.samples_per_second;
  if (r.tokens_per_second) {
    object["tokens_per_second"] = *r.tokens_per_second;
  }
  if (r.mfu) {
    object["mfu"] = *r.mfu;
  }
  for (const auto& [name, seconds] : named_parts(r.times)) {
    object[name] = seconds;
  }
  if (r.skipped) {
    object["skipped"] = true;
  }
  line(std::move(object));
}

void MetricsFile::write(const CheckpointRecord& r) {
  nlohmann::ordered_json object;
  object["kind"] = "checkpoint";
  object["step"] = r.step;
  object["bytes"] = r.bytes;
  object["blocked_seconds"] = r.blocked_seconds;
  object["write_seconds"] = r.write_seconds;
  line(std::move(object));
}

void MetricsFile::write(const EvaluateRecord& r) {
  nlohmann::ordered_json object;
  object["kind"] = kEvaluateKind;
  object["step"] = r.step;
  object["loss"] = r.loss;
  if (r.accuracy) {
    object["accuracy"] = *r.accuracy;
  }
  if (r.perplexity) {
    object["perplexity"] = *r.perplexity;
  }
  line(std::move(object));
}

}  // namespace strata::train
