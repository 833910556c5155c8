#pragma once

#include <string>

namespace strata::app {

/// Writes a text into the file that a user named (io::write_output).
/// Throws: Error(kUsage).
void write_file(const std::string& path, const std::string& text);

}  // namespace strata::app
