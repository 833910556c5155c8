#pragma once

#include <cstdint>
#include <functional>

#include "strata/comm/communicator.hpp"
#include "strata/train/stop_signal.hpp"

namespace strata::train {

/// Asks all ranks about every half second whether one of them was requested to stop. Pre: all ranks
/// run the same rounds of a loop.
class StopPolls {
 public:
  /// `own` says whether this rank was requested to stop.
  StopPolls(comm::Communicator& world, std::function<StopRequest()> own);

  /// To be called once a round. Communication: in some rounds, the same on all ranks, an all-gather
  /// over the world. Returns: the same on all ranks.
  [[nodiscard]] StopRequest poll();

 private:
  comm::Communicator& world_;
  std::function<StopRequest()> own_;
  double last_exchange_ = 0.0;
  std::int64_t rounds_between_ = 0;
  std::int64_t rounds_ = 0;  ///< since the last exchange
};

}  // namespace strata::train
