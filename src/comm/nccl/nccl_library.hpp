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
  /// Throws: Error(kPeer) where the library is missing or older than the build requires.
  static device::SharedLibrary opened();

  device::SharedLibrary file_ = opened();

 public:
  decltype(&ncclGetUniqueId) get_unique_id = file_.find("ncclGetUniqueId");
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = file_.find("ncclCommInitRankConfig");
  decltype(&ncclCommAbort) comm_abort = file_.find("ncclCommAbort");
  decltype(&ncclCommGetAsyncError) comm_get_async_error = file_.find("ncclCommGetAsyncError");
  decltype(&ncclGetErrorString) get_error_string = file_.find("ncclGetErrorString");
  decltype(&ncclGetLastError) get_last_error = file_.find("ncclGetLastError");
  decltype(&ncclGroupStart) group_start = file_.find("ncclGroupStart");
  decltype(&ncclGroupEnd) group_end = file_.find("ncclGroupEnd");
  decltype(&ncclSend) send = file_.find("ncclSend");
  decltype(&ncclRecv) recv = file_.find("ncclRecv");
  decltype(&ncclBroadcast) broadcast = file_.find("ncclBroadcast");
  decltype(&ncclAllGather) all_gather = file_.find("ncclAllGather");
  decltype(&ncclAllReduce) all_reduce = file_.find("ncclAllReduce");
  decltype(&ncclReduce) reduce = file_.find("ncclReduce");
  decltype(&ncclReduceScatter) reduce_scatter = file_.find("ncclReduceScatter");
};

}  // namespace strata::comm

#endif
