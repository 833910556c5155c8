#include "commands/watching/chart.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "strata/core/utf8.hpp"

namespace strata::app {
namespace {

// Units: pixels of the view box; a page scales it to between 0.8 and 1.3 times.
constexpr double kWidth = 440.0;
constexpr double kLeft = 54.0;
constexpr double kRight = 12.0;
constexpr double kTop = 34.0;
constexpr double kHeight = 190.0;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kRow = 17.0;
constexpr double kCharacter = 7.0;  // mean width of wide fonts

constexpr std::size_t kColours = 8;

struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  void add(double value) {
    if (std::isfinite(value)) {
      least = std::min(least, value);
      most = std::max(most, value);
    }
  }
  [[nodiscard]] bool empty() const { return least > most; }
  /// A range that cannot be drawn, as of one value, gets a width.
  [[nodiscard]] Range widened() const {
    constexpr double kMost = std::numeric_limits<double>::max();
    const double margin =
        is_drawable(least, most) ? 0.0 : std::max({std::abs(least), std::abs(most), 1.0}) / 2.0;
    return {.least = std::max(least - margin, -kMost), .most = std::min(most + margin, kMost)};
  }
  [[nodiscard]] double share(double value) const {
    return is_drawable(least, most) ? (value - least) / (most - least) : 0.5;
  }
};

std::string begin(double height, const std::string& title, SvgPlace place) {
  const std::string file =
      fmt::format(" xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\"",
                  2.0 * kWidth, 2.0 * height);
  return fmt::format(
      "<svg class=\"chart\"{} viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n"
      "{}<text class=\"ink title\" x=\"8\" y=\"18\">{}</text>\n",
      place == SvgPlace::kFile ? file : "", kWidth, height, escaped(title),
      place == SvgPlace::kFile
          ? fmt::format(
                "<style>{}</style>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n",
                chart_style())
          : "",
      escaped(title));
}

/// The colour of a curve; further curves have the same colours and are dashed.
std::string stroke_of(const Curve& curve) {
  const std::size_t colour = curve.colour % kColours;
  return fmt::format("curve c{}{}", colour, curve.colour < kColours ? "" : " dashed");
}

/// Round numbers in a range, about `count` of them.
std::vector<double> ticks_in(const Range& range, double count) {
  if (!is_drawable(range.least, range.most)) {
    return {};
  }
  const double least = (range.most - range.least) / count;
  double tick = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {2.0, 2.5, 2.0}) {  // 2, 5 and 10 times a power of ten
    tick *= tick < 0.999 * least ? factor : 1.0;
  }
  std::vector<double> ticks;
  const double first = std::ceil(range.least / tick - 1e-9);
  for (int i = 0; first + i <= range.most / tick + 1e-9; ++i) {
    const double at = first + i;
    ticks.push_back(std::abs(at) < 1e-9 ? 0.0 : at * tick);
  }
  return ticks;
}

/// 1, 2 and 5 times powers of ten, or the powers alone; the range is of logarithms.
std::vector<double> log_ticks_in(const Range& range) {
  constexpr double kFewDecades = 2.5;
  std::vector<double> ticks;
  const double every = std::max(1.0, std::ceil((range.most - range.least) / 6.0));
  for (int i = 0; std::floor(range.least) + i * every <= range.most; ++i) {
    const double power = std::floor(range.least) + i * every;
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double at = power + std::log10(factor);
      if (at >= range.least - 1e-9 && at <= range.most + 1e-9 &&
          (factor == 1.0 || range.most - range.least < kFewDecades)) {
        ticks.push_back(at);
      }
    }
  }
  return ticks;
}

std::string tick_text(double value) {
  constexpr double kMost = 1e13;
  for (const auto& [unit, name] : {std::pair(1e9, "G"), std::pair(1e6, "M"), std::pair(1e3, "k")}) {
    if (std::abs(value) >= unit && std::abs(value) < kMost) {
      return fmt::format("{:.4g}{}", value / unit, name);
    }
  }
  return fmt::format("{:.4g}", value);
}

struct Axes {
  Range x;
  Range y;  ///< of logarithms, if `logarithmic`
  bool logarithmic = false;

  [[nodiscard]] double column(double value) const { return kLeft + kPlotWidth * x.share(value); }
  [[nodiscard]] double row(double value) const {
    return kTop + kHeight * (1.0 - y.share(logarithmic ? std::log10(value) : value));
  }
};

