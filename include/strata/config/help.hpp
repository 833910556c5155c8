#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "strata/config/command.hpp"

namespace strata::config {

/// The program as a command without a name, with a synopsis for each command.
[[nodiscard]] Command program_of(std::span<const Command> all);

/// What --help and --help=all print, in lines of at most `width` characters where words allow it.
[[nodiscard]] std::string help_text(const Command& command, HelpDetail detail, std::size_t width);

/// The name of a manual page, as in "strata-data-import".
[[nodiscard]] std::string manual_name(const Command& command);
/// A manual page in roff. Source: man(7), groff_man(7).
[[nodiscard]] std::string manual_page(const Command& command, std::span<const Command> all,
                                      const std::string& version);

/// Shells with completion of commands, options and values.
enum class Shell { kBash, kZsh };

constexpr auto enum_names(Shell) {
  return names_in_order("bash", "zsh");
}

/// A completion script.
[[nodiscard]] std::string completion(Shell shell, std::span<const Command> all);

}  // namespace strata::config
