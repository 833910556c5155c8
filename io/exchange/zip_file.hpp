#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>

namespace strata::io {

/// The entries of a zip file by name; only such that are stored without compression. `path` is for
/// messages. Throws: Error(kData).
[[nodiscard]] std::map<std::string, std::span<const std::byte>> zip_entries(
    const std::filesystem::path& path, std::span<const std::byte> file);

}  // namespace strata::io
