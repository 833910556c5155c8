#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/shape.hpp"
#include "strata/core/tensor.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/loss.hpp"

// The table that holds every operation on a GPU to the CPU's.
namespace strata::ops::test {

/// What an operation does with a tensor.
enum class Role { kRead, kWritten, kBoth };

/// The type of a tensor's elements, for a case that runs in several.
enum class Type {
  kStored,    ///< the case's dtype
  kComputed,  ///< what that is computed in
  kBytes,     ///< uint8
  kIds        ///< int64
};

struct Operand {
  Type type = Type::kStored;
  Role role = Role::kRead;
  Shape shape;
  /// Values are spread over [low, high); whole numbers where the type is not a floating-point one.
  double low = -1.75;
  double high = 1.75;
  /// In place of `type` on the GPU, where a case is about one dtype in particular.
  std::optional<DType> fixed = {};
  /// The element that is not a number, and every so many after it; 0: all are numbers.
  std::int64_t nan_every = 0;
};

/// Whether a result is the CPU's to the last bit, or as near as its dtype lets one ask.
enum class Nearness { kRounded, kSameBits };

struct Case {
  std::string name;
  std::vector<Operand> operands;
  /// Runs the operation on the operands and returns the numbers that it hands to the host.
  std::function<std::vector<double>(Context&, const std::vector<TensorView>&)> call;
  Nearness nearness = Nearness::kRounded;
  /// Whether it takes bfloat16.
  bool takes_bfloat16 = true;
  /// Whether what it shows is of bfloat16 alone.
  bool only_bfloat16 = false;
  /// Terms of a product's sum.
  std::int64_t terms = 0;
};

/// A tensor of the case's dtype that is read.
inline Operand read(const Shape& shape) {
  return {.shape = shape};
}
inline Operand written(const Shape& shape) {
  return {.role = Role::kWritten, .shape = shape};
}
inline Operand updated(const Shape& shape) {
  return {.role = Role::kBoth, .shape = shape};
}
/// The same in what the case's dtype is computed in.
inline Operand computed(Role role, const Shape& shape) {
  return {.type = Type::kComputed, .role = role, .shape = shape};
}
/// Positive numbers, as a deviation or its inverse is.
inline Operand positive(const Shape& shape) {
  return {.type = Type::kComputed, .shape = shape, .low = 0.5, .high = 2.0};
}
/// Whole numbers from [low, high) that are read.
inline Operand ids(const Shape& shape, std::int64_t low, std::int64_t high) {
  return {.type = Type::kIds,
          .shape = shape,
          .low = static_cast<double>(low),
          .high = static_cast<double>(high)};
}
inline Operand bytes(Role role, const Shape& shape, std::int64_t end = 2) {
  return {.type = Type::kBytes,
          .role = role,
          .shape = shape,
          .low = 0.0,
          .high = static_cast<double>(end)};
}

/// The loss sums that an operation writes.
template <typename Operation>
std::vector<double> loss_of(Context& context, const Operation& operation) {
  const device::Buffer memory(context.device(), kLossElements * size_bytes(DType::kInt64));
  const TensorView sums = memory.view(0, {kLossElements}, DType::kInt64);
  operation(sums);
  device::HostCopy copy(sums, context.device());
  copy.update(context.stream());
  context.synchronize();
  const LossSums result = loss_sums_of(copy.view());
  return {result.loss, static_cast<double>(result.correct), static_cast<double>(result.bad_row),
          static_cast<double>(result.bad_label), static_cast<double>(result.counted)};
}

/// Adds an operation that hands no numbers to the host.
template <typename Call>
void add_case(std::vector<Case>& cases, std::string name, std::vector<Operand> operands,
              const Call& call, Nearness nearness = Nearness::kRounded,
              bool takes_bfloat16 = true) {
  cases.push_back({std::move(name), std::move(operands),
                   [call](Context& context, const std::vector<TensorView>& tensors) {
                     call(context, tensors);
                     return std::vector<double>();
                   },
                   nearness, takes_bfloat16});
}

void add_element_cases(std::vector<Case>& cases);
void add_product_cases(std::vector<Case>& cases);
void add_row_cases(std::vector<Case>& cases);
void add_loss_cases(std::vector<Case>& cases);
void add_update_cases(std::vector<Case>& cases);
void add_attention_cases(std::vector<Case>& cases);
void add_language_cases(std::vector<Case>& cases);
void add_image_cases(std::vector<Case>& cases);
void add_in_place_cases(std::vector<Case>& cases);
void add_nan_cases(std::vector<Case>& cases);
void add_empty_cases(std::vector<Case>& cases);
void add_convolution_cases(std::vector<Case>& cases);

}  // namespace strata::ops::test
