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
  /// Most weight gradients of a chunk that wait; with one more, a weight gradient runs first.
  std::int64_t backlog = 0;
  /// A weight gradient may start in a wait that is too short for it, if it delays the next action
  /// by at most this share of its own time.
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
  /// Pre: most_live >= chunks; one chunk a stage, or two in a V. `shape` and `goal` outlive the
  /// object.
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
  [[nodiscard]] Choice choose(std::int64_t stage, double now, const ListRules& rules) const;
  [[nodiscard]] bool has_room(std::int64_t stage, std::int64_t chunk) const;
  void run(std::int64_t stage, const Choice& choice, double now);
  /// Tells chunk `to`, at `arrivals`, of a message that is computed at `end`.
  void arrive(std::vector<double>& arrivals, std::size_t from, std::size_t to,
              std::int64_t microbatch, double end);
  [[nodiscard]] std::size_t index_of(std::int64_t stage, std::int64_t chunk) const;
  [[nodiscard]] std::size_t message(std::size_t index, std::int64_t microbatch) const;

  const Schedule& shape_;
  const SearchGoal& goal_;
  /// In the order in which the layers run through them.
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
