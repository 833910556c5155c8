#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "strata/core/error.hpp"

namespace strata::io {

/// Reads a whole text file of a user.
/// Throws: Error(code) for a file that does not exist, is no regular file (directory, FIFO, socket,
/// device), cannot be read, or has more than `most_bytes`.
[[nodiscard]] std::string read_input(const std::filesystem::path& path, std::int64_t most_bytes,
                                     ExitCode code);

/// Parses JSON; a discarded value for a text that is not JSON or nests deeper than 100 levels, as
/// nlohmann's copies, comparisons and dumps recurse.
[[nodiscard]] nlohmann::json parse_json(std::string_view text);

}  // namespace strata::io
