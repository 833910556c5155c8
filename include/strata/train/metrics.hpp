#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "strata/train/step_times.hpp"

namespace strata::train {

/// One training step's line.
struct TrainRecord {
  std::int64_t step = 0;
  double loss = 0.0;
  double grad_norm = 0.0;
  double learning_rate = 0.0;
  double samples_per_second = 0.0;
  /// For language models.
  std::optional<double> tokens_per_second;
  /// Share of the ranks' peak that the model's matrix products reach; where the peak is known.
  std::optional<double> mfu;
  StepTimes times;
};

/// One evaluation's line.
struct EvaluateRecord {
  std::int64_t step = 0;
  double loss = 0.0;
  std::optional<double> accuracy;
  /// For language models.
  std::optional<double> perplexity;
};

/// The last steps whose lines stay in a metrics file that is continued.
struct MetricsKept {
  std::int64_t training_step = 0;
  std::int64_t evaluation_step = 0;
};

/// The file metrics.jsonl: one JSON object a line; numbers read back to the same bits.
class MetricsFile {
 public:
  /// Opens the file to append, after dropping lines of later steps than those kept and a last line
  /// that was cut short. Throws: Error(kUsage) where it cannot be written.
  MetricsFile(const std::filesystem::path& path, const MetricsKept& keep);

  /// Whether a line could not be written, as on a full disk; the run goes on without it.
  [[nodiscard]] bool failed() const { return failed_; }

  void write(const TrainRecord& record);
  void write(const EvaluateRecord& record);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  void line(const std::string& text);

  std::unique_ptr<std::FILE, Close> file_;
  bool failed_ = false;
};

}  // namespace strata::train
