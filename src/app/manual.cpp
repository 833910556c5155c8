#include "manual.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "strata/config/options.hpp"
#include "strata/core/text.hpp"

#include "environment/versions.hpp"

namespace strata::app {
namespace {

constexpr std::string_view kGap = "  ";  // at least, between a term and what it means
constexpr std::string_view kTakesSettings = "[--section.key=value ...]";
constexpr std::size_t kDeepest = 8;  // indentation of a term; descriptions have more

/// A line of a help text: a term with its description, a further line of one, or prose.
struct Line {
  std::size_t indent = 0;
  std::string term;
  std::string about;
};

Line line_of(std::string_view text) {
  Line line{.indent = std::min(text.find_first_not_of(' '), text.size())};
  text.remove_prefix(line.indent);
  const std::size_t gap = text.find(kGap);
  line.term = text.substr(0, gap);
  line.about = gap == std::string_view::npos ? "" : trimmed(text.substr(gap));
  return line;
}

std::vector<Line> lines_of(std::string_view text) {
  std::vector<Line> lines;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    lines.push_back(line_of(text.substr(0, end)));
    text.remove_prefix(end + 1);
  }
  return lines;
}

bool is_sentence(std::string_view text) {
  return text.ends_with('.') && !text.ends_with("...");
}

/// Of `command`, not an example of another one.
bool is_synopsis(const Line& line, const std::string& command) {
  return (line.term + " ").starts_with(command.empty() ? "strata " : "strata " + command + " ") &&
         !is_sentence(line.term);
}

/// Text as roff prints it unchanged.
std::string roff(std::string_view text) {
  std::string result = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
  for (const char c : text) {
    switch (c) {
      case '\\':
        result += "\\e";
        break;
      case '-':
        result += "\\-";
        break;
      case '\'':
        result += "\\(aq";
        break;
      case '`':
        result += "\\(ga";
        break;
      case '^':
        result += "\\(ha";
        break;
      case '"':
        result += "\\(dq";
        break;
      case '~':
        result += "\\(ti";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string term_with_text(const Line& line) {
  return fmt::format(".TP\n.B {}\n{}", roff(line.term),
                     line.about.empty() ? "" : roff(line.about) + "\n");
}

/// What the program's text says that a command does.
std::string purpose_of(const std::string& command, const std::vector<Line>& usage) {
  for (const Line& line : usage) {
    if ((line.term + " ").starts_with("strata " + command + " ")) {
      return line.about;
    }
  }
  return {};
}

std::string names_text(const std::set<std::string>& names) {
  return fmt::format("{}", fmt::join(names, " "));
}

bool takes_settings(const std::string& help) {
  return help.find(kTakesSettings) != std::string::npos;
}

/// The options in a help text apart from settings, as in "--dry-run" and, with a value, "--nodes=".
std::set<std::string> options_in(const std::string& help) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789-._";
  std::string text;
  for (const Line& line : lines_of(help)) {
    if (line.indent > 0 && line.term.starts_with("strata ")) {
      continue;  // an example of another command
    }
    // A description may show another command with its options.
    text += line.term + " " + line.about.substr(0, line.about.find("strata ")) + "\n";
  }
  std::set<std::string> options{"--help"};
  for (std::size_t at = text.find("--"); at != std::string::npos; at = text.find("--", at + 2)) {
    const std::size_t end = text.find_first_not_of(kLetters, at);
    const std::string name = text.substr(at, text.find_last_not_of('.', end - 1) + 1 - at);
    // A sentence may name an option without its value.
    if (text[end] == '=') {
      options.erase(name);
      options.insert(name + "=");
    } else if (!options.contains(name + "=") && name.size() > 2) {
      options.insert(name);
    }
  }
  if (takes_settings(help)) {
    std::erase_if(options, [](const auto& name) { return name.find('.') != std::string::npos; });
  }
  return options;
}

/// The lower-case names among an option's values, as in "auto cpu cuda"; empty where there are
/// none.
std::string value_names(const config::Option& option) {
  std::set<std::string> names;
  for (const std::string& value : split_words(option.values, ",")) {
    if (std::ranges::all_of(value, [](char c) {
          return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
        })) {
      names.insert(value);
    }
  }
  return names.size() < 2 ? "" : names_text(names);
}

/// Words after a command: those of its synopses that are part of the command.
std::set<std::string> words_after(const std::string& command, std::span<const Help> all) {
  const std::string start = command.empty() ? "strata " : "strata " + command + " ";
  std::set<std::string> words;
  for (const Help& help : all) {
    for (const Line& line : lines_of(help.text)) {
      if (!is_synopsis(line, help.command) || !line.term.starts_with(start)) {
        continue;
      }
      const std::string rest = line.term.substr(start.size());
      const std::string word = rest.substr(0, rest.find(' '));
      for (const std::string& one : split_words(word, "|")) {
        if (std::ranges::all_of(one, [](char c) { return c >= 'a' && c <= 'z'; })) {
          words.insert(one);
        }
      }
    }
  }
  return words;
}

/// Shell code, of both shells: sets `names` from `command`, the first word, and `both`, the first
/// two; and `values` from `key`.
std::string tables(std::span<const Help> all) {
  std::string settings = fmt::format("--{}=", config::kLayerKey);
  std::string values = "  case \"$key\" in\n";
  for (const config::Option& option : config::option_table()) {
    settings += fmt::format(" --{}=", option.key);
    const std::string names = value_names(option);
    if (!names.empty()) {
      values += fmt::format("    --{}) values=\"{}\" ;;\n", option.key, names);
    }
  }
  const std::set<std::string> commands = words_after("", all);
  std::string text = fmt::format("  settings=\"{}\"\n  case \"$both\" in\n", settings);
  for (const Help& help : all) {
    if (help.command.empty()) {
      continue;
    }
    const bool is_whole = help.command.find(' ') != std::string::npos;
    text += fmt::format("    \"{}\"{}) names=\"{}{}\" ;;\n", help.command, is_whole ? "" : "\\ *",
                        names_text(options_in(help.text)),
                        takes_settings(help.text) ? " $settings" : "");
  }
  text += "  esac\n  case \"$command\" in\n";
  text += fmt::format("    \"\") words=\"{} --help --version\" ;;\n", names_text(commands));
  for (const std::string& command : commands) {
    std::set<std::string> words = words_after(command, all);
    if (command == "help") {
      words.insert(commands.begin(), commands.end());
    }
    if (!words.empty()) {
      text += fmt::format("    {}) words=\"{}\" ;;\n", command, names_text(words));
    }
  }
  return text + "  esac\n" + values + "  esac\n";
}

constexpr std::string_view kBashStart =
    R"(# Completion of strata for bash, made by "strata help completion bash".
_strata() {
  local line=${COMP_LINE:0:COMP_POINT} command both key word names= words= values= settings candidate
  word=${line##*[[:blank:]]}
  key=${word%%=*}
  read -r -a line <<<"${line%"$word"}"
  command=${line[1]-}
  both="$command ${line[2]-}"
)";

constexpr std::string_view kBashEnd = R"(  COMPREPLY=()
  if [[ $word == *=* ]]; then
    word=${word#*=}
    names=$values
  elif [[ $word != -* || -z $command ]]; then
    # The second word of a command; later words are files.
    [[ ${#line[@]} -le 2 ]] && names=$words || names=
  fi
  for candidate in $names; do
    [[ $candidate == *= ]] || candidate+=" "
    [[ $candidate != "$word"* ]] || COMPREPLY+=("$candidate")
  done
}
complete -o nospace -o default -F _strata strata
)";

constexpr std::string_view kZshStart = R"(#compdef strata
# Completion of strata for zsh, made by "strata help completion zsh".
_strata() {
  local command="" both key="${PREFIX%%=*}" names="" list="" values="" settings
  local -a line taking_value alone
  line=("${(@)words[2,CURRENT-1]}")
  command="${line[1]-}"
  both="$command ${line[2]-}"
)";

constexpr std::string_view kZshEnd = R"(  if [[ $PREFIX == *=* ]]; then
    compset -P '*='
    names=$values
  elif [[ $PREFIX != -* || -z $command ]]; then
    # The second word of a command; later words are files.
    (( $#line <= 1 )) && names=$list || names=""
  fi
  taking_value=(${(M)${=names}:#*=})
  alone=(${${=names}:#*=})
  compadd -S '' -a taking_value
  compadd -a alone
  [[ $PREFIX == -* || -n $names ]] || _files
}
_strata "$@"
)";

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

}  // namespace

std::string page_name(const Help& help) {
  return help.command.empty() ? "strata" : "strata-" + replaced(help.command, " ", "-");
}

std::string man_page(const Help& help, std::span<const Help> all) {
  std::vector<Line> lines = lines_of(help.text);
  std::string purpose = purpose_of(help.command, lines_of(all.front().text));
  std::string others = ".BR strata (1)";
  if (help.command.empty()) {
    // The first line: "strata trains ... .".
    const std::string& first = lines.front().term;
    purpose = first.substr(first.find(' ') + 1, first.size() - first.find(' ') - 2);
    lines.erase(lines.begin());
    others.clear();
    for (const Help& other : all.subspan(1)) {
      others += fmt::format("{}.BR {} (1)", others.empty() ? "" : " ,\n", roff(page_name(other)));
    }
  }
  std::string text =
      fmt::format(".TH {0} 1 \"\" \"strata {1}\" \"strata\"\n.ad l\n.nh\n.SH NAME\n{0} \\- {2}\n",
                  roff(page_name(help)), own_version(), roff(purpose));
  std::string section;
  const auto begin = [&](const std::string& name) {
    text += name == section ? "" : fmt::format(".SH {}\n", name);
    section = name;
  };
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Line& line = lines[i];
    if (line.term.empty()) {
      continue;
    }
    const bool is_term = line.indent > 0 && line.indent <= kDeepest;
    const bool begins_list = line.indent == 0 && i + 1 < lines.size() && lines[i + 1].indent > 0;
    if (is_synopsis(line, help.command)) {
      begin("SYNOPSIS");
      text += term_with_text(line);
    } else if (is_term) {
      begin("OPTIONS");
      text += term_with_text(line);
    } else if (begins_list) {
      begin("OPTIONS");
      text += fmt::format(".SS {}\n", roff(line.term + ": " + line.about));
    } else {
      if (section == "SYNOPSIS" || section.empty()) {
        begin("DESCRIPTION");
      } else if (i > 0 && lines[i - 1].term.empty()) {
        text += ".PP\n";
      }
      text += roff(line.about.empty() ? line.term : line.term + " " + line.about) + "\n";
    }
  }
  return text + ".SH SEE ALSO\n" + others + "\n";
}

std::string completion(Shell shell, std::span<const Help> all) {
  // zsh keeps the words of the line in `words`.
  return shell == Shell::kBash
             ? std::string(kBashStart) + tables(all) + std::string(kBashEnd)
             : std::string(kZshStart) + replaced(tables(all), " words=", " list=") +
                   std::string(kZshEnd);
}

}  // namespace strata::app
