#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "strata/core/error.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/thread_pool.hpp"

namespace strata::ops {

/// Calls function(begin, end) for the chunks [0, grain), [grain, 2 grain), ... of [0, count), on
/// the context's threads; function(begin, end, thread) where it takes the thread's number. The
/// chunks, and so the bits, do not depend on the number of threads.
/// Pre: grain >= 1; calls do not depend on one another and do not throw.
template <typename Function>
void parallel_for(Context& context, std::int64_t count, std::int64_t grain,
                  const Function& function) {
  require(grain >= 1, "a chunk of {} items", grain);
  const std::int64_t chunks = (count + grain - 1) / grain;
  const auto run = [&](std::int64_t chunk, int thread) {
    const std::int64_t end = std::min(count, (chunk + 1) * grain);
    if constexpr (std::is_invocable_v<Function, std::int64_t, std::int64_t, int>) {
      function(chunk * grain, end, thread);
    } else {
      function(chunk * grain, end);
    }
  };
  if (context.threads() == 1 || chunks <= 1) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      run(chunk, 0);
    }
    return;
  }
  context.pool().run(
      chunks,
      [](const void* body, std::int64_t chunk, int thread) {
        (*static_cast<decltype(&run)>(body))(chunk, thread);
      },
      &run);
}

}  // namespace strata::ops
