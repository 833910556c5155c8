#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "strata/config/run_config.hpp"

namespace strata::app {

/// A setting and the values that a sweep tries.
struct SweptSetting {
  std::string key;
  std::vector<std::string> values;
};

/// One run of a sweep.
struct SweepRun {
  std::string name;                   ///< of its directory, as in "learning_rate=0.001_width=64"
  std::vector<std::string> values;    ///< one for each swept setting
  std::vector<std::string> settings;  ///< as in "--model.width=64"
};

/// The runs of a sweep: all combinations of values, or a random sample of them.
struct Sweep {
  std::string config;  ///< the complete text of what the runs share
  std::vector<SweptSetting> swept;
  std::int64_t random = 0;  ///< the runs of a sample; 0: all combinations
  std::uint64_t seed = 1;   ///< of the sample
};

/// A text as part of a file's name: all but letters, digits and ._+- become -.
[[nodiscard]] std::string in_name(const std::string& text);

/// A setting and its values from "section.key=a,b,c". Throws: Error(kUsage).
[[nodiscard]] SweptSetting swept_setting_of(const std::string& text);

/// The last swept setting varies fastest. Throws: Error(kUsage) where there are more than 10,000
/// runs, or fewer combinations than the sample takes.
[[nodiscard]] std::vector<SweepRun> runs_of(const Sweep& sweep);

/// Where a sweep's directory holds its settings and values.
[[nodiscard]] std::filesystem::path sweep_file(const std::filesystem::path& directory);
/// Creates the sweep.json of a directory. Throws: Error(kUsage) where it holds another sweep.
void open_sweep_directory(const std::filesystem::path& directory, const Sweep& sweep);
/// Reads sweep.json. Throws: Error(kUsage) where there is none, or a damaged one.
[[nodiscard]] Sweep sweep_in(const std::filesystem::path& directory);

/// What the files of a run say.
struct SweepResult {
  std::int64_t step = 0;   ///< the last of training
  std::int64_t steps = 0;  ///< in all; 0: the run has not begun
  double seconds = 0.0;    ///< of its steps
  bool finished = false;
  bool evaluated = false;
  double best = 0.0;  ///< evaluation, by loss or accuracy
  std::int64_t best_step = 0;
};

/// `by`: kLoss or kAccuracy.
[[nodiscard]] SweepResult result_of(const std::filesystem::path& run_directory, config::Best by);

/// The directories of the runs that have begun, by the values of their settings: numbers ascending.
[[nodiscard]] std::vector<std::filesystem::path> begun_runs(const std::filesystem::path& directory);

/// The runs with their results, the best first.
[[nodiscard]] std::string sweep_table(const Sweep& sweep, const std::filesystem::path& directory);

}  // namespace strata::app
