#include "table.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "strata/core/error.hpp"

namespace strata::bench {

std::string Table::text(std::size_t line, const std::string& name) const {
  const auto found = std::ranges::find(names, name);
  return found == names.end() ? "" : lines[line][static_cast<std::size_t>(found - names.begin())];
}

double Table::number(std::size_t line, const std::string& name) const {
  return std::strtod(text(line, name).c_str(), nullptr);
}

Table read_table(const std::string& file) {
  std::ifstream in(file);
  if (!in) {
    fail(ExitCode::kUsage, "{} cannot be read; expected a csv file of published measurements",
         file);
  }
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::vector<std::string>> lines;
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (const char c : all) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c == '\n' && !quoted) {
      lines.push_back(std::exchange(fields, {""}));
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  if (fields.size() > 1) {
    lines.push_back(fields);
  }
  Table table;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].size() != lines.front().size()) {
      fail(ExitCode::kUsage, "{} line {} has {} fields; expected {}, as in its first line", file,
           i + 1, lines[i].size(), lines.front().size());
    }
  }
  if (!lines.empty()) {
    table.names = lines.front();
    table.lines.assign(lines.begin() + 1, lines.end());
  }
  return table;
}

}  // namespace strata::bench
