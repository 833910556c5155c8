#include <cstdint>
#include <iterator>
#include <vector>

#include <benchmark/benchmark.h>

#include "strata/core/clock.hpp"
#include "strata/pipeline/schedule.hpp"
#include "strata/train/timeline.hpp"

namespace {

using namespace strata;

/// Recording the actions of stage 1 of `stages` in steps of 8 microbatches, with the two clock
/// reads of each action. A new timeline before the limit of events.
void record(benchmark::State& state) {
  const pipeline::Schedule schedule = pipeline::make_schedule(
      pipeline::ScheduleKind::k1f1b, {.stages = state.range(0), .microbatches = 8});
  const std::vector<pipeline::Action>& actions = schedule.stage_actions[1];
  const auto steps = train::Timeline::kMostEvents / std::ssize(actions);
  std::int64_t events = 0;
  for ([[maybe_unused]] auto _ : state) {
    train::Timeline timeline({.data = 0, .pipeline = 1, .tensor = 0}, schedule);
    for (std::int64_t step = 1; step <= steps; ++step) {
      for (const pipeline::Action& action : actions) {
        const double begin = now_seconds();
        timeline.add(step, action, begin, now_seconds());
        ++events;
      }
    }
  }
  state.SetItemsProcessed(events);
  state.counters["events_per_step"] = static_cast<double>(actions.size());
  state.counters["seconds_per_event"] = benchmark::Counter(
      static_cast<double>(events), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(record)->ArgName("stages")->Arg(2)->Arg(8)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