Axes axes_of(const LineChart& chart) {
  Axes axes;
  for (const Curve& curve : chart.curves) {
    for (std::size_t i = 0; i < curve.y.size(); ++i) {
      if (std::isfinite(curve.y[i])) {
        axes.x.add(curve.x[i]);
        axes.y.add(curve.y[i]);
      }
    }
  }
  constexpr double kWideFactor = 30.0;
  axes.logarithmic = chart.scale == LineChart::Scale::kWide && axes.y.least > 0.0 &&
                     axes.y.most > kWideFactor * axes.y.least;
  if (axes.logarithmic) {
    axes.y = {.least = std::log10(axes.y.least), .most = std::log10(axes.y.most)};
  }
  if (chart.scale == LineChart::Scale::kFromZero) {
    axes.y.add(0.0);
  }
  axes.x = axes.x.widened();
  axes.y = axes.y.widened();
  return axes;
}

std::string grid_of(const Axes& axes) {
  std::string text;
  for (const double tick : axes.logarithmic ? log_ticks_in(axes.y) : ticks_in(axes.y, 5.0)) {
    const double y = kTop + kHeight * (1.0 - axes.y.share(tick));
    text += fmt::format(
        "<path class=\"grid\" d=\"M{},{:.1f}h{}\"/><text class=\"soft end\" x=\"{}\" "
        "y=\"{:.1f}\">{}</text>\n",
        kLeft, y, kPlotWidth, kLeft - 6.0, y + 4.0,
        tick_text(axes.logarithmic ? std::pow(10.0, tick) : tick));
  }
  for (const double tick : ticks_in(axes.x, 5.0)) {
    const double x = axes.column(tick);
    const std::string label = tick_text(tick);
    // A label at the end must not leave the picture.
    const double most = kWidth - 2.0 - kCharacter * static_cast<double>(label.size()) / 2.0;
    text += fmt::format(
        "<path class=\"grid\" d=\"M{:.1f},{}v4\"/><text class=\"soft middle\" x=\"{:.1f}\" "
        "y=\"{}\">{}</text>\n",
        x, kTop + kHeight, std::min(x, most), kTop + kHeight + 17.0, label);
  }
  return text;
}

/// The points of a curve that are drawn: all, or the least and the greatest of each column.
std::vector<std::size_t> drawn_points(const Curve& curve, const Axes& axes) {
  std::vector<std::size_t> points(curve.x.size());
  std::iota(points.begin(), points.end(), std::size_t{0});
  if (static_cast<double>(points.size()) <= 2.0 * kPlotWidth) {
    return points;
  }
  points.clear();
  for (std::size_t begin = 0; begin < curve.x.size();) {
    const double column = std::floor(axes.column(curve.x[begin]));
    std::optional<std::size_t> least;
    std::optional<std::size_t> most;
    std::optional<std::size_t> gap;
    std::size_t end = begin;
    for (; end < curve.x.size() && std::floor(axes.column(curve.x[end])) == column; ++end) {
      if (!std::isfinite(curve.y[end])) {
        gap = end;
        continue;
      }
      least = !least || curve.y[end] < curve.y[*least] ? end : *least;
      most = !most || curve.y[end] > curve.y[*most] ? end : *most;
    }
    if (!least) {
      points.push_back(*gap);
    } else {
      points.push_back(std::min(*least, *most));
      if (*least != *most) {
        points.push_back(std::max(*least, *most));
      }
    }
    begin = end;
  }
  return points;
}

std::string path_of(const Curve& curve, const Axes& axes) {
  constexpr std::size_t kMostMarked = 40;
  const std::size_t colour = curve.colour % kColours;
  std::string path;
  std::string marks;
  enum class Pen { kUp, kDown } pen = Pen::kUp;
  for (const std::size_t i : drawn_points(curve, axes)) {
    if (!std::isfinite(curve.y[i])) {
      pen = Pen::kUp;
      continue;
    }
    const std::string at =
        fmt::format("{:.2f},{:.2f}", axes.column(curve.x[i]), axes.row(curve.y[i]));
    path += (pen == Pen::kUp ? "M" : "L") + at;
    pen = Pen::kDown;
    if (curve.x.size() <= kMostMarked) {
      marks += fmt::format("<circle class=\"f{}\" cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"2.2\"/>", colour,
                           axes.column(curve.x[i]), axes.row(curve.y[i]));
    }
  }
  return fmt::format("<path class=\"{}\" data-run=\"{}\" d=\"{}\"/>{}\n", stroke_of(curve),
                     escaped(curve.name), path, marks);
}

}  // namespace

bool is_drawable(double least, double most) {
  constexpr double kLeastShare = 1e-12;
  const double span = most - least;
  return std::isfinite(span) && span > kLeastShare * std::max(std::abs(least), std::abs(most));
}

