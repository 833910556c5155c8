#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/core/ini_lines.hpp"
#include "strata/io/growing_file.hpp"

namespace strata::train {

/// The records of one kind in a metrics file, a column for each key. NaN stands where a record
/// lacks a key or has null; true is 1.
struct MetricsTable {
  std::vector<std::string> keys;  ///< in the order of the first record that has each
  std::vector<std::vector<double>> columns;
  std::size_t records = 0;
  bool has_more = false;  ///< keys, beyond kMostMetrics

  /// Empty where no record has the key.
  [[nodiscard]] std::span<const double> column(std::string_view key) const;
  /// NaN where there is none.
  [[nodiscard]] double last(std::string_view key) const;
  /// Steps that a record is of.
  [[nodiscard]] double steps_of(std::size_t record) const;
  /// The sum over the steps of the last `most` records, whose numbers are means over their steps;
  /// numbers that are missing or not finite do not count.
  struct Sum {
    double total = 0.0;
    double steps = 0.0;

    /// NaN for no steps.
    [[nodiscard]] double mean() const { return total / steps; }
  };
  [[nodiscard]] Sum sum(std::string_view key,
                        std::size_t most = std::numeric_limits<std::size_t>::max()) const;
};

/// What the records of kind "run" tell of all starts of a run.
struct RunHistory {
  std::string began;  ///< time of day of the first start
  std::int64_t starts = 0;
  std::vector<std::string> continued;        ///< a line for each start that continued the run
  std::map<std::int64_t, std::string> slow;  ///< ranks named as slow since the last start
  std::vector<std::string> warnings;         ///< different ones
};

/// A checkpoint in a run directory.
struct CheckpointAge {
  std::int64_t step = 0;
  double seconds = 0.0;  ///< since its commit, by this node's clock and the file system's
};

struct RunState {
  enum class Kind {
    kRunning,
    kFinished,  ///< all steps are done
    kStopped,   ///< ended earlier
    kSilent     ///< the lock's owner is gone or has no heartbeat
  } kind = Kind::kStopped;
  std::string text;  ///< for people
};

/// A run directory as its readers see it, from the files alone, while the run writes to them or
/// afterwards. Format: docs/formats.md, "Run directory".
class RunView {
 public:
  /// Throws: Error(kUsage) where the directory is not that of a run; as update().
  explicit RunView(const std::filesystem::path& directory);

  /// Reads what has come since the last call; incomplete and damaged lines are left out.
  /// Throws: Error(kData), FileSystemError(kData) where a file cannot be read.
  void update();

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  /// The directory's own name.
  [[nodiscard]] const std::string& name() const { return name_; }
  /// The records of the kind train, evaluate or checkpoint.
  [[nodiscard]] const MetricsTable& metrics(const std::string& kind) const;
  /// The settings of config.ini; lines of one key, as layers, are joined. A derived value stands
  /// where the setting is left open.
  [[nodiscard]] const std::vector<IniLine>& settings() const { return settings_; }
  /// Empty where the config has none.
  [[nodiscard]] std::string setting(std::string_view key) const;
  /// 0 where unknown.
  [[nodiscard]] std::int64_t total_steps() const;
  /// Steps done.
  [[nodiscard]] std::int64_t step() const;
  [[nodiscard]] const RunHistory& history() const { return history_; }
  /// What records of kind "run" have under a key since the last start; empty where they have none.
  [[nodiscard]] std::string fact(const std::string& key) const;
  [[nodiscard]] const RunState& state() const { return state_; }
  [[nodiscard]] const std::optional<CheckpointAge>& checkpoint() const { return checkpoint_; }

 private:
  void add_metrics(std::string_view text);
  void add_facts(std::string_view text);
  void read_config();
  void read_state();
  void read_checkpoint();

  std::filesystem::path directory_;
  std::string name_;
  io::GrowingFile metrics_file_;
  std::map<std::string, MetricsTable> metrics_;
  std::vector<IniLine> settings_;
  RunHistory history_;
  std::map<std::string, std::string> facts_;
  RunState state_;
  std::optional<CheckpointAge> checkpoint_;
  std::string beat_;
  std::optional<double> beat_changed_;  ///< of now_seconds(), once it was seen to change
};

}  // namespace strata::train
