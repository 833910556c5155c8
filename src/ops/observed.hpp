#pragma once

#include <string_view>
#include <type_traits>

#include "strata/core/tensor.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/observer.hpp"

#include "checks.hpp"
#include "cuda/dispatch.hpp"

namespace strata::ops {

/// An operation, from construction to destruction: tells the context's observer of it.
class Observed {
 public:
  /// An operation that memory bounds.
  template <typename... Tensors>
  Observed(Context& context, std::string_view name, const ConstTensorView& first,
           const Tensors&... others)
      : context_(context) {
    if (context.is_observed()) {
      begin({.name = name,
             .dtype = first.dtype(),
             .extents = {rows_of(first.shape()).rows, rows_of(first.shape()).columns},
             .bytes = (bytes_of(first) + ... + bytes_of(others))});
    }
  }
  /// work() describes any other.
  template <typename Work>
  requires std::is_invocable_v<Work> Observed(Context& context, const Work& work)
      : context_(context) {
    if (context.is_observed()) {
      begin(work());
    }
  }
  ~Observed() {
    if (begun_) {
      context_.end_operation();
    }
  }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;

  /// Whether to leave the operation out.
  [[nodiscard]] bool skips() const { return skips_; }
  /// Whether nothing is left to compute on the CPU: the operation is left out, or the context's
  /// device is a GPU, on which kOperation, a function of cuda::, is then enqueued.
  template <auto kOperation, typename... Arguments>
  [[nodiscard]] bool handled_by(const Arguments&... arguments) const {
    return skips_ || run_on_gpu<kOperation>(context_, arguments...);
  }

  [[nodiscard]] static double bytes_of(const ConstTensorView& tensor) {
    return tensor.empty() ? 0.0 : static_cast<double>(tensor.bytes());
  }

 private:
  void begin(const OperationWork& work) {
    begun_ = true;
    skips_ = context_.begin_operation(work);
  }

  Context& context_;
  bool begun_ = false;
  bool skips_ = false;
};

}  // namespace strata::ops
