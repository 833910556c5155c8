#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace strata::device {

/// What a GPU is.
struct GpuInfo {
  std::string name;
  /// The GPU's PCI bus id, as in "0000:3b:00.0".
  std::string bus_id;
  /// The GPU's UUID, as in "GPU-6cbf...". A MIG instance has its own.
  std::string uuid;
  std::int64_t memory_bytes = 0;
  /// Compute capability, as in "9.0".
  std::string capability;
  /// Streaming multiprocessors; those of a MIG instance where it is one.
  std::int64_t multiprocessors = 0;
};

/// Peak rates of dense matrix products, in FLOP/s.
struct PeakFlops {
  double bfloat16 = 0.0;
  double tf32 = 0.0;
  double float32 = 0.0;
  double float64 = 0.0;
};

/// The published peaks of a GPU; nothing for a GPU that is not in the table. Source: NVIDIA's data
/// sheets of A100 (2020), H100, H200 and GH200 (2023), HGX B200 and GB200 NVL72 (2024), whose rates
/// with sparsity are halved here.
[[nodiscard]] std::optional<PeakFlops> published_peak(const GpuInfo& gpu);

/// The GPUs that this process can use, in the order of their indices; CUDA_VISIBLE_DEVICES chooses
/// them. Empty in a build without CUDA and on a node without a driver.
/// Throws: Error(kPeer) where a GPU does not answer.
[[nodiscard]] std::vector<GpuInfo> gpus();

/// The reason why the node's GPUs do not answer despite a driver, as after a fault; empty where
/// they answer or there are none.
[[nodiscard]] std::string gpu_trouble();

/// Free memory of GPU `index`. Creates a CUDA context there, which uses some memory itself.
/// Throws: Error(kPeer) where there is no such GPU.
[[nodiscard]] std::int64_t free_memory_bytes(std::int64_t index);

/// Whether GPU `index` has peer access to GPU `other`.
/// Throws: Error(kPeer) where there are no such GPUs.
[[nodiscard]] bool has_peer_access(std::int64_t index, std::int64_t other);

/// A library of the CUDA part and the version that is linked.
struct LibraryVersion {
  std::string name;
  std::string version;
};
/// The libraries of the CUDA part, as they answer at run time, and the driver where there is one;
/// empty in a build without CUDA. Needs no GPU.
[[nodiscard]] std::vector<LibraryVersion> cuda_libraries();

/// The version of the GPUs' driver, as in "580.159.03"; empty without one.
[[nodiscard]] std::string driver_version(
    const std::filesystem::path& file = "/proc/driver/nvidia/version");

/// Versions in CUDA's encoding, 1000 x major + 10 x minor; 0 where there is none.
struct CudaVersions {
  /// The newest version that the node's driver supports.
  std::int64_t driver = 0;
  /// The version that this executable was linked with.
  std::int64_t runtime = 0;
};
[[nodiscard]] CudaVersions cuda_versions();

/// As in "12.4"; "none" for 0.
[[nodiscard]] std::string cuda_version_text(std::int64_t version);

/// A rank's GPU on its node.
struct GpuChoice {
  std::int64_t index = 0;
  /// Ranks of the node that share this GPU, including this one. More than 1 deserves a warning.
  std::int64_t ranks = 1;
};

/// The GPU of rank local_rank of a node's local_ranks: one each where there are enough, otherwise
/// consecutive ranks share a GPU, as evenly as possible. With one visible GPU, as under launchers
/// that bind them, that one. Pre: 0 <= local_rank < local_ranks, gpus >= 1.
[[nodiscard]] GpuChoice choose_gpu(std::int64_t local_rank, std::int64_t local_ranks,
                                   std::int64_t gpus);

}  // namespace strata::device
