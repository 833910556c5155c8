#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "drawing/svg.hpp"

namespace strata::app {

/// A run's values over its steps.
struct Curve {
  std::string name;
  std::size_t colour = 0;
  std::span<const double> x;  ///< ascending
  std::span<const double> y;  ///< not finite: a gap
};

/// Curves on common axes.
struct LineChart {
  enum class Scale {
    kRange,     ///< from the least to the greatest value
    kFromZero,  ///< from 0
    kWide       ///< as kRange; logarithmic where values are positive and span a factor of 30
  };

  std::string title;
  Scale scale = Scale::kRange;
  std::vector<Curve> curves;

  [[nodiscard]] bool empty() const;
};

/// Long curves are drawn as the least and the greatest value of each pixel column, noisy ones pale
/// with their moving mean above them. The group `plot` has the ranges of both axes as attributes,
/// so that values can be read back.
[[nodiscard]] std::string svg_of(const LineChart& chart, SvgPlace place);

/// Horizontal bars of stacked parts, each with a label above it.
struct BarChart {
  struct Bar {
    std::string label;
    std::vector<double> parts;        ///< as many as there are names
    std::vector<std::string> inside;  ///< a text of each part, shown where it fits
  };
  std::string title;
  std::vector<std::string> names;  ///< of the parts
  std::vector<Bar> bars;
  std::optional<double> limit = std::nullopt;  ///< a line that bars should not cross
  std::string limit_name = "";
};

/// The longest bar, or the limit, takes the whole width.
[[nodiscard]] std::string svg_of(const BarChart& chart, SvgPlace place);

/// Points, of which a line joins some.
struct ScatterChart {
  struct Point {
    double x = 0.0;
    double y = 0.0;  ///< positive; logarithmic where the points span a factor of 30
    std::size_t colour = 0;
    std::string label;  ///< a tooltip
  };
  std::string title;
  std::vector<std::string> names;  ///< of the colours
  std::vector<Point> points;
  std::vector<Point> line;
  std::string line_name;
  std::optional<Point> marked;
  std::string marked_name;
};

/// Pre: there is a point.
[[nodiscard]] std::string svg_of(const ScatterChart& chart, SvgPlace place);

/// Counts of samples by class and prediction, shaded by their share of the class.
struct MatrixChart {
  std::string title;
  std::vector<std::string> names;
  std::vector<std::vector<double>> counts;  ///< a row per class
};

[[nodiscard]] std::string svg_of(const MatrixChart& chart, SvgPlace place);

}  // namespace strata::app
