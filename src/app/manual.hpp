#pragma once

#include <span>
#include <string>

#include "strata/core/enum_names.hpp"

namespace strata::app {

/// A command and what its --help prints.
struct Help {
  std::string command;  ///< as in "data import"; of the program: empty
  std::string text;
};

/// The name of a command's manual page, as in "strata-data-import".
[[nodiscard]] std::string page_name(const Help& help);

/// A manual page in roff, made from the text of --help. `all`: every help; the first is the
/// program's, whose lines say what each command does. Source: man(7), groff_man(7).
[[nodiscard]] std::string man_page(const Help& help, std::span<const Help> all);

/// Shells with completion of commands and options.
enum class Shell { kBash, kZsh };

constexpr auto enum_names(Shell) {
  return names_in_order("bash", "zsh");
}

/// A completion script: the commands and options that the texts name, and the option table's
/// settings for the commands that take them.
[[nodiscard]] std::string completion(Shell shell, std::span<const Help> all);

}  // namespace strata::app
