#pragma once

#include <string>

#include "strata/config/command.hpp"
#include "strata/io/import.hpp"

namespace strata::app {

/// The value of an option; empty where it is not given. Throws: Error(kUsage) for an empty value.
[[nodiscard]] std::string text_argument(const config::CommandLine& line, const std::string& name);

/// What a command line of `strata data import` asks for. Throws: Error(kUsage).
[[nodiscard]] io::ImportOptions import_options(const config::CommandLine& line);

}  // namespace strata::app
