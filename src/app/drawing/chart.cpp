#include "drawing/chart.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace strata::app {
namespace {

// Units: pixels of the view box; a page scales it to between 0.8 and 1.3 times.
constexpr double kWidth = 440.0;
constexpr double kLeft = 54.0;
constexpr double kRight = 12.0;
constexpr double kTop = 34.0;
constexpr double kHeight = 190.0;
constexpr double kPlotWidth = kWidth - kLeft - kRight;

std::string whole(Svg& svg, double height, const std::string& title, SvgPlace place) {
  svg.text(8.0, 18.0, title, "ink title");
  return svg.whole(kWidth, height, place, place == SvgPlace::kFile ? 2.0 : 0.0, title);
}

std::string area_of(std::size_t colour) {
  return fmt::format("area c{}", colour % kPalette);
}

/// The colour of a curve; further curves have the same colours and are dashed.
std::string stroke_of(const Curve& curve) {
  return fmt::format("curve c{}{}", curve.colour % kPalette,
                     curve.colour < kPalette ? "" : " dashed");
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

void draw_axes(Svg& svg, const Axes& axes) {
  for (const double tick : axes.logarithmic ? log_ticks_in(axes.y) : ticks_in(axes.y, 5.0)) {
    const double y = kTop + kHeight * (1.0 - axes.y.share(tick));
    svg.path(fmt::format("M{},{:.2f}h{}", kLeft, y, kPlotWidth), "grid");
    svg.text(kLeft - 6.0, y + 4.0, tick_text(axes.logarithmic ? std::pow(10.0, tick) : tick),
             "soft end");
  }
  for (const double tick : ticks_in(axes.x, 5.0)) {
    svg.tick(axes.column(tick), kTop + kHeight, tick_text(tick), kWidth - 2.0);
  }
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

/// The points of a noisy curve's moving mean, one a pixel column, in pixels; empty for others. The
/// window is narrower at the begin, so that it does not hide how a curve begins.
std::vector<std::pair<double, double>> smoothed(const Curve& curve, const Axes& axes) {
  constexpr std::size_t kLeastPoints = 100;
  constexpr double kLeastNoise = 2.0;  // mean distance of the points from their mean
  constexpr std::int64_t kRadius = 9;
  struct Column {
    double x = 0.0;
    double mean = 0.0;
    double count = 0.0;
    /// Without sums, which could overflow.
    void add(double value, double weight) {
      count += weight;
      mean += value / count * weight - mean / count * weight;
    }
  };
  std::vector<Column> columns;
  std::vector<std::pair<std::size_t, double>> points;  // the column and the value
  for (std::size_t i = 0; i < curve.y.size(); ++i) {
    if (!std::isfinite(curve.y[i])) {
      continue;
    }
    const double x = std::floor(axes.column(curve.x[i])) + 0.5;
    if (columns.empty() || columns.back().x < x) {
      columns.push_back({.x = x});
    }
    // A point stands for the steps since the one before.
    columns.back().add(curve.y[i], i == 0 ? 1.0 : std::max(1.0, curve.x[i] - curve.x[i - 1]));
    points.emplace_back(columns.size() - 1, curve.y[i]);
  }
  if (points.size() < kLeastPoints) {
    return {};
  }
  std::vector<std::pair<double, double>> means;
  for (std::int64_t c = 0; c < std::ssize(columns); ++c) {
    const std::int64_t before = std::min(kRadius, c);
    const std::int64_t after = std::min(before, std::ssize(columns) - 1 - c);
    Column window;
    for (std::int64_t k = c - before; k <= c + after; ++k) {
      const Column& column = columns[static_cast<std::size_t>(k)];
      window.add(column.mean, column.count);
    }
    means.emplace_back(columns[static_cast<std::size_t>(c)].x, axes.row(window.mean));
  }
  double noise = 0.0;
  for (const auto& [column, value] : points) {
    noise += std::abs(axes.row(value) - means[column].second) / static_cast<double>(points.size());
  }
  return noise < kLeastNoise ? std::vector<std::pair<double, double>>{} : means;
}

void draw(Svg& svg, const Curve& curve, const Axes& axes) {
  constexpr std::size_t kMostMarked = 40;
  const std::vector<std::pair<double, double>> means = smoothed(curve, axes);
  std::string path;
  enum class Pen { kUp, kDown } pen = Pen::kUp;
  for (const std::size_t i : drawn_points(curve, axes)) {
    if (!std::isfinite(curve.y[i])) {
      pen = Pen::kUp;
      continue;
    }
    const double x = axes.column(curve.x[i]);
    const double y = axes.row(curve.y[i]);
    path += fmt::format("{}{:.2f},{:.2f}", pen == Pen::kUp ? "M" : "L", x, y);
    pen = Pen::kDown;
    if (curve.x.size() <= kMostMarked) {
      svg.circle(x, y, 2.2, area_of(curve.colour));
    }
  }
  svg.path(path, stroke_of(curve),
           fmt::format("data-run=\"{}\"{}", escaped(curve.name),
                       means.empty() ? "" : " stroke-opacity=\"0.3\""));
  path.clear();
  for (const auto& [x, y] : means) {
    path += fmt::format("{}{:.2f},{:.2f}", path.empty() ? "M" : "L", x, y);
  }
  if (!path.empty()) {
    svg.path(path, stroke_of(curve), "data-mean=\"1\"");
  }
}

}  // namespace

bool LineChart::empty() const {
  return std::ranges::none_of(curves, [](const Curve& curve) {
    return std::ranges::any_of(curve.y, [](double value) { return std::isfinite(value); });
  });
}

std::string svg_of(const LineChart& chart, SvgPlace place) {
  constexpr std::size_t kMostNamed = 24;
  constexpr std::size_t kNameLength = 48;
  const Axes axes = axes_of(chart);
  Svg svg;
  draw_axes(svg, axes);
  svg.open(
      fmt::format("class=\"plot\" data-left=\"{}\" data-right=\"{}\" data-top=\"{}\" "
                  "data-bottom=\"{}\" data-x=\"{} {}\" data-y=\"{} {}\" data-log=\"{}\"",
                  kLeft, kLeft + kPlotWidth, kTop, kTop + kHeight, axes.x.least, axes.x.most,
                  axes.y.least, axes.y.most, axes.logarithmic ? 1 : 0));
  std::vector<NamedMark> legend;
  for (const Curve& curve : chart.curves) {
    draw(svg, curve, axes);
    if (legend.size() < kMostNamed) {
      legend.push_back({Mark::kLine, stroke_of(curve), shortened(curve.name, kNameLength)});
    }
  }
  svg.close();
  if (legend.size() < chart.curves.size()) {
    legend.push_back({.name = fmt::format("and {} more", chart.curves.size() - legend.size())});
  }
  const double bottom = kTop + kHeight + 26.0;
  const Box below = svg.legend(legend, kLeft, bottom, kWidth);
  return whole(svg, bottom + below.height + 6.0, chart.title, place);
}

std::string svg_of(const BarChart& chart, SvgPlace place) {
  constexpr double kBar = 20.0;
  constexpr double kBarRow = 46.0;
  constexpr double kEdge = 8.0;
  constexpr double kFullWidth = kWidth - 2.0 * kEdge;
  constexpr std::size_t kLabelLength = 58;
  double longest = chart.limit.value_or(0.0);
  for (const BarChart::Bar& bar : chart.bars) {
    longest = std::max(longest, std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0));
  }
  longest = std::isfinite(longest) ? longest : 0.0;
  Svg svg;
  double top = kTop;
  for (const BarChart::Bar& bar : chart.bars) {
    svg.text(kEdge, top + 11.0, shortened(bar.label, kLabelLength), "ink");
    double left = kEdge;
    for (std::size_t i = 0; i < bar.parts.size() && longest > 0.0; ++i) {
      const double width = std::max(bar.parts[i], 0.0) / longest * kFullWidth;
      svg.rect({left, top + 16.0, width, kBar}, area_of(i));
      if (i < bar.inside.size() &&
          width > kCharacter * static_cast<double>(bar.inside[i].size()) + 6.0) {
        svg.text(left + width / 2.0, top + 30.0, bar.inside[i], "onto middle");
      }
      left += width;
    }
    if (chart.limit && longest > 0.0) {
      svg.path(
          fmt::format("M{:.2f},{:.2f}v26", kEdge + *chart.limit / longest * kFullWidth, top + 13.0),
          "limit");
    }
    top += kBarRow;
  }
  std::vector<NamedMark> legend;
  for (std::size_t i = 0; i < chart.names.size(); ++i) {
    legend.push_back({Mark::kArea, area_of(i), chart.names[i]});
  }
  if (chart.limit) {
    legend.push_back({Mark::kLine, "limit", chart.limit_name});
  }
  const Box below = svg.legend(legend, kEdge, top + 8.0, kWidth);
  return whole(svg, top + below.height + 12.0, chart.title, place);
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
  Svg svg;
  draw_axes(svg, axes);
  std::vector<NamedMark> legend;
  for (std::size_t i = 0; i < chart.names.size(); ++i) {
    legend.push_back({Mark::kDot, area_of(i), chart.names[i]});
  }
  for (const ScatterChart::Point& point : chart.points) {
    svg.circle(axes.column(point.x), axes.row(point.y), 3.0, area_of(point.colour),
               "fill-opacity=\"0.55\"", point.label);
  }
  std::string path;
  for (const ScatterChart::Point& point : chart.line) {
    path += fmt::format("{}{:.2f},{:.2f}", path.empty() ? "M" : "L", axes.column(point.x),
                        axes.row(point.y));
  }
  if (!path.empty()) {
    svg.path(path, "curve c7");
    legend.push_back({Mark::kLine, "curve c7", chart.line_name});
  }
  if (chart.marked) {
    svg.circle(axes.column(chart.marked->x), axes.row(chart.marked->y), 7.0, "limit", "",
               chart.marked->label);
    legend.push_back({Mark::kDot, "limit", chart.marked_name});
  }
  const double bottom = kTop + kHeight + 26.0;
  const Box below = svg.legend(legend, kLeft, bottom, kWidth);
  return whole(svg, bottom + below.height + 6.0, chart.title, place);
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
  Svg svg;
  svg.text(8.0, top - 8.0, "rows: class; columns: prediction", "soft");
  for (std::size_t row = 0; row < classes; ++row) {
    const std::vector<double>& counts = chart.counts[row];
    const double samples = std::accumulate(counts.begin(), counts.end(), 0.0);
    const double y = top + cell * static_cast<double>(row);
    if (classes <= kMostNamed) {
      const std::string name = shortened(chart.names[row], kNameLength);
      svg.text(margin - 5.0, y + cell / 2.0 + 4.0, name, "soft end");
      // Names below columns are turned, as they may be long.
      svg.text(
          0.0, 0.0, name, "soft end",
          fmt::format("transform=\"translate({:.1f} {:.1f}) rotate(-60)\"",
                      margin + cell * (static_cast<double>(row) + 0.5) + 4.0, top + side + 12.0));
    }
    for (std::size_t column = 0; column < classes; ++column) {
      const double share = samples > 0.0 ? counts[column] / samples : 0.0;
      const double x = margin + cell * static_cast<double>(column);
      svg.rect(
          {x, y, cell, cell}, area_of(row == column ? 0 : 1),
          fmt::format("fill-opacity=\"{:.3f}\"", counts[column] > 0.0 ? 0.06 + 0.94 * share : 0.0));
      if (classes <= kMostNumbered) {
        svg.text(x + cell / 2.0, y + cell / 2.0 + 4.0, tick_text(counts[column]),
                 share > 0.5 ? "onto middle" : "ink middle");
      }
    }
  }
  svg.rect({margin, top, side, side}, "grid");
  return whole(svg, top + side + margin + 4.0, chart.title, place);
}

}  // namespace strata::app
