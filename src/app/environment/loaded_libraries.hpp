#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "environment/versions.hpp"

namespace strata::app {

/// Libraries that use a fast network, and the components of Open MPI.
inline constexpr const char* kProvider = "provider";
inline constexpr const char* kTransport = "transport";

/// The libraries of messages that this process has loaded, with their files: MPI, NCCL, their
/// plug-ins and providers.
[[nodiscard]] std::vector<VersionFact> loaded_libraries(
    const std::filesystem::path& maps = "/proc/self/maps");

/// As in "MPI /usr/lib/libmpi.so.40; transport btl_tcp, pml_ob1".
[[nodiscard]] std::string libraries_text(std::span<const VersionFact> libraries);

}  // namespace strata::app
