#include "strata/pipeline/picture.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace strata::pipeline {
namespace {

// Units: pixels.
constexpr double kRowHeight = 26.0;
constexpr double kBoxHeight = 22.0;
constexpr double kLabelWidth = 64.0;
constexpr double kAxisHeight = 20.0;
constexpr double kLegendHeight = 34.0;
constexpr double kMargin = 10.0;
constexpr double kDigitWidth = 6.5;
constexpr double kLeastWidth = 900.0;
constexpr double kMostWidth = 24000.0;
constexpr double kBoxWidth = 22.0;
constexpr double kLeastOutlined = 3.0;
constexpr double kTickDistance = 100.0;

constexpr const char* kStyle = R"(<style>
.paper { fill: #ffffff; stroke: #ffffff } .ink { fill: #1d2733 } .idle { fill: #eceff3 } .box { stroke-width: 0.6 }
.tick { stroke: #7b8794 }
@media (prefers-color-scheme: dark) {
  .paper { fill: #14191f; stroke: #14191f } .ink { fill: #e3e8ee } .idle { fill: #29313a }
}
</style>
)";

/// The colours of chunk 0 and of the last chunk; those between are mixed.
struct Colours {
  ActionKind kind;
  const char* name;
  int first[3];
  int last[3];
};

constexpr Colours kColours[] = {
    {ActionKind::kForward, "forward", {66, 113, 190}, {170, 198, 240}},
    {ActionKind::kBackwardInput, "input gradient", {43, 140, 126}, {150, 212, 200}},
    {ActionKind::kBackwardWeight, "weight gradient", {120, 168, 64}, {205, 228, 166}},
    {ActionKind::kUnshard, "unshard", {222, 137, 44}, {222, 137, 44}},
    {ActionKind::kReshard, "reshard", {150, 111, 180}, {150, 111, 180}},
    {ActionKind::kReduceGradient, "reduce gradient", {196, 70, 74}, {196, 70, 74}}};

const Colours* colours_of(ActionKind kind) {
  const auto* const found = std::ranges::find(kColours, kind, &Colours::kind);
  return found == std::end(kColours) ? nullptr : found;
}

std::string colour_text(const Colours& colours, std::int64_t chunk, std::int64_t chunks) {
  const double share =
      chunks == 1 ? 0.0 : static_cast<double>(chunk) / static_cast<double>(chunks - 1);
  int mixed[3];
  for (int i = 0; i < 3; ++i) {
    mixed[i] = colours.first[i] +
               static_cast<int>(share * static_cast<double>(colours.last[i] - colours.first[i]));
  }
  return fmt::format("#{:02x}{:02x}{:02x}", mixed[0], mixed[1], mixed[2]);
}

std::string box(double x, double y, double width, const std::string& fill, const std::string& label,
                bool dark) {
  // An outline would hide the colour of a narrow box.
  std::string text = fmt::format(
      "<rect{} x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{}\" "
      "style=\"fill: {}\"/>\n",
      width < kLeastOutlined ? "" : " class=\"paper box\"", x, y, width, kBoxHeight, fill);
  if (!label.empty()) {
    text += fmt::format(
        "<text x=\"{:.2f}\" y=\"{:.2f}\" fill=\"{}\" text-anchor=\"middle\">{}</text>\n",
        x + width / 2.0, y + kBoxHeight / 2.0 + 4.0, dark ? "#ffffff" : "#1d2733", label);
  }
  return text;
}

struct Legend {
  std::string text;
  double end = 0.0;
};

/// The kinds of actions that take time; those of sharding have one colour for all chunks.
Legend legend_of(const Simulation& simulation, double y, std::int64_t chunks) {
  std::string text;
  double x = kLabelWidth;
  for (const Colours& colours : kColours) {
    if (std::ranges::none_of(simulation.actions, [&](const TimedAction& timed) {
          return timed.action.kind == colours.kind && timed.end_seconds > timed.begin_seconds;
        })) {
      continue;
    }
    const std::int64_t shades = is_sharding(colours.kind) ? 1 : chunks;
    for (std::int64_t chunk = 0; chunk < shades; ++chunk) {
      const std::string name =
          shades == 1 ? colours.name : fmt::format("{}, chunk {}", colours.name, chunk);
      text += box(x, y, kBoxWidth, colour_text(colours, chunk, shades), "", true);
      text += fmt::format("<text class=\"ink\" x=\"{:.2f}\" y=\"{:.2f}\">{}</text>\n",
                          x + kBoxWidth + 6.0, y + kBoxHeight / 2.0 + 4.0, name);
      x += kBoxWidth + 24.0 + kDigitWidth * static_cast<double>(name.size());
    }
  }
  return {.text = text, .end = x};
}

/// Round times below the rows.
std::string axis(double y, double span, double scale) {
  const double least = kTickDistance / scale;
  double tick = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {2.0, 2.5, 2.0}) {  // 2, 5 and 10 times a power of ten
    if (tick < least) {
      tick *= factor;
    }
  }
  std::string text;
  for (double count = 0.0; count * tick <= span; ++count) {
    const double x = kLabelWidth + count * tick * scale;
    text += fmt::format(
        "<path class=\"tick\" d=\"M{:.2f},{:.2f}v4\"/>\n"
        "<text class=\"ink\" x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"middle\">{:.6g}{}</text>\n",
        x, y, x, y + 15.0, count * tick, count == 0.0 ? " ms" : "");
  }
  return text;
}

}  // namespace

std::string picture_of(const Schedule& schedule, const Simulation& simulation,
                       std::span<const std::int64_t> ranks, double width) {
  double shortest = simulation.makespan_seconds;
  for (const TimedAction& timed : simulation.actions) {
    const double seconds = timed.end_seconds - timed.begin_seconds;
    if (colours_of(timed.action.kind) != nullptr && !is_sharding(timed.action.kind) &&
        seconds > 0.0) {
      shortest = std::min(shortest, seconds);
    }
  }
  // A box of the shortest action has room for a number, unless measured times make the picture too
  // wide for a screen.
  const double span = std::max(simulation.makespan_seconds, 1e-12);
  const double most =
      std::clamp(9.0 * kBoxWidth * static_cast<double>(schedule.microbatches * schedule.chunks),
                 kLeastWidth, kMostWidth);
  if (width == 0.0) {
    width = std::clamp(kBoxWidth * span / std::max(shortest, 1e-12), kLeastWidth, most);
  }
  const double scale = width / span;
  const double rows = static_cast<double>(schedule.stages) * kRowHeight;
  const Legend legend = legend_of(simulation, kMargin + rows + kAxisHeight + 8.0, schedule.chunks);
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n{}"
      "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n",
      std::max(kLabelWidth + width, legend.end) + 2.0 * kMargin,
      rows + kAxisHeight + kLegendHeight + 2.0 * kMargin, kStyle);
  for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
    const double y = kMargin + kRowHeight * static_cast<double>(stage);
    text += fmt::format("<text class=\"ink\" x=\"{}\" y=\"{:.2f}\">rank {}</text>\n", kMargin,
                        y + kBoxHeight / 2.0 + 4.0,
                        ranks.empty() ? stage : ranks[static_cast<std::size_t>(stage)]);
    text +=
        fmt::format("<rect class=\"idle\" x=\"{}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{}\"/>\n",
                    kLabelWidth, y, width, kBoxHeight);
  }
  for (const TimedAction& timed : simulation.actions) {
    const Colours* const colours = colours_of(timed.action.kind);
    const double box_width = (timed.end_seconds - timed.begin_seconds) * scale;
    if (colours == nullptr || box_width <= 0.0) {
      continue;
    }
    const std::string label =
        is_sharding(timed.action.kind) ? "" : std::to_string(timed.action.microbatch);
    const bool fits = box_width >= kDigitWidth * static_cast<double>(label.size()) + 2.0;
    text += box(kLabelWidth + timed.begin_seconds * scale,
                kMargin + kRowHeight * static_cast<double>(timed.stage), box_width,
                colour_text(*colours, timed.action.chunk, schedule.chunks), fits ? label : "",
                2 * timed.action.chunk < schedule.chunks);
  }
  text += axis(kMargin + rows, span, scale);
  return text + legend.text + "</svg>\n";
}

}  // namespace strata::pipeline
