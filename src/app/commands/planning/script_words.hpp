#pragma once

#include <string>

#include "strata/core/enum_names.hpp"

namespace strata::app {

/// What runs the script; kShell: nothing, it is a plain shell script.
enum class Scheduler { kSlurm, kPbs, kFlux, kShell };

constexpr auto enum_names(Scheduler) {
  return names_in_order("slurm", "pbs", "flux", "shell");
}

/// Refuses a text with a control character, which would end its line of a script: Error(kUsage).
void require_one_line(const std::string& text);

/// A word as a shell reads it back. Throws: as require_one_line().
[[nodiscard]] std::string shell_quoted(const std::string& word);

/// A word of a directive as the scheduler reads it back. In double quotes sbatch and Flux take a
/// backslash before a character for the character; qsub knows quotes only. Throws: as
/// require_one_line().
[[nodiscard]] std::string directive_word(Scheduler scheduler, const std::string& word);

}  // namespace strata::app
