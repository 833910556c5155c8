#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace strata::app {

/// A text for HTML and SVG: as printable(), with the characters of markup escaped.
[[nodiscard]] std::string escaped(std::string_view text, std::size_t most_bytes = 400);

/// At most `length` characters of a text, as printable().
[[nodiscard]] std::string shortened(const std::string& text, std::size_t length);

/// The values along an axis.
struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  /// Values that are not finite are left out.
  void add(double value);
  /// Whether values in the range can be drawn apart: it is finite and not too small for its
  /// magnitude. Others make a flat line.
  [[nodiscard]] bool is_drawable() const;
  /// A range that cannot be drawn, as of one value, gets a width.
  [[nodiscard]] Range widened() const;
  /// Where a value lies, from 0 to 1.
  [[nodiscard]] double share(double value) const;
};

/// Round numbers in a range, about `count` of them.
[[nodiscard]] std::vector<double> ticks_in(const Range& range, double count);

/// 1, 2 and 5 times powers of ten, or the powers alone; the range is of logarithms.
[[nodiscard]] std::vector<double> log_ticks_in(const Range& range);

/// Whether an SVG is a part of a page, which has svg_style(), or a file.
enum class SvgPlace { kPage, kFile };

/// The style sheet of SVGs, for light and dark screens. Its classes c0, c1, ... are colours, of a
/// `curve` or an `area`.
[[nodiscard]] std::string svg_style();
constexpr std::size_t kPalette = 8;

/// The mean width of a character in wide fonts, in pixels.
constexpr double kCharacter = 7.0;

struct Box {
  double x = 0.0;
  double y = 0.0;
  double width = 0.0;
  double height = 0.0;
};

/// An entry of a legend.
enum class Mark { kNone, kArea, kLine, kDot };
struct NamedMark {
  Mark mark = Mark::kNone;
  std::string classes;
  std::string name;
  std::string more = "";  ///< further attributes of an area
};

/// The elements of an SVG, one after the other. Units: pixels. `classes`: of svg_style(). `more`:
/// further attributes. Texts, titles and names are escaped here.
class Svg {
 public:
  void rect(const Box& box, const std::string& classes, const std::string& more = "");
  void circle(double x, double y, double radius, const std::string& classes,
              const std::string& more = "", const std::string& title = "");
  void path(const std::string& steps, const std::string& classes, const std::string& more = "");
  void text(double x, double y, const std::string& text, const std::string& classes,
            const std::string& more = "");
  /// Elements up to close() are a group, with a tooltip where there is a title.
  void open(const std::string& attributes, const std::string& title = "");
  void close() { elements_ += "</g>\n"; }

  /// A tick below a horizontal axis and its label, which ends before `right`.
  void tick(double x, double y, const std::string& label, double right);
  /// Marks with their names, in rows that end before `right`. Returns: where the marks end.
  Box legend(const std::vector<NamedMark>& marks, double x, double y, double right);

  /// The whole SVG. `scale`: of the size that it asks for; 0: it takes the width that there is.
  [[nodiscard]] std::string whole(double width, double height, SvgPlace place, double scale,
                                  const std::string& label) const;

 private:
  std::string elements_;
};

}  // namespace strata::app
