#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/device/device.hpp"

namespace strata::app {

/// A library or the executable itself, with its version.
struct VersionFact {
  std::string name;
  std::string version;

  friend bool operator==(const VersionFact&, const VersionFact&) = default;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(VersionFact, name, version)

/// The version of this executable, as in "0.1.0"; loads no library.
[[nodiscard]] std::string own_version();

/// The path that starts this executable; "strata" where the system does not tell.
[[nodiscard]] std::filesystem::path own_program();

/// Versions of this executable and of the libraries found. Needs no GPU. kCuda loads CUDA's
/// libraries, which take 150 MiB of memory.
[[nodiscard]] std::vector<VersionFact> versions(
    device::DeviceKind device = device::DeviceKind::kCuda);

/// One line per version, as in "MPI: Open MPI v4.1.4".
[[nodiscard]] std::string versions_text(const std::vector<VersionFact>& facts);

}  // namespace strata::app
