#pragma once

#include <memory>
#include <optional>
#include <string>

#include "strata/comm/groups.hpp"
#include "strata/comm/mpi.hpp"
#include "strata/ops/context.hpp"
#include "strata/plan/config.hpp"
#include "strata/plan/plan.hpp"

namespace strata::app {

struct RunInputs;

/// The device kind of all ranks. `auto` becomes GPUs if every rank finds one. Communication:
/// collective over the world.
[[nodiscard]] device::DeviceKind resolve_device(comm::MpiSession& mpi, plan::DeviceChoice choice);

/// The purpose of a rank's device.
enum class Use { kTraining, kEvaluation };

/// A rank's device, the transport for tensors in its memory, and the groups.
class ExecutionEnvironment {
 public:
  /// Communication: collective over the world.
  /// Throws: for a GPU plan, AgreedError(kPeer) where a rank finds no GPU, or one that is too old
  /// or has too little memory to train; AgreedError(kUsage) where run.transport is nccl but NCCL
  /// cannot be used. For a CPU plan, as choose_instruction_set().
  ExecutionEnvironment(comm::MpiSession& mpi, const RunInputs& inputs, const plan::Plan& plan,
                       Use use);
  // Groups refer to the context's stream.
  ExecutionEnvironment(const ExecutionEnvironment&) = delete;
  ExecutionEnvironment& operator=(const ExecutionEnvironment&) = delete;

  [[nodiscard]] ops::Context& context() { return *context_; }
  [[nodiscard]] comm::Groups& groups() { return groups_; }
  /// A rank's peak rate of matrix products, in FLOP/s; 0 where it is not known.
  [[nodiscard]] double peak_flops() const { return peak_flops_; }
  /// A warning to log before the run; empty: none.
  [[nodiscard]] const std::string& warning() const { return warning_; }
  /// As in "cpu on 4 ranks (Open MPI v4.1.4), 2 threads each, amx".
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void take_gpu(comm::MpiSession& mpi, const RunInputs& inputs, const plan::Plan& plan, Use use);
  void connect_groups(const plan::Plan& plan, Use use);
  void choose_transport(comm::MpiSession& mpi, const plan::Plan& plan, std::int64_t sharing);

  std::optional<ops::Context> context_;
  /// Empty where this rank computes on a CPU. Outlives the groups, which are split from it.
  comm::DeviceWorld world_;
  comm::Groups groups_;
  double peak_flops_ = 0.0;
  std::string text_;
  std::string warning_;
};

}  // namespace strata::app
