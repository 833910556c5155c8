#include "environment/versions.hpp"

#include <system_error>

#include <fmt/format.h>

#include "strata/comm/mpi_library.hpp"
#include "strata/device/gpu_info.hpp"
#include "strata/ops/instruction_set.hpp"

namespace strata::app {

std::string own_version() {
  return STRATA_VERSION;
}

std::filesystem::path own_program() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return "strata";
  }
  // A release starts it by a script that finds the MPI library (packaging/strata-by-mpi.sh).
  const std::filesystem::path script = self.parent_path().parent_path() / "bin" / "strata";
  return self.parent_path().filename() == "libexec" && std::filesystem::exists(script, error)
             ? script
             : self;
}

std::vector<VersionFact> versions(device::DeviceKind device) {
  std::vector<VersionFact> facts{{"strata", own_version()},
                                 {"MPI", comm::mpi_library_text()},
                                 {"oneDNN", ops::onednn_version()}};
  if (device == device::DeviceKind::kCuda) {
    const std::vector<device::LibraryVersion> libraries = device::cuda_libraries();
    if (libraries.empty()) {
      facts.push_back({"CUDA", "not built in"});
    }
    for (const device::LibraryVersion& library : libraries) {
      facts.push_back({library.name, library.version});
    }
  }
  facts.push_back({"own code", STRATA_BUILD});
  return facts;
}

std::string versions_text(const std::vector<VersionFact>& facts) {
  std::string text;
  for (const VersionFact& fact : facts) {
    // The program's own version has no colon, as is usual for --version.
    text += fmt::format("{}{} {}\n", fact.name, fact.name == "strata" ? "" : ":", fact.version);
  }
  return text;
}

}  // namespace strata::app
