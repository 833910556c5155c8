#include "commands/commands.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "strata/config/help.hpp"
#include "strata/core/text.hpp"

#include "environment/rank_launcher.hpp"

namespace strata::app {

const Commands& all_commands() {
  static const Commands kAll = [] {
    Commands all;
    for (Commands (*const rows)() : kCommands) {
      std::ranges::move(rows(), std::back_inserter(all));
    }
    for (config::Command& command : all) {
      if (command.on_ranks) {
        std::ranges::move(launch_options(), std::back_inserter(command.options));
      }
    }
    return all;
  }();
  return kAll;
}

std::vector<std::string> settings_of(const config::CommandLine& line) {
  std::vector<std::string> settings = line.settings();
  settings.insert(settings.end(), line.positions().begin() + 1, line.positions().end());
  return settings;
}

namespace {

/// Columns of the terminal, if it is one, for lines of text.
std::size_t text_width() {
  constexpr std::size_t kUsual = 80;
  constexpr std::size_t kMost = 120;
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0
             ? std::clamp<std::size_t>(size.ws_col, kUsual / 2, kMost)
             : kUsual;
}

}  // namespace

std::string help_of(config::Arguments arguments, config::HelpDetail detail) {
  const std::size_t width = text_width();
  const std::string first = arguments.empty() ? "" : arguments[0];
  const std::string both = arguments.size() < 2 ? first : first + " " + arguments[1];
  std::string text;
  for (const config::Command& command : all_commands()) {
    if (command.name == both) {
      return config::help_text(command, detail, width);
    }
    if (command.name == first || command.name.starts_with(first + " ")) {
      text += (text.empty() ? "" : "\n") + config::help_text(command, detail, width);
    }
  }
  if (text.empty() && !first.empty() && !first.starts_with('-')) {
    static_cast<void>(command_of(arguments));  // names the nearest one
  }
  return text.empty() ? config::help_text(config::program_of(all_commands()), detail, width) : text;
}

const config::Command& command_of(config::Arguments arguments) {
  const std::string first = arguments.empty() ? "" : arguments[0];
  const std::string second = arguments.size() < 2 ? "" : arguments[1];
  const std::string both = fmt::format("{} {}", first, second);
  std::vector<std::string> names;
  std::vector<std::string> seconds;
  for (const config::Command& command : all_commands()) {
    const std::size_t blank = command.name.find(' ');
    if (command.name == (blank == std::string::npos ? first : both)) {
      return command;
    }
    if (const std::string word = command.name.substr(0, blank); word != command.name) {
      names.push_back(word);
      if (word == first) {
        seconds.push_back(command.name.substr(blank + 1));
      }
    }
    names.push_back(command.name);
  }
  if (!seconds.empty()) {
    const std::string last = seconds.back();
    seconds.pop_back();
    fail(ExitCode::kUsage, "strata {} has the command{} {}{}{}, not \"{}\"", first,
         seconds.empty() ? "" : "s", fmt::join(seconds, ", "), seconds.empty() ? "" : " and ", last,
         second);
  }
  if (first.empty()) {
    fail(ExitCode::kUsage, "a command is needed\n\n{}", help_of({}));
  }
  fail(ExitCode::kUsage,
       "there is no command \"{}\"; the nearest is \"{}\" (strata --help lists all)", first,
       nearest(first, names));
}

config::Arguments arguments_of(const config::Command& command, config::Arguments arguments) {
  return arguments.subspan(command.name.find(' ') == std::string::npos ? 1 : 2);
}

}  // namespace strata::app
