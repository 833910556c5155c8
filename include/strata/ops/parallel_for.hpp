#pragma once

#include <algorithm>
#include <cstdint>

#include "strata/core/error.hpp"
#include "strata/ops/context.hpp"

namespace strata::ops {

/// Whether parallel_for() uses OpenMP threads. ThreadSanitizer does not see the barriers of GCC's
/// OpenMP library and would report every result that crosses one as a race.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kUseThreads = false;
#else
inline constexpr bool kUseThreads = true;
#endif

/// Calls function(begin, end) for the chunks [0, grain), [grain, 2 grain), ... of [0, count), on
/// the context's threads. The chunks, and so the bits, do not depend on the number of threads.
/// Pre: grain >= 1; calls do not depend on one another and do not throw.
template <typename Function>
void parallel_for(Context& context, std::int64_t count, std::int64_t grain,
                  const Function& function) {
  require(grain >= 1, "a chunk of {} items", grain);
  const std::int64_t chunks = (count + grain - 1) / grain;
  if (!kUseThreads || context.threads() == 1 || chunks <= 1) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      function(chunk * grain, std::min(count, (chunk + 1) * grain));
    }
    return;
  }
  const int threads = static_cast<int>(std::min<std::int64_t>(context.threads(), chunks));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    function(chunk * grain, std::min(count, (chunk + 1) * grain));
  }
}

}  // namespace strata::ops