std::string escaped(std::string_view text, std::size_t most_bytes) {
  std::string result;
  for (const char character : printable(text, most_bytes)) {
    switch (character) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += character;
    }
  }
  return result;
}

std::string shortened(const std::string& text, std::size_t length) {
  std::string result;
  std::size_t count = 0;
  const std::string clean = printable(text, 4 * length + 8);
  for (std::string_view rest = clean; !rest.empty(); ++count) {
    const std::size_t bytes = first_character(rest).bytes;
    if (count + 1 == length && rest.size() > bytes) {
      return result + "\u2026";
    }
    result += rest.substr(0, bytes);
    rest.remove_prefix(bytes);
  }
  return result;
}

std::string chart_style() {
  return R"(
.chart { font: 12px system-ui, sans-serif }
.paper { fill: #ffffff } .ink { fill: #1d2733 } .soft { fill: #52606d } .onto { fill: #ffffff }
.title { font-weight: 600; font-size: 13px } .end { text-anchor: end } .middle { text-anchor: middle }
.grid { stroke: #d5dbe1; fill: none } .limit { stroke: #c81e1e; stroke-width: 2; fill: none } .curve { fill: none; stroke-width: 1.4; stroke-linejoin: round } .dashed { stroke-dasharray: 4 2 }
.c0 { stroke: #0b62c4 } .c1 { stroke: #c2410c } .c2 { stroke: #15803d } .c3 { stroke: #7e22ce }
.c4 { stroke: #be185d } .c5 { stroke: #0e7490 } .c6 { stroke: #854d0e } .c7 { stroke: #475569 }
.f0 { fill: #0b62c4 } .f1 { fill: #c2410c } .f2 { fill: #15803d } .f3 { fill: #7e22ce }
.f4 { fill: #be185d } .f5 { fill: #0e7490 } .f6 { fill: #854d0e } .f7 { fill: #475569 }
@media (prefers-color-scheme: dark) {
.paper { fill: #14191f } .ink { fill: #e3e8ee } .soft { fill: #a9b4bf } .onto { fill: #0c1014 }
.grid { stroke: #323c46 } .limit { stroke: #ff7a7a }
.c0 { stroke: #6cb2ff } .c1 { stroke: #ff9a5c } .c2 { stroke: #5fd38a } .c3 { stroke: #c69bff }
.c4 { stroke: #ff8fc4 } .c5 { stroke: #4fd1e8 } .c6 { stroke: #e3c04a } .c7 { stroke: #b6c2d1 }
.f0 { fill: #6cb2ff } .f1 { fill: #ff9a5c } .f2 { fill: #5fd38a } .f3 { fill: #c69bff }
.f4 { fill: #ff8fc4 } .f5 { fill: #4fd1e8 } .f6 { fill: #e3c04a } .f7 { fill: #b6c2d1 }
}
)";
}

bool LineChart::empty() const {
  return std::ranges::none_of(curves, [](const Curve& curve) {
    return std::ranges::any_of(curve.y, [](double value) { return std::isfinite(value); });
  });
}

std::string svg_of(const LineChart& chart, SvgPlace place) {
  constexpr std::size_t kMostNamed = 24;
  constexpr std::size_t kNameLength = 48;
  const Axes axes = axes_of(chart);
  const std::size_t named = std::min(chart.curves.size(), kMostNamed);
  const std::size_t rows = named + (named < chart.curves.size() ? 1 : 0);
  const double bottom = kTop + kHeight + 26.0;
  std::string text = begin(bottom + kRow * static_cast<double>(rows) + 6.0, chart.title, place);
  text += grid_of(axes);
  text += fmt::format(
      "<g class=\"plot\" data-left=\"{}\" data-right=\"{}\" data-top=\"{}\" data-bottom=\"{}\" "
      "data-x=\"{} {}\" data-y=\"{} {}\" data-log=\"{}\">\n",
      kLeft, kLeft + kPlotWidth, kTop, kTop + kHeight, axes.x.least, axes.x.most, axes.y.least,
      axes.y.most, axes.logarithmic ? 1 : 0);
  for (const Curve& curve : chart.curves) {
    text += path_of(curve, axes);
  }
  text += "</g>\n";
  for (std::size_t i = 0; i < rows; ++i) {
    const double y = bottom + kRow * static_cast<double>(i) + 10.0;
    if (i == named) {
      text += fmt::format("<text class=\"soft\" x=\"{}\" y=\"{}\">and {} more</text>\n",
                          kLeft + 24.0, y, chart.curves.size() - named);
      continue;
    }
    text += fmt::format(
        "<path class=\"{}\" style=\"stroke-width: 3\" d=\"M{},{}h16\"/><text class=\"ink\" "
        "x=\"{}\" y=\"{}\">{}</text>\n",
        stroke_of(chart.curves[i]), kLeft, y - 4.0, kLeft + 24.0, y,
        escaped(shortened(chart.curves[i].name, kNameLength)));
  }
  return text + "</svg>\n";
}

std::string svg_of(const BarChart& chart, SvgPlace place) {
  constexpr double kBar = 20.0;
  constexpr double kBarRow = 46.0;
  constexpr double kEdge = 8.0;
  constexpr double kFullWidth = kWidth - 2.0 * kEdge;
  constexpr std::size_t kLabelLength = 58;
  // The legend first, as its rows take height.
  std::string legend;
  double x = kEdge;
  double y = kTop + kBarRow * static_cast<double>(chart.bars.size()) + 8.0;
  for (std::size_t i = 0; i < chart.names.size(); ++i) {
    const double width = 30.0 + kCharacter * static_cast<double>(chart.names[i].size());
    if (x > kEdge && x + width > kWidth) {
      x = kEdge;
      y += kRow;
    }
    legend += fmt::format(
        "<rect class=\"f{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\"/><text "
        "class=\"ink\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
        i % kColours, x, y, x + 17.0, y + 10.0, escaped(chart.names[i]));
    x += width;
  }
  double longest = chart.limit.value_or(0.0);
  for (const BarChart::Bar& bar : chart.bars) {
    longest = std::max(longest, std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0));
  }
  longest = std::isfinite(longest) ? longest : 0.0;
  if (chart.limit) {
    y += kRow + 4.0;
    legend += fmt::format(
        "<path class=\"limit\" d=\"M{:.1f},{:.1f}v14\"/><text class=\"ink\" x=\"{:.1f}\" "
        "y=\"{:.1f}\">{}</text>\n",
        kEdge + 6.0, y - 1.0, kEdge + 17.0, y + 10.0, escaped(chart.limit_name));
  }
  std::string text = begin(y + kRow + 4.0, chart.title, place);
  double top = kTop;
  for (const BarChart::Bar& bar : chart.bars) {
    text += fmt::format("<text class=\"ink\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", kEdge, top + 11.0,
                        escaped(shortened(bar.label, kLabelLength)));
    double left = kEdge;
    for (std::size_t i = 0; i < bar.parts.size() && longest > 0.0; ++i) {
      const double width = std::max(bar.parts[i], 0.0) / longest * kFullWidth;
      text += fmt::format(
          "<rect class=\"f{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\"/>\n",
          i % kColours, left, top + 16.0, width, kBar);
      if (i < bar.inside.size() &&
          width > kCharacter * static_cast<double>(bar.inside[i].size()) + 6.0) {
        text += fmt::format("<text class=\"onto middle\" x=\"{:.2f}\" y=\"{:.1f}\">{}</text>\n",
                            left + width / 2.0, top + 30.0, escaped(bar.inside[i]));
      }
      left += width;
    }
    if (chart.limit && longest > 0.0) {
      text += fmt::format("<path class=\"limit\" d=\"M{:.2f},{:.1f}v{}\"/>\n",
                          kEdge + *chart.limit / longest * kFullWidth, top + 13.0, kBar + 6.0);
    }
    top += kBarRow;
  }
  return text + legend + "</svg>\n";
}

std::string svg_of(const ScatterChart& chart, SvgPlace place) {
  std::vector<double> xs;
  std::vector<double> ys;
  std::vector<ScatterChart::Point> points = chart.points;
  points.insert(points.end(), chart.line.begin(), chart.line.end());
  for (const ScatterChart::Point& point : points) {
    xs.push_back(point.x);
    ys.push_back(point.y);
  }
  Axes axes = axes_of(
      {.title = "", .scale = LineChart::Scale::kWide, .curves = {{.name = "", .x = xs, .y = ys}}});
  // Room for marks at the edges.
  for (Range* range : {&axes.x, &axes.y}) {
    const double margin = 0.04 * (range->most - range->least);
    *range = {.least = range->least - margin, .most = range->most + margin};
  }
  const auto at = [&](const ScatterChart::Point& point) {
    return fmt::format("{:.2f},{:.2f}", axes.column(point.x), axes.row(point.y));
  };
  const auto circle = [&](const ScatterChart::Point& point, const std::string& style) {
    return fmt::format("<circle {} cx=\"{:.2f}\" cy=\"{:.2f}\"><title>{}</title></circle>\n", style,
                       axes.column(point.x), axes.row(point.y), escaped(point.label));
  };
  std::string plot;
  for (const ScatterChart::Point& point : chart.points) {
    plot += circle(
        point, fmt::format("class=\"f{}\" fill-opacity=\"0.55\" r=\"3\"", point.colour % kColours));
  }
  std::string path;
  for (const ScatterChart::Point& point : chart.line) {
    path += (path.empty() ? "M" : "L") + at(point);
  }
  plot += path.empty() ? "" : fmt::format("<path class=\"curve c7\" d=\"{}\"/>\n", path);
  if (chart.marked) {
    plot += circle(*chart.marked, "class=\"limit\" r=\"7\"");
  }
  std::string legend;
  double y = kTop + kHeight + 36.0;
  const auto name = [&](const std::string& mark, const std::string& text) {
    legend += fmt::format("{}<text class=\"ink\" x=\"{}\" y=\"{}\">{}</text>\n", mark, kLeft + 24.0,
                          y, escaped(text));
    y += kRow;
  };
  for (std::size_t i = 0; i < chart.names.size(); ++i) {
    name(fmt::format("<circle class=\"f{}\" cx=\"{}\" cy=\"{}\" r=\"4\"/>", i % kColours,
                     kLeft + 8.0, y - 4.0),
         chart.names[i]);
  }
  if (!path.empty()) {
    name(fmt::format("<path class=\"curve c7\" d=\"M{},{}h16\"/>", kLeft, y - 4.0),
         chart.line_name);
  }
  if (chart.marked) {
    name(fmt::format("<circle class=\"limit\" cx=\"{}\" cy=\"{}\" r=\"5\"/>", kLeft + 8.0, y - 4.0),
         chart.marked_name);
  }
  return begin(y - 4.0, chart.title, place) + grid_of(axes) + plot + legend + "</svg>\n";
}

std::string svg_of(const MatrixChart& chart, SvgPlace place) {
  constexpr std::size_t kMostNumbered = 12;
  constexpr std::size_t kMostNamed = 30;
  constexpr std::size_t kNameLength = 10;
  const std::size_t classes = chart.names.size();
  std::size_t longest = 0;
  for (const std::string& name : chart.names) {
    longest = std::max(longest, shortened(name, kNameLength).size());
  }
  const double margin =
      classes > kMostNamed
          ? 8.0
          : 12.0 + kCharacter * static_cast<double>(std::min(longest, kNameLength));
  const double cell = (kWidth - margin - 8.0) / static_cast<double>(classes);
  const double top = kTop + 18.0;
  const double side = cell * static_cast<double>(classes);
  // Names below columns are turned, as they may be long.
  std::string text = begin(top + side + margin + 4.0, chart.title, place);
  text += fmt::format(
      "<text class=\"soft\" x=\"{}\" y=\"{}\">rows: class; columns: prediction</text>\n", 8.0,
      top - 8.0);
  for (std::size_t row = 0; row < classes; ++row) {
    const std::vector<double>& counts = chart.counts[row];
    const double samples = std::accumulate(counts.begin(), counts.end(), 0.0);
    const double y = top + cell * static_cast<double>(row);
    if (classes <= kMostNamed) {
      const std::string name = escaped(shortened(chart.names[row], kNameLength));
      const double middle = margin + cell * (static_cast<double>(row) + 0.5);
      text += fmt::format(
          "<text class=\"soft end\" x=\"{}\" y=\"{:.1f}\">{}</text><text class=\"soft end\" "
          "transform=\"translate({:.1f} {:.1f}) rotate(-60)\">{}</text>\n",
          margin - 5.0, y + cell / 2.0 + 4.0, name, middle + 4.0, top + side + 12.0, name);
    }
    for (std::size_t column = 0; column < classes; ++column) {
      const double share = samples > 0.0 ? counts[column] / samples : 0.0;
      const double x = margin + cell * static_cast<double>(column);
      text += fmt::format(
          "<rect class=\"{}\" fill-opacity=\"{:.3f}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" "
          "height=\"{:.2f}\"/>\n",
          row == column ? "f0" : "f1", counts[column] > 0.0 ? 0.06 + 0.94 * share : 0.0, x, y, cell,
          cell);
      if (classes <= kMostNumbered) {
        text += fmt::format("<text class=\"{} middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                            share > 0.5 ? "onto" : "ink", x + cell / 2.0, y + cell / 2.0 + 4.0,
                            tick_text(counts[column]));
      }
    }
  }
  text +=
      fmt::format("<rect class=\"grid\" x=\"{}\" y=\"{}\" width=\"{:.2f}\" height=\"{:.2f}\"/>\n",
                  margin, top, side, side);
  return text + "</svg>\n";
}

}  // namespace strata::app
