#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/core/error.hpp"

namespace strata::comm {

/// An error that every rank of a group holds and throws alike, so that one of them reports it and
/// all end in order.
class AgreedError : public Error {
 public:
  using Error::Error;
};

/// Runs one step of set-up on every rank; where it throws on any, all ranks throw the error of the
/// lowest such rank, its text begun with that rank's number unless every rank failed with the same
/// text. Communication: one all-gather.
void agree(Communicator& group, const std::function<void()>& step);

/// One part of what all ranks must hold alike.
struct PlanItem {
  std::string name;
  std::uint64_t hash = 0;
};

/// Compares the parts of the plan (config, grid, schedule, buckets) over all ranks.
/// Pre: all ranks list the same names. Communication: one all-gather.
/// Throws: AgreedError(kUsage) that names the part and the ranks which differ from rank 0.
void check_same_plan(Communicator& group, const std::vector<PlanItem>& items);

}  // namespace strata::comm
