#include "commands/planning/plan_page.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "strata/core/text.hpp"

#include "drawing/chart.hpp"
#include "drawing/page.hpp"
#include "drawing/step_drawing.hpp"
#include "environment/versions.hpp"

namespace strata::app {
namespace {

/// Parts of a bar that have a colour of their own; the smallest of more are drawn as one.
constexpr std::size_t kMostParts = 8;

std::string range_text(std::int64_t begin, std::int64_t end) {
  return end - begin == 1 ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, end - 1);
}

// ---- ranks on nodes

/// Nodes as boxes in rows, and ranks in them coloured by stage. Units: pixels.
class GridPicture {
 public:
  GridPicture(const grid::Grid& grid, std::int64_t node_ranks)
      : grid_(grid), node_ranks_(std::min(node_ranks, grid.ranks())) {
    const std::int64_t nodes = (grid.ranks() + node_ranks_ - 1) / node_ranks_;
    single_ = grid.ranks() <= kMostSingle;
    // Consecutive nodes share a box where there are too many.
    box_nodes_ = (nodes + kMostBoxes - 1) / kMostBoxes;
    boxes_ = (nodes + box_nodes_ - 1) / box_nodes_;
    constexpr std::int64_t kFewRanks = 32;
    row_ranks_ =
        std::min(node_ranks_, node_ranks_ <= kFewRanks ? std::int64_t{8} : std::int64_t{16});
    inner_width_ = single_ ? rank_x(row_ranks_ - 1) + kRank : kGroupWidth;
    const std::int64_t rank_rows = (node_ranks_ + row_ranks_ - 1) / row_ranks_;
    inner_height_ = single_ ? static_cast<double>(rank_rows) * (kRank + kGap) : kGroupHeight;
    columns_ =
        std::clamp(static_cast<std::int64_t>(kPageWidth / (inner_width_ + 2 * kPad + kBoxGap)),
                   std::int64_t{1}, boxes_);
  }

  [[nodiscard]] std::string svg() const {
    const double step_x = inner_width_ + 2.0 * kPad + kBoxGap;
    const double step_y = inner_height_ + kHead + kPad + kBoxGap;
    const std::int64_t rows = (boxes_ + columns_ - 1) / columns_;
    Svg svg;
    for (std::int64_t box = 0; box < boxes_; ++box) {
      const std::int64_t row = box / columns_;
      draw_box(svg, box, static_cast<double>(box % columns_) * step_x + 1.0,
               static_cast<double>(row) * step_y + 1.0);
    }
    std::vector<NamedMark> stages;
    for (std::int64_t stage = 0; stage < grid_.pipeline; ++stage) {
      stages.push_back({Mark::kArea, "", fmt::format("stage {}", stage), fill_of(stage)});
    }
    const double width = std::max(static_cast<double>(columns_) * step_x, kLeastWidth);
    const double bottom = static_cast<double>(rows) * step_y;
    const Box legend = svg.legend(stages, 1.0, bottom, width);
    return fmt::format(
        "<div class=\"scroll\">{}</div>\n",
        svg.whole(width, bottom + legend.height, SvgPlace::kPage, 1.0,
                  fmt::format("{} on nodes of {} ranks", grid_.text(), node_ranks_)));
  }

  [[nodiscard]] std::string note() const {
    return single_ ? "Boxes are nodes, squares are ranks with their numbers; the ranks of a tensor "
                     "group stand close together. The colour is the stage's."
           : box_nodes_ == 1 ? "Boxes are nodes; their colours are the stages of their ranks."
                             : fmt::format(
                                   "A box stands for {} nodes; its colours are the stages of their "
                                   "ranks.",
                                   box_nodes_);
  }

 private:
  static constexpr std::int64_t kMostSingle = 512;
  static constexpr std::int64_t kMostBoxes = 512;
  static constexpr double kPageWidth = 1360.0;
  static constexpr double kLeastWidth = 120.0;
  static constexpr double kRank = 24.0;
  static constexpr double kGap = 2.0;
  static constexpr double kGroupGap = 5.0;  // more between tensor groups
  static constexpr double kPad = 6.0;
  static constexpr double kHead = 18.0;
  static constexpr double kBoxGap = 8.0;
  static constexpr double kGroupWidth = 72.0;
  static constexpr double kGroupHeight = 16.0;

  /// A colour that is readable below white digits; neighbours differ.
  [[nodiscard]] std::string fill_of(std::int64_t stage) const {
    const double share = static_cast<double>(stage) / static_cast<double>(grid_.pipeline);
    const double hue = std::fmod(212.0 + 360.0 * share, 360.0);
    // Yellow and green are lighter than their lightness says.
    const int lightness = (stage % 2 == 0 ? 34 : 44) - (hue > 40.0 && hue < 190.0 ? 12 : 0);
    return fmt::format("rx=\"3\" fill=\"hsl({:.0f} 62% {}%)\"", hue, lightness);
  }

