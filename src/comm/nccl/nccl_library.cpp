#include "nccl/nccl_library.hpp"

#ifdef STRATA_HAVE_NCCL

#include <fmt/format.h>

#include "strata/core/error.hpp"

namespace strata::comm {
namespace {

// Patch releases of a minor version have one interface; PyTorch's packages and toolkits carry
// different ones.
constexpr int kOldest = NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, 0);

constexpr const char* kRemedy =
    "put its directory into LD_LIBRARY_PATH on every node, or set run.transport = mpi";

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

}  // namespace

device::SharedLibrary NcclLibrary::opened() {
  device::SharedLibrary file("libnccl.so." + std::to_string(NCCL_MAJOR), kRemedy);
  const decltype(&ncclGetVersion) get_version = file.find("ncclGetVersion");
  int version = 0;
  if (get_version(&version) != ncclSuccess || version < kOldest) {
    fail(ExitCode::kPeer, "this node has NCCL {}, but this executable needs {} or newer; {}",
         version_text(version), version_text(kOldest), kRemedy);
  }
  return file;
}

}  // namespace strata::comm

#endif
