#pragma once

#include <string>

#include "strata/config/command.hpp"

namespace strata::app {

/// Throws: Error(kUsage) where a file that a command writes is one that it reads.
void refuse_outputs_that_are_inputs(const config::CommandLine& line);

/// Checks that write_file() can write the file that a user named, and leaves it unchanged.
/// Throws: Error(kUsage) where it cannot.
void require_writable(const std::string& path);

/// Writes a text into the file that a user named (io::write_output).
/// Throws: Error(kUsage).
void write_file(const std::string& path, const std::string& text);

}  // namespace strata::app
