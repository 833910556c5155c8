#include "loop/step_report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/core/clock.hpp"
#include "strata/core/text.hpp"
#include "strata/nn/layer_trace.hpp"

#include "record/slow_step.hpp"

namespace strata::train {
namespace {

/// Steps between lines of the metrics after `step` steps, so that long runs keep them short.
std::int64_t metrics_interval(std::int64_t step) {
  constexpr std::int64_t kStepsAtOne = 5000;
  std::int64_t interval = 1;
  for (std::int64_t power = 1; step > kStepsAtOne * interval; power *= 10) {
    for (const std::int64_t digit : {1, 2, 5}) {
      interval = digit * power;
      if (step <= kStepsAtOne * interval) {
        break;
      }
    }
  }
  return interval;
}

bool ends_with(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace

StepReport::StepReport(const TrainerSetup& setup, MetricsFile& metrics, std::int64_t first_step)
    : setup_(setup),
      metrics_(metrics),
      sample_flops_(setup.peak_flops == 0.0 ? 0.0 : nn::training_flops(*setup.plan.model)),
      first_step_(first_step),
      began_(now_seconds()) {}

void StepReport::add(const StepResult& result, const std::optional<RankTimes>& ranks) {
  add_metrics(result);
  window_ += result.times;
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

void StepReport::add_metrics(const StepResult& result) {
  const bool skipped = result.update == StepResult::Update::kSkipped;
  if (skipped) {
    flush();  // its loss or norm is not finite
  }
  metrics_.write_event(result.step, result.histograms);
  ++sums_.steps;
  sums_.loss += result.summary.loss;
  sums_.grad_norm += result.summary.grad_norm;
  sums_.times += result.times;
  add_read_of_sets(result.step);
  sums_.numbers.resize(result.numbers.size());
  for (std::size_t i = 0; i < result.numbers.size(); ++i) {
    const auto& [name, number] = result.numbers[i];
    double& sum = sums_.numbers[i].second;
    sum = ends_with(name, {"_max"}) ? std::max(sum, number) : sum + number;
    sums_.numbers[i].first = name;
  }
  sums_.sets.resize(result.summary.sets.size());
  for (std::size_t i = 0; i < sums_.sets.size(); ++i) {
    sums_.sets[i].loss += result.summary.sets[i].loss;
    sums_.sets[i].counted += result.summary.sets[i].counted;
  }
  sums_.last = result;
  const std::int64_t every = setup_.plan.config.train.metrics_every;
  if (skipped || !result.histograms.empty() || result.step == setup_.plan.total_steps ||
      result.step % (every > 0 ? every : metrics_interval(result.step)) == 0) {
    flush();
  }
}

void StepReport::add_read_of_sets(std::int64_t step) {
  const io::Dataset& data = setup_.train_data;
  if (data.mixture() == nullptr || data.sets().size() > kMostSets) {
    return;
  }
  sums_.read.resize(data.sets().size());
  const config::RunConfig& config = setup_.plan.config;
  const bool packed = data.info().packed_inputs > 0;
  const std::int64_t each = is_language_model(setup_.plan) ? data.info().input_shape[0] : 1;
  for (std::int64_t i = 0; i < config.batch.global; ++i) {
    const std::int64_t place = (step - 1) * config.batch.global + i;
    const auto [set, sample] =
        packed ? io::mixed_sample_at(config.run.seed, data, place)
               : io::MixedSample{data.mixture()->at(config.run.seed, place).set};
    sums_.read[static_cast<std::size_t>(set)] += packed ? data.inputs_of(sample) : each;
  }
}

void StepReport::flush() {
  const Sums sums = std::exchange(sums_, {});
  if (sums.steps == 0) {
    return;
  }
  const auto steps = static_cast<double>(sums.steps);
  const StepTimes times = sums.times.over(steps);
  const double samples_per_second = static_cast<double>(job_batch(setup_.plan)) / times.step;
  const auto tokens = static_cast<double>(tokens_per_sample(setup_.plan));
  TrainRecord record{.step = sums.last.step,
                     .steps = sums.steps,
                     .loss = sums.loss / steps,
                     .grad_norm = sums.grad_norm / steps,
                     .learning_rate = sums.last.rate,
                     .samples_per_second = samples_per_second,
                     .tokens_per_second = is_language_model(setup_.plan)
                                              ? std::optional(samples_per_second * tokens)
                                              : std::nullopt,
                     .mfu = mfu_of(times.step),
                     .times = times,
                     .skipped = sums.last.update == StepResult::Update::kSkipped,
                     .further = sums.numbers};
  for (auto& [name, number] : record.further) {
    number /= ends_with(name, {"_mean", "_per_second"}) ? steps : 1.0;
  }
  const char* const unit = is_language_model(setup_.plan) ? "tokens/" : "samples/";
  for (std::size_t i = 0; i < sums.read.size(); ++i) {
    const std::string name = setup_.train_data.sets()[i].info().path.string();
    if (i < sums.sets.size() && sums.sets[i].counted > 0.0) {
      record.further.emplace_back("loss/" + name, sums.sets[i].loss / sums.sets[i].counted);
    }
    record.further.emplace_back(unit + name, sums.read[i]);
  }
  metrics_.write(record);
  warn_of_lost_lines(record.step);
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
  const double flops = sample_flops_ * static_cast<double>(job_batch(plan));
  return flops / step_seconds / (setup_.peak_flops * static_cast<double>(plan.grid.ranks()));
}

bool StepReport::is_log_step(std::int64_t step) const {
  if (step == first_step_ + 1 || step == setup_.plan.total_steps) {
    return true;
  }
  // Between lines; the last one stays.
  constexpr std::array<double, 7> kSeconds{1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0};
  const std::int64_t every = setup_.plan.config.train.log_every;
  // The line of the first step does not count.
  const std::size_t gap = std::min(lines_ > 0 ? lines_ - 1 : 0, kSeconds.size() - 1);
  return every > 0 ? step % every == 0 : now_seconds() - last_line_ >= kSeconds[gap];
}

void StepReport::log_progress(const StepResult& result, const std::optional<RankTimes>& ranks) {
  const plan::Plan& plan = setup_.plan;
  const std::int64_t step = result.step;
  const double seconds = std::max(1e-9, window_.step);
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
    const double shown = samples * static_cast<double>(tokens_per_sample(plan));
    const std::optional<double> mfu = mfu_of(seconds / window);
    setup_.log.progress("{}  {} {}/s{}  data wait {:.1f} %{}  ETA {}", begin,
                        count_text(std::llround(shown / seconds)), language ? "tokens" : "samples",
                        mfu ? fmt::format("  MFU {:.1f} %", 100.0 * *mfu) : "",
                        100.0 * window_.data / seconds,
                        plan.grid.ranks() > 1 ? "  " + ranks->text() : "", duration_text(left));
  }
  compare_with_forecast();
  window_ = {};
  window_save_seconds_ = 0.0;
  window_steps_ = 0;
  last_line_ = now_seconds();
  ++lines_;
}

void StepReport::compare_with_forecast() {
  // The first line's step opens libraries and files, and a save is too much of a few steps.
  constexpr std::int64_t kLeastSteps = 10;
  if (!setup_.forecast || slow_warned_ || lines_ == 0 ||
      (window_save_seconds_ > 0.0 && window_steps_ < kLeastSteps)) {
    return;
  }
  const auto steps = static_cast<double>(window_steps_);
  const std::string text =
      slow_step_text(*setup_.forecast, window_.over(steps), window_save_seconds_ / steps);
  if (!text.empty()) {
    slow_warned_ = true;
    setup_.log.warn("{}", text);
  }
}

}  // namespace strata::train
