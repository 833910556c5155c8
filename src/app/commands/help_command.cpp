#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/config/help.hpp"
#include "strata/core/text.hpp"

#include "commands/commands.hpp"
#include "environment/versions.hpp"

namespace strata::app {
namespace {

/// A manual page, or without a name the names of all.
std::string manual(const std::string& name) {
  const Commands& all = all_commands();
  Commands pages{config::program_of(all)};
  pages.insert(pages.end(), all.begin(), all.end());
  std::vector<std::string> names;
  for (const config::Command& page : pages) {
    names.push_back(config::manual_name(page));
    if (names.back() == name) {
      return config::manual_page(page, all, own_version());
    }
  }
  if (!name.empty()) {
    fail(ExitCode::kUsage, "there is no manual page \"{}\"; the nearest is \"{}\"", name,
         nearest(name, names));
  }
  return fmt::format("{}\n", fmt::join(names, "\n"));
}

std::string completion_for(const std::string& name) {
  const auto shell = enum_from_name<config::Shell>(name);
  if (!shell) {
    fail(ExitCode::kUsage, "there is no completion for \"{}\"; give one of {}", name,
         joined_names<config::Shell>());
  }
  return config::completion(*shell, all_commands());
}

ExitCode help(const config::CommandLine& line) {
  const std::vector<std::string>& words = line.positions();
  const std::string what = words.empty() ? "" : words[0];
  const std::string which = words.size() < 2 ? "" : words[1];
  fmt::print("{}", what == "reference"    ? config::config_reference()
                   : what == "man"        ? manual(which)
                   : what == "completion" ? completion_for(which)
                                          : help_of(words));
  return ExitCode::kDone;
}

}  // namespace

Commands help_commands() {
  return {
      {.name = "help",
       .purpose = "this text, or that of a command",
       .synopses = {{"[COMMAND]", "what the program does, or a command"},
                    {"reference", "the page docs/configuration.md"},
                    {"man [PAGE]",
                     "a manual page, as in strata-train, in roff; without PAGE the names of all"},
                    {"completion bash|zsh", "a completion script for a shell"}},
       .alone = help}};
}

}  // namespace strata::app
