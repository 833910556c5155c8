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

NcclLibrary::NcclLibrary() : file_("libnccl.so." + std::to_string(NCCL_MAJOR), kRemedy) {
  file_.find("ncclGetVersion", get_version);
  int version = 0;
  if (get_version(&version) != ncclSuccess || version < kOldest) {
    fail(ExitCode::kPeer, "this node has NCCL {}, but this executable needs {} or newer; {}",
         version_text(version), version_text(kOldest), kRemedy);
  }
  file_.find("ncclGetUniqueId", get_unique_id);
  file_.find("ncclCommInitRankConfig", comm_init_rank_config);
  file_.find("ncclCommAbort", comm_abort);
  file_.find("ncclCommGetAsyncError", comm_get_async_error);
  file_.find("ncclGetErrorString", get_error_string);
  file_.find("ncclGetLastError", get_last_error);
  file_.find("ncclGroupStart", group_start);
  file_.find("ncclGroupEnd", group_end);
  file_.find("ncclSend", send);
  file_.find("ncclRecv", recv);
  file_.find("ncclBroadcast", broadcast);
  file_.find("ncclAllGather", all_gather);
  file_.find("ncclAllReduce", all_reduce);
  file_.find("ncclReduce", reduce);
  file_.find("ncclReduceScatter", reduce_scatter);
}

}  // namespace strata::comm

#endif
