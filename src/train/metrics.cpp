#include "strata/train/metrics.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>

#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"

namespace strata::train {
namespace {

constexpr const char* kEvaluateKind = "evaluate";

/// The complete lines of the steps that are kept.
std::string kept_lines(const std::filesystem::path& path, const MetricsKept& keep) {
  std::ifstream in(path);
  std::string kept;
  for (std::string text; std::getline(in, text);) {
    const nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
    if (!object.is_object()) {
      continue;
    }
    const bool evaluation = object.value("kind", "") == kEvaluateKind;
    if (object.value("step", std::int64_t{0}) <=
        (evaluation ? keep.evaluation_step : keep.training_step)) {
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

MetricsFile::MetricsFile(const std::filesystem::path& path, const MetricsKept& keep) {
  const std::string kept = kept_lines(path, keep);
  const std::filesystem::path fresh = path.string() + ".new";
  {
    std::ofstream out(fresh, std::ios::trunc);
    out << kept;
    if (!out.flush()) {
      refuse(fresh);
    }
  }
  std::error_code error;
  std::filesystem::rename(fresh, path, error);
  file_.reset(std::fopen(path.c_str(), "a"));
  if (error || !file_) {
    refuse(path);
  }
}

void MetricsFile::line(const std::string& text) {
  const bool written =
      std::fprintf(file_.get(), "%s\n", text.c_str()) >= 0 && std::fflush(file_.get()) == 0;
  failed_ = failed_ || !written;
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
  object["compute_seconds"] = r.times.compute;
  object["communication_seconds"] = r.times.communication;
  object["bubble_seconds"] = r.times.bubble;
  object["data_seconds"] = r.times.data;
  object["other_seconds"] = r.times.other();
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