  /// The left edge of a rank in its row.
  [[nodiscard]] double rank_x(std::int64_t in_row) const {
    const std::int64_t group = in_row / grid_.tensor;
    return static_cast<double>(in_row) * (kRank + kGap) + static_cast<double>(group) * kGroupGap;
  }

  void draw_box(Svg& svg, std::int64_t box, double x, double y) const {
    const std::int64_t nodes = (grid_.ranks() + node_ranks_ - 1) / node_ranks_;
    const std::int64_t first_node = box * box_nodes_;
    const std::int64_t end_node = std::min(nodes, first_node + box_nodes_);
    const std::int64_t first = first_node * node_ranks_;
    const std::int64_t end = std::min(grid_.ranks(), end_node * node_ranks_);
    svg.rect({x, y, inner_width_ + 2.0 * kPad, inner_height_ + kHead + kPad}, "grid", "rx=\"4\"");
    svg.text(x + kPad, y + 13.0,
             fmt::format("node{} {}", end_node - first_node == 1 ? "" : "s",
                         range_text(first_node, end_node)),
             "soft");
    (single_ ? draw_ranks(svg, first, end, x + kPad, y + kHead)
             : draw_groups(svg, first, end, x + kPad, y + kHead));
  }

  void draw_ranks(Svg& svg, std::int64_t first, std::int64_t end, double x, double y) const {
    for (std::int64_t rank = first; rank < end; ++rank) {
      const grid::Coordinates at = grid_.coordinates_of(rank);
      const std::int64_t in_node = rank - first;
      const double left = x + rank_x(in_node % row_ranks_);
      const std::int64_t row = in_node / row_ranks_;
      const double top = y + static_cast<double>(row) * (kRank + kGap);
      svg.open("", fmt::format("rank {}: {}data {}, pipeline {}, tensor {}", rank,
                               grid_.islands == 1 ? "" : fmt::format("island {}, ", at.islands),
                               at.data, at.pipeline, at.tensor));
      svg.rect({left, top, kRank, kRank}, "", fill_of(at.pipeline));
      svg.text(left + kRank / 2.0, top + 16.0, fmt::format("{}", rank), "middle",
               "fill=\"#ffffff\" style=\"font-size: 11px\"");
      svg.close();
    }
  }

  /// The stages of a box as parts of a bar: ranks of a stage are consecutive.
  void draw_groups(Svg& svg, std::int64_t first, std::int64_t end, double x, double y) const {
    const std::int64_t stage_ranks = grid_.ranks() / grid_.pipeline;
    const double scale = inner_width_ / static_cast<double>(end - first);
    for (std::int64_t rank = first; rank < end;) {
      const std::int64_t stage = rank / stage_ranks;
      const std::int64_t last = std::min(end, (stage + 1) * stage_ranks);
      svg.open("", fmt::format("ranks {}: stage {}", range_text(rank, last), stage));
      svg.rect({x + static_cast<double>(rank - first) * scale, y,
                static_cast<double>(last - rank) * scale, kGroupHeight},
               "", fill_of(stage));
      svg.close();
      rank = last;
    }
  }

