#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "strata/comm/groups.hpp"
#include "strata/core/log.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/directory_lock.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/sniff.hpp"
#include "strata/train/step_times.hpp"
#include "strata/train/stop_signal.hpp"

namespace strata::train {

class RankState;
class StepDump;

/// Points of a step, for TrainerHooks.
enum class StepPoint {
  kComputing,  ///< the gradients of a step, or of a run of a repeated one, are about to be computed
  kReduced,    ///< the gradients are reduced
  kChecking,   ///< replicas are about to be compared (train.check)
  kChecked,    ///< replicas have been compared
  kRepeating,  ///< a run of a repeated step begins
  kRepeated    ///< a run of a repeated step has ended
};

/// Callbacks by which tests and benchmarks disturb a run; strata itself sets none.
struct TrainerHooks {
  /// Called before the trainer uses the groups.
  std::function<void(const plan::Plan&, comm::Groups&)> begin;
  pipeline::ActionObserver action;  ///< not called while run.timeline records
  std::function<void(StepPoint, std::int64_t step, RankState&)> step = [](StepPoint, std::int64_t,
                                                                          RankState&) {};
  /// With the results of a part of the sniff test after `step`.
  std::function<void(SniffPart, std::int64_t step, const TensorView&)> sniff;
};

/// What a step should take on a machine.
struct StepForecast {
  std::string machine;  ///< its name
  StepTimes times;
};

/// The inputs of a run.
struct TrainerSetup {
  const plan::Plan& plan;
  comm::Groups& groups;
  ops::Context& context;
  io::Dataset& train_data;
  io::Dataset* test_data = nullptr;            ///< null: no evaluation
  const io::Checkpoint* checkpoint = nullptr;  ///< null: starts a new run
  const io::Checkpoint* initial = nullptr;     ///< whose weights a new run starts from; or null
  const io::DirectoryLock* lock = nullptr;     ///< of run.dir, on rank 0; checked at each save
  std::string config_text;
  /// What metrics.jsonl records of this start; rank 0's counts.
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  /// What receipts record of the program and the machine; rank 0's counts.
  nlohmann::ordered_json environment = nlohmann::ordered_json::object();
  /// A rank's peak rate of matrix products in the model's dtype, in FLOP/s; 0: not known.
  double peak_flops = 0.0;
  std::optional<StepForecast> forecast = {};  ///< of run.machine; rank 0's counts
  /// The run ends without a save at the first agreed point from this step on: of a replay.
  std::int64_t last_step = std::numeric_limits<std::int64_t>::max();
  bool digests_end = true;   ///< whether the receipts of a replay end with a digest of its state
  StepDump* dump = nullptr;  ///< keeps tensors of its step; null: nobody does
  /// When the run must have ended, of now_seconds(); rank 0's counts.
  double ends = std::numeric_limits<double>::infinity();
  /// Whether this rank was requested to stop; asked once a step, and in evaluations. The default
  /// asks for signals of the process, of which it is the only rank.
  std::function<StopRequest()> stop_request = train::stop_request;
  /// Called before the trainer's memory and threads are released: where this rank fails alone, and
  /// then it need not return; with an AgreedError on all ranks.
  std::function<void(const std::exception&)> on_failure;
  TrainerHooks hooks = {};
  Log& log;
};

}  // namespace strata::train
