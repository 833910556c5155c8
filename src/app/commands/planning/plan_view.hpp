#pragma once

#include <string>
#include <vector>

#include "strata/forecast/completion.hpp"
#include "strata/forecast/forecast.hpp"
#include "strata/forecast/grid_search.hpp"
#include "strata/forecast/machine.hpp"
#include "strata/plan/plan.hpp"

#include "drawing/page.hpp"

namespace strata::app {

/// What strata plan shows of a run.
struct PlanView {
  const plan::Plan& plan;
  const forecast::Machine& machine;
  const forecast::Forecast& forecast;  ///< with Detail::kAll
  forecast::RunConditions conditions;
};

/// In one line, whether the run fits, and how long a step and the training take.
[[nodiscard]] std::string verdict_line(const PlanView& view);

/// The forecast of a step, the memory, the traffic and the end of training.
[[nodiscard]] std::string forecast_text(const PlanView& view);

/// The fastest choices of a search, and those that take less memory for more time. `result` has
/// choices.
[[nodiscard]] std::string search_text(const forecast::SearchResult& result);

// Of the text, for the page.

/// A time as in "12.3 ms", or as duration_text().
[[nodiscard]] std::string time_text(double seconds);
/// Nodes and ranks, the machine, the time of a step and its rates, bubble, exposed communication.
[[nodiscard]] std::vector<std::string> step_lines(const PlanView& view);
/// The parts of a step.
[[nodiscard]] Rows part_rows(const forecast::Forecast& forecast);
/// Whether the memory suffices.
[[nodiscard]] std::string fit_line(const PlanView& view);
/// Checkpoints, failures, the end of training, energy and cost.
[[nodiscard]] std::vector<std::string> completion_lines(const PlanView& view);
/// How many grids were tried.
[[nodiscard]] std::string search_line(const forecast::SearchResult& result);
/// The first choices, at most `most`.
[[nodiscard]] Rows choice_rows(const std::vector<forecast::GridChoice>& choices, std::size_t most);
/// Those of which no other is both faster and smaller.
[[nodiscard]] Rows pareto_rows(const forecast::SearchResult& result);
/// The plan of each stage's rank with the most memory.
[[nodiscard]] std::vector<plan::RankPlan> stage_ranks(const forecast::Forecast& forecast);

}  // namespace strata::app
