#include "fit.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>

#include <fmt/format.h>

namespace strata::bench {
namespace {

/// Quadratic up to `bend`, linear beyond.
double huber(double error) {
  constexpr double kBend = 0.08;
  const double a = std::abs(error);
  return a < kBend ? a * a : kBend * (2.0 * a - kBend);
}

}  // namespace

void fit(Constants& constants, Predictor& predictor, const std::vector<Run>& runs) {
  std::vector<Run> known;
  std::ranges::copy_if(runs, std::back_inserter(known), [](const Run& run) {
    return run.outside.empty() && !run.judged && run.outlier == Outlier::kNone;
  });
  // A source counts as the square root of its runs: the largest one has nine of ten.
  std::map<std::string, double> sources;
  for (const Run& run : known) {
    sources[run.source] += 1.0;
  }
  const auto loss = [&] {
    double sum = 0.0;
    for (const Run& run : known) {
      sum += huber(std::log(predictor.step_seconds(run, constants) / run.seconds)) /
             std::sqrt(sources.at(run.source));
    }
    return sum;
  };
  const std::vector<Knob> all = knobs(constants);
  std::vector<double> steps(all.size(), 0.1);
  double best = loss();
  for (int round = 0; std::ranges::max(steps) > 0.004 && round < 40; ++round) {
    for (std::size_t k = 0; k < all.size(); ++k) {
      bool better = false;
      for (const double factor : {1.0 + steps[k], 1.0 / (1.0 + steps[k])}) {
        const double value = *all[k].values.front() * factor;
        if (better || value < all[k].least || value > all[k].most) {
          continue;
        }
        std::ranges::for_each(all[k].values, [&](double* v) { *v *= factor; });
        if (const double now = loss(); now < best) {
          best = now;
          better = true;
        } else {
          std::ranges::for_each(all[k].values, [&](double* v) { *v /= factor; });
        }
      }
      steps[k] *= better ? 1.3 : 0.5;
      steps[k] = std::clamp(steps[k], 0.002, 0.3);
    }
    fmt::print("round {}: {} runs, loss {:.4f}\n", round + 1, known.size(), best);
  }
  for (const Knob& knob : all) {
    fmt::print("{:56} {:.5g}\n", knob.name, *knob.values.front());
  }
}

}  // namespace strata::bench
