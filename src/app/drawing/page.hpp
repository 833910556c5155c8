#pragma once

#include <string>
#include <vector>

namespace strata::app {

/// Cells of a table; the first row and column are heads.
using Rows = std::vector<std::vector<std::string>>;

/// Texts of cells are escaped here.
[[nodiscard]] std::string html_table(const Rows& rows, const std::string& caption = "");

/// A list of lines, escaped here; empty without lines.
[[nodiscard]] std::string html_list(const std::vector<std::string>& lines);

/// A figure of an SVG that is a file of its own, as wide as it is.
[[nodiscard]] std::string html_figure(const std::string& svg, const std::string& title);

/// Charts below a title, side by side where there is room; empty without charts.
[[nodiscard]] std::string html_section(const std::string& title, const std::string& charts,
                                       const std::string& note);

/// A whole page that loads nothing and runs no script, for light and dark screens. `title` is
/// escaped here.
[[nodiscard]] std::string html_page(const std::string& title, const std::string& body);

/// Source: S. Josefsson, RFC 4648, section 4.
[[nodiscard]] std::string base64(const std::string& bytes);

}  // namespace strata::app
