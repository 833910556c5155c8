#include "loop/step_report.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/core/clock.hpp"
#include "strata/core/text.hpp"

namespace strata::train {

StepReport::StepReport(const TrainerSetup& setup, MetricsFile& metrics, std::int64_t first_step)
    : setup_(setup), metrics_(metrics), first_step_(first_step), began_(now_seconds()) {}

void StepReport::add(const StepResult& result, const std::optional<RankTimes>& ranks) {
  write_metrics(result);
  window_seconds_ += result.times.step;
  window_data_seconds_ += result.times.data;
  ++window_steps_;
  for (const SlowRank& slow : ranks ? ranks->slow : std::vector<SlowRank>()) {
    metrics_.write(
        RunEvent::kSlow,
        {{"rank", slow.rank}, {"seconds", slow.seconds}, {"peers_seconds", slow.peers_seconds}});
  }
  if (ranks || (result.progress && is_log_step(result.step))) {
    log_progress(result, ranks);
  }
}

void StepReport::write_metrics(const StepResult& result) {
  const double samples_per_second = static_cast<double>(job_batch(setup_.plan)) / result.times.step;
  const auto tokens = static_cast<double>(setup_.plan.targets_per_sample);
  metrics_.write_event(result.step, result.histograms);
  metrics_.write(TrainRecord{.step = result.step,
                             .loss = result.summary.loss,
                             .grad_norm = result.summary.grad_norm,
                             .learning_rate = result.rate,
                             .samples_per_second = samples_per_second,
                             .tokens_per_second = is_language_model(setup_.plan)
                                                      ? std::optional(samples_per_second * tokens)
                                                      : std::nullopt,
                             .mfu = mfu_of(result.times.step),
                             .times = result.times,
                             .skipped = result.update == StepResult::Update::kSkipped,
                             .further = result.numbers});
  warn_of_lost_lines(result.step);
}

void StepReport::warn_of_lost_lines(std::int64_t step) {
  if (metrics_.failed() && !metrics_warned_) {
    metrics_warned_ = true;
    setup_.log.warn(
        "metrics.jsonl cannot be written, so lines from step {} on are missing{}; check the disk's "
        "free space",
        step,
        setup_.plan.config.run.tensorboard == config::Switch::kOn ? " there or in tensorboard/"
                                                                  : "");
  }
}

std::optional<double> StepReport::mfu_of(double step_seconds) const {
  const plan::Plan& plan = setup_.plan;
  if (setup_.peak_flops == 0.0) {
    return std::nullopt;
  }
  const double flops = plan.model->training_flops() * static_cast<double>(job_batch(plan));
  return flops / step_seconds / (setup_.peak_flops * static_cast<double>(plan.grid.ranks()));
}

bool StepReport::is_log_step(std::int64_t step) const {
  if (step == first_step_ + 1 || step == setup_.plan.total_steps) {
    return true;
  }
  constexpr double kSecondsBetweenLines = 2.0;
  const std::int64_t every = setup_.plan.config.train.log_every;
  return every > 0 ? step % every == 0 : now_seconds() - last_line_ >= kSecondsBetweenLines;
}

void StepReport::log_progress(const StepResult& result, const std::optional<RankTimes>& ranks) {
  const plan::Plan& plan = setup_.plan;
  const std::int64_t step = result.step;
  const double seconds = std::max(1e-9, window_seconds_);
  const auto window = static_cast<double>(window_steps_);
  const double samples = window * static_cast<double>(job_batch(plan));
  const std::string begin =
      fmt::format("step {}/{}  loss {}", step, plan.total_steps, number_text(result.summary.loss));
  if (result.progress) {
    setup_.log.progress("{}  {}  {} samples/s  {}", begin, result.progress->first,
                        count_text(std::llround(samples / seconds)), result.progress->second);
  } else {
    const double left = (now_seconds() - began_) / static_cast<double>(step - first_step_) *
                        static_cast<double>(plan.total_steps - step);
    const bool language = is_language_model(plan);
    const double shown =
        language ? samples * static_cast<double>(plan.targets_per_sample) : samples;
    const std::optional<double> mfu = mfu_of(seconds / window);
    setup_.log.progress("{}  {} {}/s{}  data wait {:.1f} %{}  ETA {}", begin,
                        count_text(std::llround(shown / seconds)), language ? "tokens" : "samples",
                        mfu ? fmt::format("  MFU {:.1f} %", 100.0 * *mfu) : "",
                        100.0 * window_data_seconds_ / seconds,
                        plan.grid.ranks() > 1 ? "  " + ranks->text() : "", duration_text(left));
  }
  window_seconds_ = 0.0;
  window_data_seconds_ = 0.0;
  window_steps_ = 0;
  last_line_ = now_seconds();
}

}  // namespace strata::train
