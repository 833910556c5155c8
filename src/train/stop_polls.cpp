#include "strata/train/stop_polls.hpp"

#include <algorithm>
#include <array>

#include "strata/comm/values.hpp"
#include "strata/core/clock.hpp"

namespace strata::train {

StopPolls::StopPolls(comm::Communicator& world, std::function<StopRequest()> own)
    : world_(world), own_(std::move(own)), last_exchange_(now_seconds()) {}

StopRequest StopPolls::poll() {
  if (rounds_ < rounds_between_) {
    ++rounds_;
    return StopRequest::kNone;
  }
  // The request, and the seconds of a round. All ranks compute the next interval from the slowest.
  using Answer = std::array<double, 2>;
  const double now = now_seconds();
  const auto rounds = static_cast<double>(std::max<std::int64_t>(rounds_, 1));
  const Answer mine{own_() == StopRequest::kStop ? 1.0 : 0.0, (now - last_exchange_) / rounds};
  bool stops = false;
  double slowest = 1e-6;
  for (const auto& [stop, seconds] : comm::gathered(world_, mine)) {
    stops = stops || stop != 0.0;
    slowest = std::max(slowest, seconds);
  }
  constexpr double kSecondsBetween = 0.5;
  rounds_between_ = std::clamp<std::int64_t>(static_cast<std::int64_t>(kSecondsBetween / slowest),
                                             1, 2 * rounds_ + 1);
  rounds_ = 1;
  last_exchange_ = now;
  return stops ? StopRequest::kStop : StopRequest::kNone;
}

}  // namespace strata::train
