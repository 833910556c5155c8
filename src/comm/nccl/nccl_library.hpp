#pragma once

#ifdef STRATA_HAVE_NCCL

#include <string>

#include <nccl.h>

#include "strata/device/shared_library.hpp"

namespace strata::comm {

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0), "NCCL 2.18 or newer is needed");

/// NCCL's functions, loaded from the shared library at construction
/// (docs/decisions/0001-cuda-libraries-on-demand.md).
class NcclLibrary {
 public:
  /// Throws: Error(kPeer) where the library is missing or older than the build requires.
  NcclLibrary();

  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;

 private:
  device::SharedLibrary file_;
};

}  // namespace strata::comm

#endif
