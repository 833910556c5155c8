#include "drawing/step_drawing.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "drawing/svg.hpp"

namespace strata::app {
namespace {

using pipeline::ActionKind;
using pipeline::TimedAction;

// Units: pixels.
constexpr double kRowHeight = 26.0;
constexpr double kGroupHeight = 18.0;  // of a group's name
constexpr double kBoxHeight = 22.0;
constexpr double kLabelWidth = 64.0;
constexpr double kMargin = 10.0;
constexpr double kDigitWidth = 6.5;
constexpr double kBoxWidth = 22.0;

/// The colours of chunk 0 and of the last chunk; those between are mixed.
struct Colours {
  ActionKind kind;
  const char* name;
  int first[3];
  int last[3];
};

constexpr Colours kActionColours[] = {
    {ActionKind::kForward, "forward", {66, 113, 190}, {170, 198, 240}},
    {ActionKind::kBackwardInput, "input gradient", {43, 140, 126}, {150, 212, 200}},
    {ActionKind::kBackwardWeight, "weight gradient", {120, 168, 64}, {205, 228, 166}},
    {ActionKind::kUnshard, "unshard", {222, 137, 44}, {222, 137, 44}},
    {ActionKind::kReshard, "reshard", {150, 111, 180}, {150, 111, 180}},
    {ActionKind::kReduceGradient, "reduce gradient", {196, 70, 74}, {196, 70, 74}}};

std::string style_of(const Colours& colours, std::int64_t chunk, std::int64_t chunks) {
  const double share =
      chunks == 1 ? 0.0 : static_cast<double>(chunk) / static_cast<double>(chunks - 1);
  std::string text = "style=\"fill: #";
  for (int i = 0; i < 3; ++i) {
    text +=
        fmt::format("{:02x}", colours.first[i] +
                                  static_cast<int>(share * (colours.last[i] - colours.first[i])));
  }
  return text + '"';
}

/// The kinds of actions that take time; those of sharding have one colour for all chunks.
std::vector<NamedMark> legend_of(const pipeline::Simulation& simulation, std::int64_t chunks) {
  // Where passes compute both gradients, weight gradients are measured as the time between two
  // readings of the clock.
  constexpr double kNothing = 0.02;
  const auto seconds_of = [&](ActionKind kind) {
    double seconds = 0.0;
    for (const TimedAction& timed : simulation.actions) {
      seconds += timed.action.kind == kind ? timed.end_seconds - timed.begin_seconds : 0.0;
    }
    return seconds;
  };
  const bool fused =
      seconds_of(ActionKind::kBackwardWeight) < kNothing * seconds_of(ActionKind::kBackwardInput);
  std::vector<NamedMark> legend;
  for (const Colours& colours : kActionColours) {
    if (!(seconds_of(colours.kind) > 0.0) ||
        (fused && colours.kind == ActionKind::kBackwardWeight)) {
      continue;
    }
    const char* const name = fused && colours.kind == ActionKind::kBackwardInput
                                 ? "backward (input and weight gradient)"
                                 : colours.name;
    const std::int64_t shades = is_sharding(colours.kind) ? 1 : chunks;
    for (std::int64_t chunk = 0; chunk < shades; ++chunk) {
      legend.push_back({Mark::kArea, "",
                        shades == 1 ? name : fmt::format("{}, chunk {}", name, chunk),
                        style_of(colours, chunk, shades)});
    }
  }
  return legend;
}

/// `y`: the top of the row.
void draw(Svg& svg, const TimedAction& timed, const Colours& colours, std::int64_t chunks, double y,
          double scale) {
  constexpr double kLeastOutlined = 3.0;
  const Box box{kLabelWidth + timed.begin_seconds * scale, y,
                (timed.end_seconds - timed.begin_seconds) * scale, kBoxHeight};
  const std::int64_t chunk = timed.action.chunk;
  // An outline would hide the colour of a narrow box.
  svg.rect(box, box.width < kLeastOutlined ? "" : "paper box", style_of(colours, chunk, chunks));
  const std::string label = fmt::format("{}", timed.action.microbatch);
  if (!is_sharding(colours.kind) &&
      box.width >= kDigitWidth * static_cast<double>(label.size()) + 2.0) {
    svg.text(box.x + box.width / 2.0, box.y + kBoxHeight / 2.0 + 4.0, label, "middle",
             2 * chunk < chunks ? "fill=\"#ffffff\"" : "fill=\"#1d2733\"");
  }
}

/// Of the step: a box of the shortest action has room for a number, unless measured times make the
/// picture too wide for a screen.
double width_of(const pipeline::Schedule& schedule, const pipeline::Simulation& simulation) {
  constexpr double kLeast = 900.0;
  constexpr double kMost = 24000.0;
  double shortest = simulation.makespan_seconds;
  for (const TimedAction& timed : simulation.actions) {
    const double seconds = timed.end_seconds - timed.begin_seconds;
    const auto* const colours =
        std::ranges::find(kActionColours, timed.action.kind, &Colours::kind);
    if (colours != std::end(kActionColours) && !is_sharding(colours->kind) && seconds > 0.0) {
      shortest = std::min(shortest, seconds);
    }
  }
  const double most =
      std::clamp(9.0 * kBoxWidth * static_cast<double>(schedule.microbatches * schedule.chunks),
                 kLeast, kMost);
  return std::clamp(kBoxWidth * simulation.makespan_seconds / std::max(shortest, 1e-12), kLeast,
                    most);
}

}  // namespace

std::string svg_of(const pipeline::Schedule& schedule, const pipeline::Simulation& simulation,
                   const DrawnRanks& rows, double width) {
  constexpr double kTickDistance = 100.0;
  width = width == 0.0 ? width_of(schedule, simulation) : width;
  const double scale = width / std::max(simulation.makespan_seconds, 1e-12);
  Svg svg;
  svg.open("style=\"font-size: 11px\"");
  const std::size_t named = rows.groups.size() > 1 ? rows.groups.size() : 0;
  std::vector<double> tops;
  tops.reserve(static_cast<std::size_t>(schedule.stages));
  for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
    const auto above = std::ranges::count_if(
        rows.groups, [&](std::int64_t first) { return first <= stage; }, &DrawnRanks::Group::first);
    const double y = kMargin + kRowHeight * static_cast<double>(stage) +
                     (named > 0 ? kGroupHeight * static_cast<double>(above) : 0.0);
    tops.push_back(y);
    const std::int64_t rank =
        rows.ranks.empty() ? stage : rows.ranks[static_cast<std::size_t>(stage)];
    svg.text(kMargin, y + kBoxHeight / 2.0 + 4.0, fmt::format("rank {}", rank), "ink");
    svg.rect({kLabelWidth, y, width, kBoxHeight}, "idle");
  }
  for (std::size_t group = 0; group < named; ++group) {
    svg.text(kLabelWidth, tops[static_cast<std::size_t>(rows.groups[group].first)] - 6.0,
             rows.groups[group].name, "soft");
  }
  for (const TimedAction& timed : simulation.actions) {
    const auto* const colours =
        std::ranges::find(kActionColours, timed.action.kind, &Colours::kind);
    if (colours != std::end(kActionColours) && timed.end_seconds > timed.begin_seconds) {
      draw(svg, timed, *colours, schedule.chunks, tops[static_cast<std::size_t>(timed.stage)],
           scale);
    }
  }
  const double bottom = kMargin + kRowHeight * static_cast<double>(schedule.stages) +
                        kGroupHeight * static_cast<double>(named);
  const double right = kLabelWidth + width + 2.0 * kMargin;
  for (const double at :
       ticks_in({.least = 0.0, .most = simulation.makespan_seconds}, width / kTickDistance)) {
    svg.tick(kLabelWidth + at * scale, bottom, fmt::format("{:.6g}{}", at, at == 0.0 ? " ms" : ""),
             right);
  }
  const Box legend = svg.legend(legend_of(simulation, schedule.chunks), kLabelWidth, bottom + 28.0,
                                std::max(right, 900.0));
  svg.close();
  return svg.whole(std::max(right, kLabelWidth + legend.width + 2.0 * kMargin),
                   bottom + 28.0 + legend.height + kMargin, SvgPlace::kFile, 1.0, "");
}

}  // namespace strata::app
