#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "strata/forecast/machine.hpp"
#include "strata/pipeline/simulator.hpp"
#include "strata/plan/plan.hpp"

namespace strata::forecast {

/// Where the time account of a run has a part of a step.
enum class Account { kCompute, kCommunication, kBubble };

/// A part of a step of the slowest stage; the parts add up to the step (design law 8).
struct StepPart {
  std::string name;  ///< as in "matrix products"
  double seconds = 0.0;
  std::string setting;  ///< what would shrink it, as in "train.recompute = none"; empty: nothing
  Account account = Account::kCompute;
};

/// What a rank of one stage does and holds.
struct StageForecast {
  plan::RankPlan rank;
  std::vector<pipeline::ChunkTimes> chunks;  ///< of one microbatch, in layer order
  double compute_seconds = 0.0;              ///< of a step, without communication
  double memory_bytes = 0.0;                 ///< of its device
};

/// What a step will take.
struct Forecast {
  double step_seconds = 0.0;
  double samples_per_second = 0.0;
  double tokens_per_second = 0.0;  ///< 0 unless a language model
  std::optional<double> mfu;       ///< nothing: the machine has no peak for the dtype
  std::vector<StepPart> parts;     ///< largest first
  std::vector<StageForecast> stages;
  pipeline::StageCosts costs;
  pipeline::Simulation simulation;
  double bubble_fraction = 0.0;
  double exposed_seconds = 0.0;  ///< communication that no computation hides
  /// Whether each rank's memory fits its device.
  bool fits = true;
  double free_bytes = 0.0;  ///< of a rank, for its arenas
  double checkpoint_bytes = 0.0;
  double checkpoint_seconds = 0.0;
};

/// How closely a step is looked at.
enum class Detail {
  kAll,    ///< the memory of the largest rank of each stage, and each action of the schedule
  kTotals  ///< the memory of the first rank of each stage, and, where it fits, totals of the
           ///< schedule
};

/// Goes through steps on a machine without running them: allocates nothing and sends nothing.
/// Remembers the layers that it has priced.
class Forecaster {
 public:
  explicit Forecaster(const Machine& machine);
  ~Forecaster();
  Forecaster(const Forecaster&) = delete;
  Forecaster& operator=(const Forecaster&) = delete;

  /// A step on nodes of `node_ranks` ranks each.
  /// Throws: Error(kUsage) that names a figure which the machine lacks, or a setting that it cannot
  /// predict.
  [[nodiscard]] Forecast forecast(const plan::Plan& plan, std::int64_t node_ranks,
                                  Detail detail = Detail::kAll);
  /// What a rank's arenas may take of its device.
  [[nodiscard]] double free_bytes(const plan::Plan& plan, std::int64_t node_ranks) const;
  [[nodiscard]] const Machine& machine() const { return machine_; }

 private:
  struct LayerPrice;
  class Step;

  const Machine& machine_;
  std::map<std::string, LayerPrice> layers_;
};

}  // namespace strata::forecast
