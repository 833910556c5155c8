#pragma once

#include <cstdint>
#include <string>

namespace strata::app {

/// The directory for temporary files of MPI and its launcher: TMPDIR, else /tmp.
[[nodiscard]] std::string temporary_directory();

/// Makes the directory if it is not there. Throws: Error(kUsage) where it cannot be written,
/// Error(kPeer) where it has less room; MPI needs it to start ranks, and says so in other words.
void require_temporary_directory(const std::string& directory = temporary_directory(),
                                 std::int64_t least_bytes = std::int64_t{16} << 20);

}  // namespace strata::app
