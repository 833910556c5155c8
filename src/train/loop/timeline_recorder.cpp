#include "loop/timeline_recorder.hpp"

#include <filesystem>

#include "strata/core/clock.hpp"

namespace strata::train {

void TimelineRecorder::begin_step(std::int64_t step) {
  const auto& wanted = setup_.plan.config.run.timeline;
  if (!wanted || !wanted->holds(step) || written_) {
    return;
  }
  if (!timeline_) {
    timeline_.emplace(rank_.coordinates, setup_.plan.training);
  }
  executor_.set_observer([this, step](const pipeline::Action& action, double from, double to) {
    timeline_->add(step, action, from, to);
  });
}

void TimelineRecorder::end_step(std::int64_t step, double begin, const StepTimes& times) {
  if (!timeline_) {
    return;
  }
  executor_.set_observer(setup_.hooks.action);
  timeline_->add_step(step, begin, now_seconds(), times);
  const auto& wanted = *setup_.plan.config.run.timeline;
  const bool is_full = step < wanted.last && timeline_->is_full();
  if (is_full) {
    setup_.log.warn(
        "timeline.json ends with step {} of run.timeline = {}-{}: it holds {} actions a rank", step,
        wanted.first, wanted.last, Timeline::kMostEvents);
  }
  if (is_full || step == wanted.last) {
    finish();
  }
}

void TimelineRecorder::finish() {
  if (timeline_) {
    timeline_->write(*setup_.groups.world,
                     std::filesystem::path(setup_.plan.config.run.dir) / "timeline.json");
    timeline_.reset();
    written_ = true;
  }
}

}  // namespace strata::train
