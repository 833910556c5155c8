#include "loop/sniff_tests.hpp"

#include <fmt/format.h>

#include "strata/comm/agree.hpp"
#include "strata/comm/groups.hpp"
#include "strata/train/sniff.hpp"

namespace strata::train {

void SniffTests::start(std::int64_t step) {
  if (setup_.plan.config.run.sniff && step < setup_.plan.total_steps) {
    test(step);
  }
}

void SniffTests::after(std::int64_t step) {
  const std::int64_t every = setup_.plan.config.run.sniff.value_or(0);
  if (every > 0 && step / every != tested_step_ / every) {
    test(step);
  }
}

void SniffTests::log_cost() const {
  if (tests_ > 1) {
    setup_.log.info("sniff tests: {}, {:.2g} % of the time", tests_,
                    100.0 * seconds_ / (now_seconds() - began_));
  }
}

void SniffTests::test(std::int64_t step) {
  const double begin = now_seconds();
  comm::Communicator& world = *setup_.groups.world;
  state_.drain();
  const auto routes = comm::pipeline_routes(plan::chunk_stages(setup_.plan));
  const auto hook = [&](SniffPart part, const TensorView& results) {
    if (setup_.hooks.sniff) {
      setup_.hooks.sniff(part, step, results);
    }
  };
  SniffFindings found = findings_of(sniff({.context = setup_.context,
                                           .groups = setup_.groups,
                                           .dtype = setup_.plan.config.numerics.dtype,
                                           .sums = setup_.plan.config.numerics.mode,
                                           .routes = routes,
                                           .hook = hook}));
  if (!found.wrong.empty()) {
    throw comm::AgreedError(
        ExitCode::kPeer,
        fmt::format("silent corruption: the sniff test before step {} found wrong results: {}. "
                    "Nothing more is saved. Have the memory, the cores and the GPUs there "
                    "checked, and continue elsewhere (sbatch --exclude) with --run.resume=auto",
                    step + 1, text_of(world, setup_.context.device(), found.wrong)));
  }
  std::erase_if(found.slow,
                [&](const SniffFinding& of) { return !slow_ranks_.insert(of.rank).second; });
  if (!found.slow.empty()) {
    setup_.log.warn(
        "the sniff test before step {} found slow ranks: {}. Look for other work there, and at "
        "clocks and cooling; strata doctor shows where the ranks run",
        step + 1, text_of(world, setup_.context.device(), found.slow));
  }
  // Stalls outside steps do not count.
  static_cast<void>(setup_.groups.engine->take_device_waits());
  tested_step_ = step;
  ++tests_;
  seconds_ += now_seconds() - begin;
}

}  // namespace strata::train
