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

/// What every rank computes on: the choice, where it is auto the GPUs if every rank finds one.
/// Communication: collective over the world.
[[nodiscard]] device::DeviceKind resolve_device(comm::MpiSession& mpi, plan::DeviceChoice choice);

/// What a rank needs its device for.
enum class Use { kTraining, kEvaluation };

/// What a rank computes with: its device, and the groups that carry tensors in that device's
/// memory.
class ExecutionEnvironment {
 public:
  /// Communication: collective over the world.
  /// Throws: where the plan is for GPUs, AgreedError(kPeer) where a rank finds none, or one that is
  /// too old or too small for training; AgreedError(kUsage) where run.transport asks for NCCL and
  /// that cannot be used; where it is for CPUs, as settle_instruction_set().
  ExecutionEnvironment(comm::MpiSession& mpi, const RunInputs& inputs, const plan::Plan& plan,
                       Use use);
  // Groups know the context's stream.
  ExecutionEnvironment(const ExecutionEnvironment&) = delete;
  ExecutionEnvironment& operator=(const ExecutionEnvironment&) = delete;

  [[nodiscard]] ops::Context& context() { return *context_; }
  [[nodiscard]] comm::Groups& groups() { return groups_; }
  /// What a rank can do at most in matrix products, in FLOP/s; 0 where it is not known.
  [[nodiscard]] double peak_flops() const { return peak_flops_; }
  /// What is to be told to the user before the run; empty: nothing.
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
