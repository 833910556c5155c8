#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/comm/groups.hpp"
#include "strata/comm/mpi.hpp"
#include "strata/config/run_config.hpp"
#include "strata/device/gpu_info.hpp"
#include "strata/ops/context.hpp"
#include "strata/plan/plan.hpp"

namespace strata::app {

struct RunInputs;

/// Resolves run.device: auto becomes cuda where every rank finds a GPU, else cpu.
/// Communication: collective over the world.
[[nodiscard]] device::DeviceKind resolve_device(comm::MpiSession& mpi,
                                                std::optional<device::DeviceKind> asked);

/// What a rank uses its device for.
enum class Use { kTraining, kEvaluation };

/// Numbers of ranks that share GPUs.
struct GpuSharing {
  /// Ranks on this rank's GPU, including this rank.
  std::int64_t on_this_gpu = 1;
  /// Ranks of the world that share their GPU with another rank.
  std::int64_t in_world = 0;
};

/// `uuid`: of this rank's GPU. Communication: an all-gather of texts over the world.
[[nodiscard]] GpuSharing sharing_of(comm::Communicator& world, const std::string& uuid);

/// What carries tensors in GPU memory: NCCL, or MPI through pinned memory.
struct GpuTransport {
  comm::DeviceWorld world;
  std::string obstacle;  ///< why not NCCL; empty where it is NCCL, and on one rank
};

/// NCCL where `obstacle` is empty and it can be used. `context`: of the rank's GPU, which `sharing`
/// ranks use; outlives the result, as `mpi` does. Communication: collective over the world.
[[nodiscard]] GpuTransport open_transport(comm::MpiSession& mpi, ops::Context& context,
                                          const device::GpuInfo& gpu, std::int64_t sharing,
                                          comm::Summation sums, const std::string& obstacle = "");

/// A rank's device and the communication groups for tensors in that device's memory.
class ExecutionEnvironment {
 public:
  /// Where parallel.backward = auto is split and only fused fits on the GPUs, the plan becomes
  /// that. Communication: collective over the world. Throws: for a plan on GPUs, AgreedError(kPeer)
  /// where a rank finds no GPU or one that is too old or has too little memory for training, and
  /// AgreedError(kUsage) where run.transport is nccl and NCCL cannot be used; for a plan on CPUs,
  /// as set_instruction_set().
  ExecutionEnvironment(comm::MpiSession& mpi, const RunInputs& inputs, plan::Plan& plan, Use use);
  // The groups hold the context's stream.
  ExecutionEnvironment(const ExecutionEnvironment&) = delete;
  ExecutionEnvironment& operator=(const ExecutionEnvironment&) = delete;

  [[nodiscard]] ops::Context& context() { return *context_; }
  [[nodiscard]] comm::Groups& groups() { return groups_; }
  /// Peak throughput of a rank in matrix products, in FLOP/s; 0 where it is unknown.
  [[nodiscard]] double peak_flops() const { return peak_flops_; }
  /// A warning for the user before the run; may be empty.
  [[nodiscard]] const std::string& warning() const { return warning_; }
  /// As in "cpu on 4 ranks (Open MPI v4.1.4), 2 threads each, amx".
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  /// Returns: the ranks that share this rank's GPU.
  std::int64_t open_gpu(comm::MpiSession& mpi, const plan::Plan& plan, Use use);
  void connect_groups(comm::Communicator& world, const plan::Plan& plan, Use use);
  void choose_transport(comm::MpiSession& mpi, const plan::Plan& plan, const device::GpuInfo& gpu,
                        std::int64_t sharing);

  std::optional<ops::Context> context_;
  /// Empty on a CPU. Outlives the groups, which are split from it.
  comm::DeviceWorld world_;
  comm::Groups groups_;
  double peak_flops_ = 0.0;
  std::string text_;
  std::string warning_;
};

/// As in "2 nodes: n1, n2", of the ranks' hosts.
[[nodiscard]] std::string nodes_text(const std::vector<std::string>& hosts);

/// What receipts record of the program and the machine: versions, device, nodes and grid; nothing
/// without run.receipts.
[[nodiscard]] nlohmann::ordered_json receipt_environment(comm::MpiSession& mpi,
                                                         const plan::Plan& plan,
                                                         const ExecutionEnvironment& environment);

}  // namespace strata::app
