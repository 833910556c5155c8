#include "strata/config/help.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "strata/core/text.hpp"

namespace strata::config {
namespace {

constexpr std::string_view kWhiteSpace = " \n";

/// Text after the beginning of a line; further lines begin at the column.
std::string wrapped(std::string line, std::string_view text, std::size_t column,
                    std::size_t width) {
  std::string result;
  bool begins = true;
  for (const std::string& word : split_words(text, kWhiteSpace)) {
    if (!begins && line.size() + 1 + word.size() > width) {
      result += line + "\n";
      line.assign(column, ' ');
      begins = true;
    }
    line += (begins ? "" : " ") + word;
    begins = false;
  }
  return result + line + "\n";
}

std::vector<std::string> paragraphs_of(std::string_view about) {
  std::vector<std::string> paragraphs;
  for (std::size_t begin = 0; begin < about.size();) {
    const std::size_t end = std::min(about.find("\n\n", begin), about.size());
    paragraphs.emplace_back(about.substr(begin, end - begin));
    begin = end + 2;
  }
  return paragraphs;
}

/// Terms with what they mean in a column; that of terms above `most` characters begins below them.
std::string columns(std::span<const HelpTerm> terms, std::size_t indent, std::size_t most,
                    std::size_t width) {
  std::size_t widest = 0;
  for (const HelpTerm& term : terms) {
    widest = std::max(widest, term.term.size() <= most ? term.term.size() : 0);
  }
  const std::size_t column = indent + widest + 2;
  std::string text;
  for (const HelpTerm& term : terms) {
    std::string line = std::string(indent, ' ') + term.term;
    if (term.term.size() > widest || term.about.empty()) {
      text += line + "\n";
      line.clear();
    }
    if (!term.about.empty()) {
      line.resize(column, ' ');
      text += wrapped(line, term.about, column, width);
    }
  }
  return text;
}

/// Text as roff prints it unchanged; lines may break after '|'.
std::string roff(std::string_view text) {
  constexpr std::string_view kSpecial = "\\-'`^\"~\n|";
  constexpr const char* kEscapes[] = {"\\e",   "\\-",   "\\(aq", "\\(ga", "\\(ha",
                                      "\\(dq", "\\(ti", " ",     "|\\:"};
  std::string result = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
  for (const char c : text) {
    const std::size_t at = kSpecial.find(c);
    result += at == std::string_view::npos ? std::string(1, c) : kEscapes[at];
  }
  return result;
}

std::string roff_section(const std::string& title, std::span<const HelpTerm> terms) {
  std::string text = terms.empty() ? "" : fmt::format(".SH {}\n", roff(title));
  for (const HelpTerm& term : terms) {
    text += fmt::format(".TP\n.B {}\n{}", roff(term.term),
                        term.about.empty() ? "" : roff(term.about) + "\n");
  }
  return text;
}

std::vector<HelpTerm> synopses_of(const Command& command) {
  std::vector<HelpTerm> terms = command.synopses;
  for (HelpTerm& term : terms) {
    term.term = fmt::format("strata{}{}{}{}", command.name.empty() ? "" : " ", command.name,
                            term.term.empty() ? "" : " ", term.term);
  }
  return terms;
}

std::vector<HelpTerm> options_of(const Command& command) {
  std::vector<HelpTerm> terms;
  for (const CommandOption& option : command.options) {
    terms.push_back(
        {fmt::format("--{}{}{}", option.name, option.value.empty() ? "" : "=", option.value),
         option.help});
  }
  return terms;
}

std::vector<HelpList> lists_of(const Command& command, HelpDetail detail) {
  std::vector<HelpList> lists = command.lists;
  if (command.settings == TakesSettings::kListed) {
    std::ranges::move(config_help(detail), std::back_inserter(lists));
  }
  return lists;
}

}  // namespace

Command program_of(std::span<const Command> all) {
  Command program{.name = "",
                  .purpose = "trains neural networks on grids of MPI ranks",
                  .about = R"(Each command explains its options: strata COMMAND --help.
strata train --help=all lists every setting.)",
                  .lists = {{"Exit codes",
                             {{"0", "done"},
                              {"2", "wrong use or config"},
                              {"3", "bad or missing data"},
                              {"4", "bad checkpoint"},
                              {"5", "a peer or device failed, or memory or threads ran out"},
                              {"6", "diverged"},
                              {"75", R"(stopped on request: checkpoint written, or none needed yet;
submit again to go on)"}}}}};
  for (const Command& command : all) {
    program.synopses.push_back({command.name, command.purpose});
  }
  program.synopses.push_back({"--version", "versions of the program and of its libraries"});
  return program;
}

std::string help_text(const Command& command, HelpDetail detail, std::size_t width) {
  // Terms above these begin a line of their own.
  const std::size_t most_synopsis = width / 2;
  const std::size_t most_term = width / 3;
  const bool is_program = command.name.empty();
  std::string text = is_program ? fmt::format("strata {}.\n\n", command.purpose) : "";
  text += columns(synopses_of(command), is_program ? 2 : 0, most_synopsis, width);
  for (const std::string& paragraph : paragraphs_of(command.about)) {
    text += "\n" + wrapped("", paragraph, 0, width);
  }
  text += command.options.empty() ? "" : "\n" + columns(options_of(command), 2, most_term, width);
  for (const HelpList& list : lists_of(command, detail)) {
    text += fmt::format("\n{}\n{}", list.title, columns(list.terms, 2, most_term, width));
  }
  return text;
}

std::string manual_name(const Command& command) {
  std::string name = command.name.empty() ? "strata" : "strata-" + command.name;
  std::ranges::replace(name, ' ', '-');
  return name;
}

std::string manual_page(const Command& command, std::span<const Command> all,
                        const std::string& version) {
  const std::string name = roff(manual_name(command));
  std::string text =
      fmt::format(".TH {0} 1 \"\" \"strata {1}\" \"strata\"\n.ad l\n.nh\n.SH NAME\n{0} \\- {2}\n",
                  name, version, roff(command.purpose));
  text += roff_section("SYNOPSIS", synopses_of(command));
  const char* begin = ".SH DESCRIPTION\n";
  for (const std::string& paragraph : paragraphs_of(command.about)) {
    text += begin + roff(paragraph) + "\n";
    begin = ".PP\n";
  }
  text += roff_section("OPTIONS", options_of(command));
  for (const HelpList& list : lists_of(command, HelpDetail::kAll)) {
    text += roff_section(list.title, list.terms);
  }
  text += ".SH SEE ALSO\n";
  if (!command.name.empty()) {
    return text + ".BR strata (1)\n";
  }
  for (const Command& other : all) {
    text +=
        fmt::format(".BR {} (1){}\n", roff(manual_name(other)), &other == &all.back() ? "" : " ,");
  }
  return text;
}

}  // namespace strata::config
