#include "strata/plan/replication.hpp"

#include <fmt/format.h>

#include "strata/plan/checkpoint_names.hpp"

#include "replication_kinds.hpp"

namespace strata::plan {

const ReplicationPlan& replication_of(config::Sync sync) {
  static const ReplicationPlan kEveryStep;
  switch (sync) {
    case config::Sync::kLocal:
      return local_steps();
    case config::Sync::kAsync:
      return parameter_servers();
    case config::Sync::kStep:
      break;
  }
  return kEveryStep;
}

std::int64_t rank_states(const Plan& plan) {
  return replication_of(plan).traits(plan).ranks_update
             ? optim::UpdateRule::states(plan.config.optimizer.options)
             : 0;
}

std::string part_prefix(std::int64_t part) {
  return fmt::format("{}{}/", kPartPrefix, part);
}

std::vector<io::LoaderOptions> ReplicationPlan::loaders(const Plan& plan,
                                                        const RankPlan& rank) const {
  return {training_loader(plan, rank, 0)};
}

std::int64_t ReplicationPlan::copied_elements(const Plan& plan, std::int64_t owned,
                                              std::int64_t states) const {
  const auto& saves = plan.config.checkpoint;
  const bool in_place = plan.device == device::DeviceKind::kCpu &&
                        (saves.background == config::Switch::kOff ||
                         (saves.every == 0 && saves.keep_every == 0 && saves.minutes == 0.0));
  // The master weights (the weights themselves in full precision) and the optimizer's state.
  return in_place ? 0 : owned + states;
}

std::vector<std::string> ReplicationPlan::state_tensors(const Plan& plan,
                                                        const nn::ParameterSpec& spec) const {
  return state_names(spec, plan.config.optimizer.options);
}

ReplicationName ReplicationPlan::name(std::int64_t /*parts*/) const {
  return {.name = std::string(name_of(config::Sync::kStep)), .state = ""};
}

}  // namespace strata::plan
