#include "roofline.hpp"

#include <algorithm>
#include <cmath>
#include <deque>

#include "strata/core/clock.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::bench {
namespace {

constexpr std::size_t kSamples = 5;

/// A call on each of several sets of operands, in turn.
class Calls {
 public:
  Calls(Machine& machine, const Operation& operation, std::int64_t cold_bytes)
      : context_(machine.context(operation.kernels)) {
    std::int64_t made = 0;
    do {
      operands_.emplace_back(machine, operation.kernels);
      calls_.push_back(operation.prepare(operands_.back()));
      made += operands_.back().bytes();
    } while (made < cold_bytes && calls_.size() < kMostSets);
  }
  ~Calls() = default;
  // Calls refer to the operands.
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  [[nodiscard]] std::int64_t sets() const { return static_cast<std::int64_t>(calls_.size()); }
  [[nodiscard]] double bytes_of_a_call() const {
    return static_cast<double>(operands_.front().bytes());
  }

  /// Of all `repetitions`, from one wait for the GPU to the next.
  [[nodiscard]] double seconds_of(std::int64_t repetitions) {
    context_.synchronize();
    const double begin = now_seconds();
    for (std::int64_t i = 0; i < repetitions; ++i) {
      calls_[next_]();
      next_ = (next_ + 1) % calls_.size();
    }
    context_.synchronize();
    return now_seconds() - begin;
  }

 private:
  static constexpr std::size_t kMostSets = 64;

  ops::Context& context_;
  std::deque<Operands> operands_;
  std::vector<std::function<void()>> calls_;
  std::size_t next_ = 0;
};

/// So many that they take at least as long.
std::int64_t repetitions_for(Calls& calls, double least_seconds) {
  std::int64_t repetitions = 1;
  double seconds = calls.seconds_of(repetitions);
  while (seconds < least_seconds) {
    // A tenth more than what the last try asks for, and never more than tenfold at once.
    const double factor = std::clamp(1.1 * least_seconds / std::max(seconds, 1e-9), 1.1, 10.0);
    repetitions = static_cast<std::int64_t>(std::ceil(static_cast<double>(repetitions) * factor));
    seconds = calls.seconds_of(repetitions);
  }
  return repetitions;
}

}  // namespace

Timing measure(Machine& machine, const Operation& operation, const Effort& effort) {
  Calls calls(machine, operation, effort.cold_bytes);
  // Libraries are opened, their kernels chosen and scratch memory asked for at the first call.
  static_cast<void>(calls.seconds_of(calls.sets()));
  const std::int64_t repetitions = repetitions_for(calls, effort.least_seconds);
  Timing timing{operation.name, operation.flops, calls.bytes_of_a_call(), {}};
  for (std::size_t sample = 0; sample < kSamples; ++sample) {
    timing.samples_seconds.push_back(calls.seconds_of(repetitions) /
                                     static_cast<double>(repetitions));
  }
  std::ranges::sort(timing.samples_seconds);
  return timing;
}

double Ceilings::least_seconds(const Timing& work) const {
  return std::max(work.flops / flops_per_second, work.bytes / bytes_per_second);
}

bool Ceilings::is_bound_by_products(const Timing& work) const {
  return work.flops / flops_per_second > work.bytes / bytes_per_second;
}

double Ceilings::ratio(const Timing& work) const {
  return work.seconds() / least_seconds(work);
}

Ceilings measure_ceilings(Machine& machine, std::int64_t extent, std::int64_t bytes,
                          const Effort& effort) {
  const Shape square{extent, extent};
  const double flops = 2.0 * std::pow(static_cast<double>(extent), 3.0);
  const Timing product =
      measure(machine,
              {"product", flops,
               [&](Operands& operands) -> std::function<void()> {
                 const TensorView a = operands.read(square);
                 const TensorView b = operands.read(square);
                 const TensorView c = operands.written(square);
                 return [&context = operands.context(), a, b, c] {
                   ops::matmul(context, a, b, c, {.transpose_b = ops::Transpose::kYes});
                 };
               }},
              effort);
  const Shape elements{bytes / size_bytes(DType::kBfloat16)};
  const Timing copy = measure(machine,
                              {"copy", 0.0,
                               [&](Operands& operands) -> std::function<void()> {
                                 const TensorView from = operands.read(elements);
                                 const TensorView to = operands.written(elements);
                                 return [&context = operands.context(), from, to] {
                                   device::copy_tensor(from, to, context.stream());
                                 };
                               }},
                              effort);
  return {product.flops / product.seconds(), copy.bytes / copy.seconds()};
}

}  // namespace strata::bench
