#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/config/help.hpp"
#include "strata/config/options.hpp"
#include "strata/core/text.hpp"

namespace strata::config {
namespace {

using Words = std::vector<std::string>;

/// A line of a case statement; none without words.
std::string case_of(const std::string& pattern, std::string_view name, const Words& words,
                    std::string_view more = "") {
  return words.empty()
             ? ""
             : fmt::format("    {}) {}=\"{}{}\" ;;\n", pattern, name, fmt::join(words, " "), more);
}

/// Shell code, of both shells: sets `names` from `both`, the first two words, `list` from
/// `command`, the first, and `values` from both and `key`.
std::string tables(std::span<const Command> all) {
  Words settings{fmt::format("--{}=", kLayerKey)};
  std::string names;
  std::string values;
  // First words of commands, with their second ones.
  std::vector<std::pair<std::string, Words>> groups;
  for (const Command& command : all) {
    const Words words = split_words(command.name);
    if (groups.empty() || groups.back().first != words.front()) {
      groups.emplace_back(words.front(), Words());
    }
    groups.back().second.insert(groups.back().second.end(), words.begin() + 1, words.end());
    const std::string pattern = words.size() == 1 ? fmt::format("\"{} \"*", command.name)
                                                  : fmt::format("\"{}\"", command.name);
    Words options{"--help"};
    for (const CommandOption& option : command.options) {
      options.push_back(fmt::format("--{}{}", option.name, option.value.empty() ? "" : "="));
      values += case_of(fmt::format("{}\" --{}\"", pattern, option.name), "values", option.words());
    }
    if (command.settings != TakesSettings::kNone) {
      options.emplace_back("$settings");
    }
    names += case_of(pattern, "names", options);
  }
  for (const Option& option : option_table()) {
    settings.push_back(fmt::format("--{}=", option.key));
    values += case_of(fmt::format("*\" --{}\"", option.key), "values", option.words);
  }
  Words commands;
  std::string lists;
  for (const auto& [first, seconds] : groups) {
    commands.push_back(first);
    lists += case_of(first, "list", seconds);
  }
  lists += case_of("help", "list", commands, " reference man completion");
  lists += case_of("\"\"", "list", commands, " --help --version");
  return fmt::format(
      "  settings=\"{}\"\n  case \"$both\" in\n{}  esac\n  case \"$command\" in\n{}  esac\n"
      "  case \"$both $key\" in\n{}  esac\n",
      fmt::join(settings, " "), names, lists, values);
}

constexpr std::string_view kBashStart =
    R"(# Completion of strata for bash, made by "strata help completion bash".
_strata() {
  local line=${COMP_LINE:0:COMP_POINT} command both key word names= list= values= settings candidate
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
    [[ ${#line[@]} -le 2 ]] && names=$list || names=
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

}  // namespace

std::string completion(Shell shell, std::span<const Command> all) {
  const bool bash = shell == Shell::kBash;
  return fmt::format("{}{}{}", bash ? kBashStart : kZshStart, tables(all),
                     bash ? kBashEnd : kZshEnd);
}

}  // namespace strata::config
