#include "strata/train/metrics.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "strata/core/error.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"

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

[[noreturn]] void refuse(const std::filesystem::path& path) {
  fail(ExitCode::kUsage, "cannot write {}: {}; free some space or choose another run.dir",
       path.string(), std::strerror(errno));
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

MetricsFile::MetricsFile(const std::filesystem::path& path, const MetricsKept& keep) {
  io::replace_text(path, kept_lines(text_in(path), keep));
  file_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
  if (file_ < 0) {
    refuse(path);
  }
}

MetricsFile::~MetricsFile() {
  sync();
  ::close(file_);
}

void MetricsFile::sync() {
  failed_ = ::fsync(file_) != 0 || failed_;
}

void MetricsFile::line(const std::string& text) {
  const std::string whole = (torn_ ? "\n" : "") + text + "\n";
  const off_t before = ::lseek(file_, 0, SEEK_END);
  if (io::write_fully(file_, whole)) {
    torn_ = false;
    return;
  }
  failed_ = true;
  // Removes the part that was written; else the next line begins with a line feed.
  torn_ = ::ftruncate(file_, before) != 0 || torn_;
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
  line(object.dump());
}

void MetricsFile::write(const CheckpointRecord& r) {
  nlohmann::ordered_json object;
  object["kind"] = "checkpoint";
  object["step"] = r.step;
  object["bytes"] = r.bytes;
  object["blocked_seconds"] = r.blocked_seconds;
  object["write_seconds"] = r.write_seconds;
  line(object.dump());
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
  line(object.dump());
}

}  // namespace strata::train
