#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "strata/pipeline/schedule.hpp"
#include "strata/pipeline/search.hpp"
#include "strata/pipeline/simulator.hpp"

namespace strata::pipeline {

/// How a stage chooses its next action.
struct StageRules {
  /// Most forwards of chunk 0 ahead of its input gradients.
  std::int64_t lead = 1;
  /// Most weight gradients of a chunk that wait; one more runs before anything else.
  std::int64_t backlog = 0;
  /// A weight gradient fills a wait that is too short for it if it delays what arrives by at most
  /// this share of its own time.
  double patience = 0.0;
  /// The last input gradient is never delayed.
  bool hurries_last = true;
  bool forward_first = false;  ///< where a forward and an input gradient are ready

  friend bool operator==(const StageRules&, const StageRules&) = default;
};

/// How all stages choose.
struct ListRules {
  std::vector<StageRules> stages;
  bool last_chunk_first = false;  ///< where actions of both chunks are ready

  friend bool operator==(const ListRules&, const ListRules&) = default;
};

/// Times of a laid out schedule.
struct ListTimes {
  double makespan_seconds = 0.0;
  double longest_bubble_seconds = 0.0;
};

/// Lays out the compute actions of all stages along the time: a stage that is free takes an input
/// gradient or a forward that is ready, else a weight gradient, which also makes room for a forward
/// where the stage is full. Deterministic.
class ListScheduler {
 public:
  /// Pre: most_live >= chunks; one chunk a stage, or two in a V. `goal` outlives the object.
  ListScheduler(const Schedule& shape, const SearchGoal& goal);

  ListTimes lay_out(const ListRules& rules);

  /// Of the last lay_out().
  [[nodiscard]] std::vector<std::vector<Action>> take_actions();

 private:
  struct Chunk {
    std::int64_t forwards = 0;
    std::int64_t input_gradients = 0;
    std::int64_t weight_gradients = 0;
  };
  struct Stage {
    double free = 0.0;
    double first_begin = 0.0;
    double busy = 0.0;
    std::int64_t live = 0;
  };
  struct Choice {
    ActionKind kind = ActionKind::kForward;
    std::int64_t chunk = -1;  ///< negative: nothing to do
  };
  struct Chain {
    std::int64_t upstream = -1;
    std::int64_t downstream = -1;
  };

  [[nodiscard]] Choice choose(std::int64_t stage, double now, const ListRules& rules) const;
  [[nodiscard]] bool may_forward(std::int64_t stage, std::int64_t chunk,
                                 const StageRules& rules) const;
  [[nodiscard]] bool has_room(std::int64_t stage, std::int64_t chunk) const;
  void run(std::int64_t stage, const Choice& choice, double now);
  void arrive(std::vector<double>& arrivals, std::int64_t from, std::int64_t to,
              std::int64_t microbatch, double end);
  [[nodiscard]] double forward_arrival(std::int64_t at, std::int64_t microbatch) const;
  [[nodiscard]] double gradient_arrival(std::int64_t at, std::int64_t microbatch) const;

  std::int64_t stages_count_;
  std::int64_t chunks_;
  std::int64_t microbatches_;
  const SearchGoal& goal_;
  const StageCosts& costs_;
  /// By stage * chunks + chunk.
  std::vector<Chain> chain_;
  std::vector<Chunk> chunk_;
  std::vector<Stage> stage_;
  /// By chunk, then microbatch; infinity: not known yet.
  std::vector<double> forward_arrivals_;
  std::vector<double> gradient_arrivals_;
  std::vector<std::vector<Action>> actions_;
  /// When a stage is looked at.
  std::priority_queue<std::pair<double, std::int64_t>, std::vector<std::pair<double, std::int64_t>>,
                      std::greater<>>
      looks_;
};

}  // namespace strata::pipeline
