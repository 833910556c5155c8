#pragma once

#include <optional>
#include <string>

#include "strata/comm/groups.hpp"
#include "strata/comm/mpi.hpp"
#include "strata/ops/context.hpp"
#include "strata/train/config.hpp"
#include "strata/train/plan.hpp"

namespace strata::app {

struct Session;

/// What every rank computes on: the choice, where it is auto the GPUs if every rank finds one.
/// Communication: collective over the world.
[[nodiscard]] device::DeviceKind decide_device(comm::MpiSession& mpi, train::DeviceChoice choice);

/// What a rank computes with: its device, and the groups that carry tensors in that device's
/// memory.
class Workplace {
 public:
  /// Communication: collective over the world.
  /// Throws: AgreedError(kPeer) where a rank finds no GPU, and the plan is for GPUs.
  Workplace(comm::MpiSession& mpi, const Session& session, const train::Plan& plan);
  // Groups know the context's stream.
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  [[nodiscard]] ops::Context& context() { return *context_; }
  [[nodiscard]] comm::Groups& groups() { return groups_; }
  /// What a rank can do at most in matrix products, in FLOP/s; 0 where it is not known.
  [[nodiscard]] double peak_flops() const { return peak_flops_; }
  /// As in "cpu on 4 ranks (Open MPI v4.1.4), 2 threads each".
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::optional<ops::Context> context_;
  comm::Groups groups_;
  double peak_flops_ = 0.0;
  std::string text_;
};

}  // namespace strata::app
