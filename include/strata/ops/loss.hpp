#pragma once

#include <cstdint>

#include "strata/core/tensor.hpp"
#include "strata/core/uncounted.hpp"

namespace strata::ops {

class Context;

/// The loss of a microbatch's valid rows. An operation writes it to `sums`, kLossElements int64 in
/// device memory, so that the host need not wait: the bits of `loss`, then the other fields in this
/// order.
struct LossSums {
  /// Sum of the rows' losses; the order of the sum depends only on the number of rows.
  double loss = 0.0;
  /// Rows whose largest logit (the first among equals, none among NaNs) is the label's.
  std::int64_t correct = 0;
  /// The first row whose label is neither in [0, classes) nor kUncounted, or -1. Such rows have no
  /// loss.
  std::int64_t bad_row = -1;
  /// That row's label.
  std::int64_t bad_label = 0;
  /// Rows that have a loss.
  std::int64_t counted = 0;
};

inline constexpr std::int64_t kLossElements = 5;

/// What an operation can also write of each sample: the sum of its rows' losses and how many have
/// one.
inline constexpr std::int64_t kSampleElements = 2;

/// What a training loss has besides the cross-entropy of the target t, for logits x of K classes
/// and L = log(sum of exp(x)).
struct LossTerms {
  /// s: the row's loss is L - (1 - s) x[t] - s/K (sum of x). Source: Szegedy et al., "Rethinking
  /// the Inception architecture for computer vision", arXiv 1512.00567, section 7.
  double label_smoothing = 0.0;
  /// z: z L^2 is added to the row's loss. Source: Chowdhery et al., "PaLM", arXiv 2204.02311,
  /// section 5.
  double z_loss = 0.0;

  [[nodiscard]] constexpr bool any() const { return label_smoothing > 0.0 || z_loss > 0.0; }
};

/// Decodes `sums`. Pre: `sums` is host memory.
[[nodiscard]] LossSums loss_sums_of(const ConstTensorView& sums);

/// Throws Error(kData) that names the bad row, if any, and its label, which is outside
/// [0, classes).
void require_labels(const LossSums& sums, std::int64_t classes);

/// The loss -log(softmax(logits)[label]) of each row, and dlogits = gradient_scale (softmax(logits)
/// - onehot(label)). Rows from valid_rows on, uncounted rows and rows with bad labels have no loss
/// and a zero gradient. With an empty dlogits only the loss is computed; in place (dlogits is
/// logits) is allowed. Shapes: logits, dlogits rows x classes (any leading dimensions count as
/// rows), labels (int64) rows, sums kLossElements; samples (float64) samples x kSampleElements,
/// which have as many rows each, or empty. Pre: 0 <= valid_rows <= rows.
void cross_entropy(Context& context, const ConstTensorView& logits, const ConstTensorView& labels,
                   std::int64_t valid_rows, double gradient_scale, const TensorView& dlogits,
                   const TensorView& sums, const TensorView& samples = {});

/// The mean over a row's outputs of (unit (prediction - target))^2, and dprediction =
/// gradient_scale 2 (prediction - target) / outputs. Rows from valid_rows on have no loss and a
/// zero gradient. With an empty dprediction only the loss is computed; in place (dprediction is
/// prediction) is allowed. `correct` stays 0. Shapes: prediction, target, dprediction equal, rows x
/// outputs (the first dimension is the rows); sums kLossElements; units outputs (float64), or empty
/// for units of 1; samples as of cross_entropy().
void mean_squared_error(Context& context, const ConstTensorView& prediction,
                        const ConstTensorView& target, std::int64_t valid_rows,
                        double gradient_scale, const TensorView& dprediction,
                        const TensorView& sums, const ConstTensorView& units = {},
                        const TensorView& samples = {});

}  // namespace strata::ops
