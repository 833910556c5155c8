#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "strata/forecast/machine.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/observer.hpp"
#include "strata/plan/plan.hpp"

namespace strata::app {

/// Times the operations of a context as they follow each other in training steps.
class OperationTimer final : public ops::Observer {
 public:
  /// Observes `context`, which outlives the timer, until its end.
  explicit OperationTimer(ops::Context& context);
  ~OperationTimer() override { context_.set_observer(nullptr); }

  [[nodiscard]] bool begin(const ops::OperationWork& work) override;
  /// On a CPU an operation takes the time since the one before: what the host does between them
  /// counts as the later one's. On a GPU the host waits before and after each.
  void end() override;
  /// Whether operations from now on count; they do not at first.
  void record(bool on);

  using Times = std::map<std::pair<std::string, DType>, std::vector<forecast::MeasuredOperation>>;
  /// Typical ones of the operations so far.
  [[nodiscard]] Times times() const;

 private:
  /// The time since the last operation is none's.
  void resume();

  using Key = std::tuple<std::string_view, DType, std::array<std::int64_t, 3>, double, double>;

  ops::Context& context_;
  std::map<Key, std::vector<double>> seconds_;
  ops::OperationWork work_;
  double since_ = 0.0;
  bool records_ = false;
};

/// The upper median.
double median_of(std::vector<double> values);

/// How often steps are measured.
struct Repetitions {
  std::int64_t least = 3;
  std::int64_t most = 40;
  double seconds = 0.5;  ///< after which there are no more than the least
};

/// Does training steps of one rank of a plan, with random samples and in real memory. Messages to
/// other ranks are left out. Returns: the median step's seconds.
double do_steps(ops::Context& context, OperationTimer& timer, const plan::Plan& plan,
                const plan::RankPlan& rank, const Repetitions& repetitions);

}  // namespace strata::app