  const grid::Grid& grid_;
  std::int64_t node_ranks_;
  bool single_ = true;
  std::int64_t box_nodes_ = 1;
  std::int64_t boxes_ = 1;
  std::int64_t row_ranks_ = 1;
  std::int64_t columns_ = 1;
  double inner_width_ = 0.0;
  double inner_height_ = 0.0;
};

/// Which ranks and layers a stage has, and what it computes.
std::string stages_table(const PlanView& view) {
  const std::int64_t stage_ranks = view.plan.grid.ranks() / view.plan.grid.pipeline;
  Rows rows{{"stage", "ranks", "layers", "forward and backward of a microbatch",
             "computes in a step", "memory of a rank"}};
  for (const forecast::StageForecast& stage : view.forecast.stages) {
    const std::int64_t number = std::ssize(rows) - 1;
    std::string layers;
    for (const nn::StageSpec& chunk : stage.rank.chunks) {
      layers += (layers.empty() ? "" : ", ") + range_text(chunk.layers.begin, chunk.layers.end);
    }
    double forward = 0.0;
    double backward = 0.0;
    for (const pipeline::ChunkTimes& times : stage.chunks) {
      forward += times.forward_seconds;
      backward += times.backward_input_seconds + times.backward_weight_seconds;
    }
    rows.push_back(
        {fmt::format("{}", number), range_text(number * stage_ranks, (number + 1) * stage_ranks),
         layers, fmt::format("{}, {}", time_text(forward), time_text(backward)),
         time_text(stage.compute_seconds), bytes_text(std::llround(stage.memory_bytes))});
  }
  return html_table(rows);
}

// ---- bars

using Parts = std::vector<std::pair<std::string, double>>;

/// Names of parts, the largest first; the smallest of too many are "other".
std::vector<std::string> names_of(Parts parts) {
  std::ranges::stable_sort(parts, std::greater(), &Parts::value_type::second);
  std::vector<std::string> names;
  for (const auto& [name, value] : parts) {
    if (value > 0.0 && names.size() + 1 < kMostParts) {
      names.push_back(name);
    }
  }
  names.emplace_back("other");
  return names;
}

/// Adds a bar; parts without a name of their own are in "other", the last one.
template <typename TextOf>
void add_bar(BarChart& chart, const std::string& label, const Parts& parts, TextOf text_of) {
  BarChart::Bar bar{.label = label, .parts = std::vector<double>(chart.names.size()), .inside = {}};
  for (const auto& [name, value] : parts) {
    const auto found = std::find(chart.names.begin(), chart.names.end() - 1, name);
    bar.parts[static_cast<std::size_t>(found - chart.names.begin())] += value;
  }
  std::ranges::transform(bar.parts, std::back_inserter(bar.inside), text_of);
  chart.bars.push_back(std::move(bar));
}

void drop_empty_other(BarChart& chart) {
  if (std::ranges::all_of(chart.bars,
                          [](const BarChart::Bar& bar) { return bar.parts.back() <= 0.0; })) {
    chart.names.pop_back();
    for (BarChart::Bar& bar : chart.bars) {
      bar.parts.pop_back();
    }
  }
}

BarChart step_chart(const forecast::Forecast& forecast) {
  Parts parts;
  for (const forecast::StepPart& part : forecast.parts) {
    parts.emplace_back(part.name, part.seconds);
  }
  BarChart chart{.title = "Time of a step", .names = names_of(parts), .bars = {}};
  add_bar(chart, time_text(forecast.step_seconds), parts, [&](double seconds) {
    return fmt::format("{:.0f} %", 100.0 * seconds / forecast.step_seconds);
  });
  drop_empty_other(chart);
  return chart;
}

/// The memory of a rank of each stage; consecutive stages with the same memory share a bar.
BarChart memory_chart(const PlanView& view) {
  std::map<std::string, double> largest;
  std::vector<Parts> parts;
  for (const forecast::StageForecast& stage : view.forecast.stages) {
    Parts& own = parts.emplace_back();
    for (const nn::MemoryItem& item : stage.rank.memory) {
      own.emplace_back(item.name, static_cast<double>(item.bytes));
      largest[item.name] = std::max(largest[item.name], own.back().second);
    }
  }
  const std::string free = bytes_text(std::llround(view.forecast.free_bytes));
  BarChart chart{.title = "Memory of a rank",
                 .names = names_of({largest.begin(), largest.end()}),
                 .bars = {},
                 .limit = view.forecast.free_bytes,
                 .limit_name = fmt::format("{} for a rank's arenas", free)};
  std::int64_t first = 0;
  for (std::int64_t s = 0; s < std::ssize(parts); ++s) {
    const auto stage = static_cast<std::size_t>(s);
    add_bar(chart, "", parts[stage], [](double bytes) { return bytes_text(std::llround(bytes)); });
    if (const std::size_t bars = chart.bars.size();
        bars > 1 && chart.bars[bars - 2].parts == chart.bars[bars - 1].parts) {
      chart.bars.pop_back();
    } else {
      first = s;
    }
    chart.bars.back().label =
        fmt::format("{} {}: {}", first == s ? "stage" : "stages", range_text(first, s + 1),
                    bytes_text(std::llround(view.forecast.stages[stage].memory_bytes)));
  }
  drop_empty_other(chart);
  return chart;
}

// ---- the step

std::string forecast_picture(const PlanView& view) {
  constexpr double kWidth = 1240.0;
  constexpr std::size_t kMostActions = 60000;
  constexpr std::size_t kMostNumbered = 4000;
  constexpr double kNumberWidth = 22.0;
  pipeline::Simulation shown = view.forecast.simulation;
  if (shown.actions.empty() || shown.actions.size() > kMostActions) {
    return fmt::format(
        "<p>The step has {} actions, too many for a picture; strata schedule draw shows a "
        "schedule.</p>\n",
        view.plan.training.microbatches * view.plan.training.chunks * view.plan.grid.pipeline);
  }
  constexpr double kMilliseconds = 1e3;
  shown.makespan_seconds *= kMilliseconds;
  for (pipeline::TimedAction& timed : shown.actions) {
    timed.begin_seconds *= kMilliseconds;
    timed.end_seconds *= kMilliseconds;
  }
  const std::int64_t stage_ranks = view.plan.grid.ranks() / view.plan.grid.pipeline;
  DrawnRanks rows;
  for (std::int64_t s = 0; s < view.plan.grid.pipeline; ++s) {
    rows.ranks.push_back(s * stage_ranks);
  }
  std::string text =
      html_figure(svg_of(view.plan.training, shown, rows, kWidth),
                  "The first rank of each stage, until its last pass; the optimizer follows");
  const auto passes =
      static_cast<double>(2 * view.plan.training.microbatches * view.plan.training.chunks);
  if (passes * kNumberWidth > kWidth && shown.actions.size() <= kMostNumbered) {
    text += fmt::format(
        "<details><summary>With the numbers of the microbatches</summary>\n{}</details>\n",
        html_figure(svg_of(view.plan.training, shown, rows),
                    "Boxes have the number of their microbatch"));
  }
  return text;
}

// ---- the search

ScatterChart::Point point_of(const forecast::GridChoice& choice) {
  constexpr double kGibibyte = 1073741824.0;
  return {.x = choice.memory_bytes / kGibibyte,
          .y = choice.step_seconds,
          .colour = static_cast<std::size_t>(choice.recompute),
          .label = fmt::format("{}, batch.micro {}, {}, recompute {}: {}, {}", choice.grid.text(),
                               choice.microbatch, choice.schedule, name_of(choice.recompute),
                               time_text(choice.step_seconds),
                               bytes_text(std::llround(choice.memory_bytes)))};
}

std::string search_section(const forecast::SearchResult& search) {
  constexpr std::size_t kMostPoints = 3000;
  constexpr std::size_t kBest = 10;
  ScatterChart chart{.title = "Seconds of a step by GiB of the rank that needs most",
                     .names = {},
                     .points = {},
                     .line = {},
                     .line_name = "no other is both faster and smaller",
                     .marked = point_of(search.choices.front()),
                     .marked_name = "chosen: the fastest that fits"};
  for (const auto& [recompute, name] : enum_table<nn::Recompute>()) {
    chart.names.push_back(fmt::format("train.recompute = {}", name));
  }
  for (std::size_t i = 0; i < std::min(kMostPoints, search.choices.size()); ++i) {
    chart.points.push_back(point_of(search.choices[i]));
  }
  for (const forecast::GridChoice& choice : forecast::pareto_of(search.choices)) {
    chart.line.push_back(point_of(choice));
  }
  return html_section("Grids", svg_of(chart, SvgPlace::kPage), escaped(search_line(search))) +
         html_table(choice_rows(search.choices, kBest), "The fastest") +
         (chart.line.size() > 1 ? html_table(pareto_rows(search), "Less memory for more time")
                                : "");
}

std::string tables_section(const PlanView& view) {
  const std::vector<plan::RankPlan> ranks = stage_ranks(view.forecast);
  std::string text;
  for (const Rows& rows : plan::memory_rows(view.plan, ranks)) {
    text += html_table(rows);
  }
  text += view.plan.grid.ranks() > 1 ? html_table(plan::traffic_rows(view.plan, ranks)) : "";
  return "<h2>Memory and traffic of each stage</h2>\n" + text;
}

}  // namespace

std::string plan_page(const PlanView& view, const std::string& title, std::int64_t node_ranks,
                      const forecast::SearchResult* search) {
  const GridPicture picture(view.plan.grid, node_ranks);
  std::string text = html_list(step_lines(view)) + "<h2>End of training</h2>\n" +
                     html_list(completion_lines(view));
  text += html_section("Time and memory",
                       svg_of(step_chart(view.forecast), SvgPlace::kPage) +
                           svg_of(memory_chart(view), SvgPlace::kPage),
                       escaped(fit_line(view)));
  text += html_table(part_rows(view.forecast));
  text += fmt::format("<h2>Ranks</h2>\n<p class=\"soft\">{}</p>\n{}{}", picture.note(),
                      picture.svg(), stages_table(view));
  text += "<h2>The step</h2>\n" + forecast_picture(view);
  text += search == nullptr || search->choices.empty() ? "" : search_section(*search);
  text += tables_section(view);
  text += fmt::format("<p class=\"soft\">Written by strata plan {}. The times are forecasts.</p>\n",
                      escaped(own_version()));
  return html_page(title, text);
}

}  // namespace strata::app
