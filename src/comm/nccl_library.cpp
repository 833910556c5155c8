#include "nccl_library.hpp"

#ifdef STRATA_HAVE_NCCL

#include <fmt/format.h>

#include "strata/core/error.hpp"

namespace strata::comm {
namespace {

constexpr const char* kRemedy =
    "put its directory into LD_LIBRARY_PATH on every node, or set run.transport = mpi";

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

}  // namespace

template <typename Function>
void NcclLibrary::take(Function& function, const char* name) {
  function = file_.function<Function>(name);
  if (function == nullptr) {
    fail(ExitCode::kPeer, "NCCL's library on this node has no {}; {}", name, kRemedy);
  }
}

NcclLibrary::NcclLibrary() : file_("libnccl.so." + std::to_string(NCCL_MAJOR)) {
  if (!file_.loaded()) {
    fail(ExitCode::kPeer, "libnccl.so.{} was not found on this node; {}", NCCL_MAJOR, kRemedy);
  }
  take(get_version, "ncclGetVersion");
  int version = 0;
  if (get_version(&version) != ncclSuccess || version < NCCL_VERSION_CODE) {
    fail(ExitCode::kPeer,
         "NCCL {} was found on this node, and this executable was built for {} or newer; {}",
         version_text(version), version_text(NCCL_VERSION_CODE), kRemedy);
  }
  take(get_unique_id, "ncclGetUniqueId");
  take(comm_init_rank_config, "ncclCommInitRankConfig");
  take(comm_split, "ncclCommSplit");
  take(comm_abort, "ncclCommAbort");
  take(comm_get_async_error, "ncclCommGetAsyncError");
  take(get_error_string, "ncclGetErrorString");
  take(get_last_error, "ncclGetLastError");
  take(group_start, "ncclGroupStart");
  take(group_end, "ncclGroupEnd");
  take(send, "ncclSend");
  take(recv, "ncclRecv");
  take(broadcast, "ncclBroadcast");
  take(all_gather, "ncclAllGather");
  take(all_reduce, "ncclAllReduce");
  take(reduce, "ncclReduce");
  take(reduce_scatter, "ncclReduceScatter");
}

}  // namespace strata::comm

#endif
