#include "drawing/svg.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "strata/core/utf8.hpp"

namespace strata::app {
namespace {

/// A tooltip.
std::string title_of(const std::string& text) {
  return text.empty() ? "" : fmt::format("<title>{}</title>", escaped(text));
}

}  // namespace

std::string escaped(std::string_view text, std::size_t most_bytes) {
  constexpr std::pair<char, const char*> kEntities[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string result;
  for (const char character : printable(text, most_bytes)) {
    const auto* const entity =
        std::ranges::find(kEntities, character, &std::pair<char, const char*>::first);
    result += entity == std::end(kEntities) ? std::string(1, character) : entity->second;
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

void Range::add(double value) {
  if (std::isfinite(value)) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
}

bool Range::is_drawable() const {
  constexpr double kLeastShare = 1e-12;
  const double span = most - least;
  return std::isfinite(span) && span > kLeastShare * std::max(std::abs(least), std::abs(most));
}

Range Range::widened() const {
  constexpr double kMost = std::numeric_limits<double>::max();
  const double margin =
      is_drawable() ? 0.0 : std::max({std::abs(least), std::abs(most), 1.0}) / 2.0;
  return {.least = std::max(least - margin, -kMost), .most = std::min(most + margin, kMost)};
}

double Range::share(double value) const {
  return is_drawable() ? (value - least) / (most - least) : 0.5;
}

std::vector<double> ticks_in(const Range& range, double count) {
  if (!range.is_drawable()) {
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

std::string svg_style() {
  return R"(
.chart { font: 12px system-ui, sans-serif }
.paper { fill: #ffffff; stroke: #ffffff } .ink { fill: #1d2733 } .soft { fill: #52606d } .onto { fill: #ffffff } .idle { fill: #eceff3 }
.c0 { stroke: #0b62c4; fill: #0b62c4 } .c1 { stroke: #c2410c; fill: #c2410c } .c2 { stroke: #15803d; fill: #15803d } .c3 { stroke: #7e22ce; fill: #7e22ce }
.c4 { stroke: #be185d; fill: #be185d } .c5 { stroke: #0e7490; fill: #0e7490 } .c6 { stroke: #854d0e; fill: #854d0e } .c7 { stroke: #475569; fill: #475569 }
.grid { stroke: #d5dbe1; fill: none } .limit { stroke: #c81e1e; stroke-width: 2; fill: none }
.curve { stroke-width: 1.4; stroke-linejoin: round } .dashed { stroke-dasharray: 4 2 } .box { stroke-width: 0.6 }
.title { font-weight: 600; font-size: 13px } .end { text-anchor: end } .middle { text-anchor: middle }
@media (prefers-color-scheme: dark) {
.paper { fill: #14191f; stroke: #14191f } .ink { fill: #e3e8ee } .soft { fill: #a9b4bf } .onto { fill: #0c1014 } .idle { fill: #29313a }
.c0 { stroke: #6cb2ff; fill: #6cb2ff } .c1 { stroke: #ff9a5c; fill: #ff9a5c } .c2 { stroke: #5fd38a; fill: #5fd38a } .c3 { stroke: #c69bff; fill: #c69bff }
.c4 { stroke: #ff8fc4; fill: #ff8fc4 } .c5 { stroke: #4fd1e8; fill: #4fd1e8 } .c6 { stroke: #e3c04a; fill: #e3c04a } .c7 { stroke: #b6c2d1; fill: #b6c2d1 }
.grid { stroke: #323c46 } .limit { stroke: #ff7a7a }
}
.curve { fill: none } .area { stroke: none }
)";
}

void Svg::rect(const Box& box, const std::string& classes, const std::string& more) {
  elements_ += fmt::format(
      "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" {}/>\n",
      classes, box.x, box.y, box.width, box.height, more);
}

void Svg::circle(double x, double y, double radius, const std::string& classes,
                 const std::string& more, const std::string& title) {
  elements_ +=
      fmt::format("<circle class=\"{}\" cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{}\" {}>{}</circle>\n",
                  classes, x, y, radius, more, title_of(title));
}

void Svg::path(const std::string& steps, const std::string& classes, const std::string& more) {
  elements_ += fmt::format("<path class=\"{}\" d=\"{}\" {}/>\n", classes, steps, more);
}

void Svg::text(double x, double y, const std::string& text, const std::string& classes,
               const std::string& more) {
  elements_ += fmt::format("<text class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" {}>{}</text>\n", classes,
                           x, y, more, escaped(text));
}

void Svg::open(const std::string& attributes, const std::string& title) {
  elements_ += fmt::format("<g {}>{}\n", attributes, title_of(title));
}

void Svg::tick(double x, double y, const std::string& label, double right) {
  path(fmt::format("M{:.2f},{:.2f}v4", x, y), "grid");
  text(std::min(x, right - kCharacter * static_cast<double>(label.size()) / 2.0), y + 17.0, label,
       "soft middle");
}

Box Svg::legend(const std::vector<NamedMark>& marks, double x, double y, double right) {
  constexpr double kRow = 17.0;
  constexpr double kMark = 22.0;
  constexpr double kGap = 10.0;
  Box end{.x = x, .y = y};
  double left = x;
  for (const NamedMark& entry : marks) {
    const double width = kMark + kCharacter * static_cast<double>(entry.name.size());
    if (left > x && left + width > right) {
      left = x;
      y += kRow;
    }
    if (entry.mark == Mark::kArea) {
      rect({left, y, 14.0, 12.0}, entry.classes, entry.more);
    } else if (entry.mark == Mark::kLine) {
      path(fmt::format("M{:.2f},{:.2f}h16", left, y + 6.0), entry.classes,
           "style=\"stroke-width: 3\"");
    } else if (entry.mark == Mark::kDot) {
      circle(left + 8.0, y + 6.0, 4.0, entry.classes);
    }
    text(left + kMark, y + 10.0, entry.name, "ink");
    end.width = std::max(end.width, left + width - x);
    left += width + kGap;
  }
  end.height = y + kRow - end.y;
  return end;
}

std::string Svg::whole(double width, double height, SvgPlace place, double scale,
                       const std::string& label) const {
  const bool file = place == SvgPlace::kFile;
  return fmt::format(
      "<svg class=\"chart\"{}{} viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}{}"
      "</svg>\n",
      file ? " xmlns=\"http://www.w3.org/2000/svg\"" : "",
      scale > 0.0
          ? fmt::format(" width=\"{:.0f}\" height=\"{:.0f}\"", scale * width, scale * height)
          : "",
      width, height, escaped(label),
      file ? fmt::format("<style>{}</style>\n<rect class=\"paper\" width=\"100%\" "
                         "height=\"100%\"/>\n",
                         svg_style())
           : "",
      elements_);
}

}  // namespace strata::app
