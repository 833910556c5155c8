#include "strata/comm/clock_offset.hpp"

#include <algorithm>
#include <vector>

namespace strata::comm {

double clock_offset_seconds(Communicator& world, double (*now)()) {
  constexpr int kRounds = 5;
  std::vector<double> offsets;
  for (int round = 0; round < kRounds; ++round) {
    world.barrier();
    const double mine = now();
    std::vector<double> all(static_cast<std::size_t>(world.size()));
    world.all_gather(payload_of(std::span(&mine, 1)), payload_of(std::span(all)));
    offsets.push_back(mine - all.front());
  }
  std::ranges::sort(offsets);
  return offsets[kRounds / 2];
}

}  // namespace strata::comm
