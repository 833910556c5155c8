#include "drawing/page.hpp"

#include <cstdint>

#include <fmt/format.h>

#include "drawing/svg.hpp"

namespace strata::app {
namespace {

/// A box that scrolls is shaded where it goes on: its content carries covers of the shades along.
constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1d2733; --soft: #52606d; --line: #d5dbe1; --box: #f4f6f8; --shade: #a9b4bf; --blend: multiply }
@media (prefers-color-scheme: dark) {
:root { --paper: #14191f; --ink: #e3e8ee; --soft: #a9b4bf; --line: #323c46; --box: #1c232b; --shade: #5b6874; --blend: lighten }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 16px; max-width: 1400px; background: var(--paper); color: var(--ink);
font: 15px/1.45 system-ui, sans-serif }
h1 { font-size: 24px; margin: 8px 0 } h2 { font-size: 18px; margin: 28px 0 8px }
h1, h2, h3, p, li { overflow-wrap: break-word }
.charts { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 400px), 1fr)) }
.charts > * { width: 100%; max-width: 600px; height: auto; border: 1px solid var(--line); border-radius: 6px }
.scroll { overflow-x: auto; margin: 8px 0; background:
linear-gradient(90deg, var(--paper) 30%, transparent) left / 48px 100% no-repeat local,
linear-gradient(270deg, var(--paper) 30%, transparent) right / 48px 100% no-repeat local,
linear-gradient(90deg, var(--shade), transparent) left / 16px 100% no-repeat scroll,
linear-gradient(270deg, var(--shade), transparent) right / 16px 100% no-repeat scroll }
table { border-collapse: collapse; font-size: 14px } caption { text-align: left; color: var(--soft) }
th, td { text-align: left; vertical-align: top; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line);
overflow-wrap: break-word; min-width: 84px; max-width: 420px }
th { font-weight: 600 } tbody th { color: var(--soft); font-weight: 400 }
pre { background: var(--box); padding: 10px; border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px }
img { max-width: 100% } img.wide { max-width: none; display: block; mix-blend-mode: var(--blend) } figure { margin: 12px 0 } .soft { color: var(--soft) } details { margin: 8px 0 }
)";

}  // namespace

std::string html_table(const Rows& rows, const std::string& caption) {
  constexpr std::size_t kMostBytes = 2000;
  std::string text = "<div class=\"scroll\"><table>";
  text += caption.empty() ? "" : fmt::format("<caption>{}</caption>", escaped(caption));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    text += r == 0 ? "<thead><tr>" : r == 1 ? "<tbody><tr>" : "<tr>";
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      const char* const tag = r == 0 || c == 0 ? "th" : "td";
      text += fmt::format("<{}>{}</{}>", tag, escaped(rows[r][c], kMostBytes), tag);
    }
    text += r == 0 ? "</tr></thead>\n" : "</tr>\n";
  }
  return text + (rows.size() > 1 ? "</tbody>" : "") + "</table></div>\n";
}

std::string html_list(const std::vector<std::string>& lines) {
  constexpr std::size_t kMostBytes = 1000;
  std::string text;
  for (const std::string& line : lines) {
    text += fmt::format("<li>{}</li>\n", escaped(line, kMostBytes));
  }
  return lines.empty() ? "" : fmt::format("<ul>\n{}</ul>\n", text);
}

std::string html_figure(const std::string& svg, const std::string& title) {
  return fmt::format(
      "<figure><div class=\"scroll\"><img class=\"wide\" alt=\"{0}\" "
      "src=\"data:image/svg+xml;base64,{1}\"/></div><figcaption>{0}</figcaption></figure>\n",
      escaped(title), base64(svg));
}

std::string html_section(const std::string& title, const std::string& charts,
                         const std::string& note) {
  return charts.empty()
             ? ""
             : fmt::format("<h2>{}</h2>\n{}<div class=\"charts\">\n{}</div>\n", title,
                           note.empty() ? "" : fmt::format("<p class=\"soft\">{}</p>\n", note),
                           charts);
}

std::string html_page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>{0}</title>\n<style>{1}{2}</style></head>\n<body>\n<h1>{0}</h1>\n{3}</body></html>\n",
      escaped(title), kStyle, svg_style(), body);
}

std::string base64(const std::string& bytes) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8U | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += i + k > bytes.size() ? '=' : kDigits[group >> (18U - 6U * k) & 63U];
    }
  }
  return text;
}

}  // namespace strata::app
