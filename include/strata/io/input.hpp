#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "strata/core/error.hpp"

namespace strata::io {

/// Reads a whole text file of a user.
/// Throws: Error(code) for a file that does not exist, is no regular file (directory, FIFO, socket,
/// device), cannot be read, or has more than `most_bytes`.
[[nodiscard]] std::string read_input(const std::filesystem::path& path, std::int64_t most_bytes,
                                     ExitCode code);

}  // namespace strata::io
