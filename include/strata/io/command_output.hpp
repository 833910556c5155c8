#pragma once

#include <string>

namespace strata::io {

/// What a shell command printed to stdout.
struct CommandOutput {
  bool succeeded = false;  ///< it ended with 0
  std::string text;        ///< the first 64 KiB
};

/// Runs a shell command to its end.
[[nodiscard]] CommandOutput output_of(const std::string& command);

}  // namespace strata::io
