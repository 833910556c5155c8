#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "strata/core/enum_names.hpp"
#include "strata/io/text_file.hpp"
#include "strata/nn/model.hpp"
#include "strata/train/receipts.hpp"
#include "strata/train/step_times.hpp"

namespace strata::train {

/// The line of a training step, or of several: means over `steps` steps, the last of which is
/// `step`.
struct TrainRecord {
  std::int64_t step = 0;
  std::int64_t steps = 1;
  double loss = 0.0;
  double grad_norm = 0.0;
  double learning_rate = 0.0;
  double samples_per_second = 0.0;
  /// For language models.
  std::optional<double> tokens_per_second;
  /// Model FLOP/s utilization: the share of the ranks' peak; only where the peak is known.
  std::optional<double> mfu;
  StepTimes times;
  bool skipped = false;  ///< the weights were not updated
  /// By name.
  std::vector<std::pair<std::string, double>> further;
};

/// The line of an evaluation.
struct EvaluateRecord {
  std::int64_t step = 0;
  double loss = 0.0;
  std::optional<double> accuracy;
  /// For language models.
  std::optional<double> perplexity;
  std::optional<double> margin;  ///< of pairs of answers
  /// Of several data sets: the file and the loss of each.
  std::vector<std::pair<std::string, double>> sets;
};

/// The line of a checkpoint.
struct CheckpointRecord {
  std::int64_t step = 0;
  std::int64_t bytes = 0;                   ///< of all parts
  double blocked_seconds = 0.0;             ///< training waited for the save
  double write_seconds = 0.0;               ///< at work on files: the thread of rank 0
  std::optional<SaveReceipt> receipt = {};  ///< with run.receipts
};

/// What a line of kind "run" tells of the run, beside its steps. Facts of each: docs/formats.md.
enum class RunEvent { kStart, kWarning, kSlow, kMemory, kStopped, kFinished };
constexpr auto enum_names(RunEvent) {
  return names_in_order("start", "warning", "slow", "memory", "stopped", "finished");
}

/// The last steps whose lines remain in a metrics file that a run continues; lines of kind "run"
/// all remain.
struct MetricsKept {
  std::int64_t training_step = 0;
  std::int64_t evaluation_step = 0;
};

/// Where an event file for TensorBoard goes, and what it shows from the start.
struct EventsWanted {
  std::filesystem::path directory;
  std::string config_text;
  const nn::Model* model = nullptr;  ///< whose layers it shows; none where null
};

/// The file metrics.jsonl: one JSON object per line; numbers read back to the same bits. An event
/// file for TensorBoard has the same numbers, and what write_event() adds: it is written anew from
/// the lines, and the added events of the file before, at each start.
class MetricsFile {
 public:
  /// Opens the file to append, after removing lines of later steps and a truncated last line.
  /// Throws: Error(kData) where it exists and cannot be read; Error(kUsage) where it cannot be
  /// written.
  MetricsFile(const std::filesystem::path& path, const MetricsKept& keep,
              const std::optional<EventsWanted>& events = std::nullopt);

  /// The steps up to the last one that is kept whose lines of training the file lacked, as in
  /// "3 to 6, 9"; empty where it lacked none.
  [[nodiscard]] const std::string& missing_steps() const { return missing_steps_; }

  /// Whether writing a line has failed, as on a full disk; the run continues.
  [[nodiscard]] bool failed() const { return failed_; }

  void write(const TrainRecord& record);
  void write(const EvaluateRecord& record);
  void write(const CheckpointRecord& record);
  /// The line's step is that of the line before.
  void write(RunEvent event, const nlohmann::ordered_json& facts);
  /// Adds an event of these values (event_file.hpp), if there are any, to the event file. It
  /// belongs to the step's training or evaluation, whose line follows: without the line it is
  /// dropped at the next start.
  void write_event(std::int64_t step, const std::string& values);
  /// Calls fsync, which a run does before each checkpoint.
  void sync();

 private:
  struct History;

  MetricsFile(const std::filesystem::path& path, const History& kept, std::int64_t step,
              const std::optional<EventsWanted>& events);
  void line(nlohmann::ordered_json object);

  io::AppendedFile lines_;
  std::optional<io::AppendedFile> events_;
  std::string missing_steps_;
  std::int64_t step_;  ///< of the last line
  bool failed_ = false;
};

/// The key of the number of steps of a line of training; without it, it is of one.
inline constexpr const char* kStepsKey = "steps";

/// Lines have numbers of at most so many data sets, each.
inline constexpr std::size_t kMostSets = 32;

/// The kind of lines that belong to no step.
inline constexpr const char* kRunKind = "run";

/// Numbers that readers of metrics files take of a line, and different keys of a kind of lines.
inline constexpr std::size_t kMostMetrics = 128;

/// A line of a metrics file, as all readers see it.
struct MetricsLine {
  struct Number {
    std::string key;
    double value = 0.0;  ///< NaN for null, 1 for true
  };

  std::string kind;  ///< empty where the line has no kind or no step; of kRunKind it is the step of
                     ///< the line before
  std::int64_t step = 0;
  std::vector<Number> numbers;  ///< all, in the line's order
};
/// Nothing for a line that is no JSON object, such as a torn one, or has more than kMostMetrics
/// numbers.
[[nodiscard]] std::optional<MetricsLine> metrics_line_of(std::string_view text);

/// The evaluations in a metrics file. Throws: Error(kData) where it cannot be read.
[[nodiscard]] std::vector<EvaluateRecord> evaluations_in(const std::filesystem::path& path);

/// The greatest step in a metrics file; 0 where there is none.
/// Throws: Error(kData) where the file cannot be read.
[[nodiscard]] std::int64_t last_metrics_step(const std::filesystem::path& path);

}  // namespace strata::train
