#include "commands/planning/plan_view.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "strata/core/text.hpp"

namespace strata::app {
namespace {

std::string share_text(double share) {
  return fmt::format("{:.1f} %", 100.0 * share);
}

/// A number of three digits or more, with thousands separated.
std::string large_text(double value) {
  constexpr double kMost = 1e15;
  return value >= 100.0 && value < kMost ? count_text(std::llround(value))
                                         : fmt::format("{:.3g}", value);
}

std::string memory_size(double bytes) {
  return bytes_text(std::llround(bytes));
}

std::string counted(std::int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

std::string time_text(double seconds) {
  if (seconds >= 60.0) {
    return duration_text(seconds);
  }
  for (const auto& [unit, name] : {std::pair(1.0, "s"), std::pair(1e-3, "ms")}) {
    if (seconds >= unit) {
      return fmt::format("{:.3g} {}", seconds / unit, name);
    }
  }
  return fmt::format("{:.3g} us", 1e6 * seconds);
}

std::vector<plan::RankPlan> stage_ranks(const forecast::Forecast& forecast) {
  std::vector<plan::RankPlan> ranks;
  for (const forecast::StageForecast& stage : forecast.stages) {
    ranks.push_back(stage.rank);
  }
  return ranks;
}

std::vector<std::string> step_lines(const PlanView& view) {
  const forecast::Forecast& f = view.forecast;
  std::vector<std::string> lines{
      fmt::format("machine: {}{}", view.machine.name,
                  view.machine.source.empty() ? "" : fmt::format(" ({})", view.machine.source))};
  lines.push_back(fmt::format("grid: {}, {} on {}", view.plan.grid.text(),
                              counted(view.plan.grid.ranks(), "rank"),
                              counted(static_cast<std::int64_t>(view.conditions.nodes), "node")));
  std::string step = fmt::format("step: {}, {} samples/s", time_text(f.step_seconds),
                                 large_text(f.samples_per_second));
  if (f.tokens_per_second > 0.0) {
    step += fmt::format(", {} tokens/s", large_text(f.tokens_per_second));
  }
  if (f.mfu) {
    step += fmt::format(", MFU {}", share_text(*f.mfu));
  }
  lines.push_back(std::move(step));
  lines.push_back(
      fmt::format("pipeline bubble {}; communication that nothing hides {} of a step, {}",
                  share_text(f.bubble_fraction), share_text(f.exposed_seconds / f.step_seconds),
                  time_text(f.exposed_seconds)));
  return lines;
}

Rows part_rows(const forecast::Forecast& forecast) {
  Rows rows{{"time of a step", "", "share", "setting to change"}};
  for (const forecast::StepPart& part : forecast.parts) {
    rows.push_back({part.name, time_text(part.seconds),
                    share_text(part.seconds / forecast.step_seconds),
                    part.setting.empty() ? "-" : part.setting});
  }
  rows.push_back({"total", time_text(forecast.step_seconds), "100 %", ""});
  return rows;
}

std::string fit_line(const PlanView& view) {
  const std::vector<forecast::StageForecast>& stages = view.forecast.stages;
  const auto largest = std::ranges::max_element(stages, {}, &forecast::StageForecast::memory_bytes);
  const double left = view.forecast.free_bytes - largest->memory_bytes;
  return fmt::format("memory: a rank of stage {} needs {} of {}: {} {}", largest - stages.begin(),
                     memory_size(largest->memory_bytes), memory_size(view.forecast.free_bytes),
                     memory_size(std::abs(left)),
                     view.forecast.fits ? "are free" : "too much, it does not fit");
}

std::vector<std::string> completion_lines(const PlanView& view) {
  const forecast::RunConditions& c = view.conditions;
  const forecast::Completion done = forecast::completion_of(c);
  if (c.steps == 0.0) {
    return {fmt::format("checkpoint: {}", memory_size(view.forecast.checkpoint_bytes)),
            "end of training: not known, because data.train does not exist; set train.steps"};
  }
  std::vector<std::string> lines{fmt::format("{} steps without a break: {}", large_text(c.steps),
                                             time_text(done.work_seconds))};
  std::string saves = fmt::format("checkpoint: {}", memory_size(view.forecast.checkpoint_bytes));
  if (c.checkpoint_seconds > 0.0) {
    saves += fmt::format(" in {}", time_text(c.checkpoint_seconds));
  }
  saves += std::isfinite(c.interval_seconds)
               ? fmt::format(", every {}", time_text(c.interval_seconds))
               : ", at the end";
  if (c.checkpoint_seconds > 0.0) {
    saves += fmt::format(": {} in all", time_text(done.checkpoint_seconds));
  }
  lines.push_back(std::move(saves));
  if (done.failures > 0.0) {
    lines.push_back(fmt::format(
        "failures: one in {} on {}{}; a restart takes {}", time_text(done.seconds_between_failures),
        counted(static_cast<std::int64_t>(c.nodes), "node"),
        std::isfinite(done.failures) ? fmt::format(", {:.3g} until the end", done.failures) : "",
        time_text(c.restart_seconds)));
  }
  if (c.checkpoint_seconds == 0.0) {
    lines.emplace_back(
        "the machine has no files.write_gbs, so saves count as free; the best time between them is "
        "not known");
  } else if (done.failures > 0.0 && std::isfinite(done.best_expected_seconds)) {
    const double minutes = done.best_interval_seconds / 60.0;
    lines.push_back(fmt::format(
        "best time between checkpoints: checkpoint.minutes = {}, the end then after {}",
        minutes >= 10.0 ? fmt::format("{:.0f}", minutes) : fmt::format("{:.2g}", minutes),
        time_text(done.best_expected_seconds)));
  }
  if (!std::isfinite(done.expected_seconds)) {
    lines.emplace_back("end of training: never, as the job fails before it reaches a checkpoint");
    return lines;
  }
  lines.push_back(fmt::format("end of training: after {}, of which {} go into checkpoints{}",
                              time_text(done.expected_seconds), share_text(done.lost_share),
                              done.failures > 0.0 ? ", repeated steps and restarts" : ""));
  std::string cost = fmt::format("node hours: {}", large_text(done.node_hours));
  if (done.kwh > 0.0) {
    cost += fmt::format("; energy: {} kWh", large_text(done.kwh));
  }
  if (done.cost > 0.0) {
    cost += fmt::format("; cost: {}", large_text(done.cost));
  }
  lines.push_back(std::move(cost));
  return lines;
}

std::string verdict_line(const PlanView& view) {
  const forecast::Forecast& f = view.forecast;
  if (!f.fits) {
    return fmt::format(
        "it does not fit {}: {} is too much for a rank; more ranks, a smaller batch.micro or "
        "train.recompute=full take less, and --search tries all grids",
        view.machine.name,
        memory_size(
            std::ranges::max(f.stages, {}, &forecast::StageForecast::memory_bytes).memory_bytes -
            f.free_bytes));
  }
  std::string text = fmt::format(
      "it fits {} as {} on {}: a step takes {}", view.machine.name, view.plan.grid.text(),
      counted(static_cast<std::int64_t>(view.conditions.nodes), "node"), time_text(f.step_seconds));
  const double expected = forecast::completion_of(view.conditions).expected_seconds;
  if (view.conditions.steps > 0.0) {
    text += std::isfinite(expected) ? fmt::format(", the training {}", time_text(expected))
                                    : ", but the training never ends";
  }
  return text;
}

std::string forecast_text(const PlanView& view) {
  std::string text;
  const auto add = [&](const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      text += line + "\n";
    }
  };
  add(step_lines(view));
  text += "\n" + table_text(part_rows(view.forecast)) + "\n";
  const std::vector<plan::RankPlan> ranks = stage_ranks(view.forecast);
  for (const Rows& rows : plan::memory_rows(view.plan, ranks)) {
    text += table_text(rows) + "\n";
  }
  text += fit_line(view) + "\n\n";
  if (view.plan.grid.ranks() > 1) {
    text += table_text(plan::traffic_rows(view.plan, ranks)) + "\n";
  }
  add(completion_lines(view));
  return text;
}

std::string search_line(const forecast::SearchResult& result) {
  return fmt::format("{}, of which {} {} not fit the memory", counted(result.tried, "grid"),
                     result.too_large, result.too_large == 1 ? "does" : "do");
}

Rows choice_rows(const std::vector<forecast::GridChoice>& choices, std::size_t most) {
  Rows rows{{"data x pipeline x tensor", "batch.micro", "lanes x shards", "schedule", "recompute",
             "bucket MiB", "step", "MFU", "memory", "bits"}};
  for (std::size_t i = 0; i < std::min(choices.size(), most); ++i) {
    const forecast::GridChoice& choice = choices[i];
    const grid::Grid& grid = choice.grid;
    rows.push_back(
        {fmt::format("{}{} x {} x {}",
                     grid.islands == 1 ? "" : fmt::format("{} islands x ", grid.islands), grid.data,
                     grid.pipeline, grid.tensor),
         fmt::format("{}", choice.microbatch), fmt::format("{} x {}", choice.lanes, choice.shards),
         choice.chunks == 1 ? choice.schedule
                            : fmt::format("{}, {} chunks", choice.schedule, choice.chunks),
         std::string(name_of(choice.recompute)), fmt::format("{:.4g}", choice.bucket_mib),
         time_text(choice.step_seconds), choice.mfu > 0.0 ? share_text(choice.mfu) : "-",
         memory_size(choice.memory_bytes), choice.bits.empty() ? "same" : "other"});
  }
  return rows;
}

Rows pareto_rows(const forecast::SearchResult& result) {
  constexpr std::size_t kMost = 20;
  return choice_rows(forecast::pareto_of(result.choices), kMost);
}

std::string search_text(const forecast::SearchResult& result) {
  constexpr std::size_t kBest = 10;
  std::string text = search_line(result) + "\n\n" + table_text(choice_rows(result.choices, kBest));
  const Rows smaller = pareto_rows(result);
  if (smaller.size() > 2) {
    text += "\nless memory for more time:\n" + table_text(smaller);
  }
  return text;
}

}  // namespace strata::app
