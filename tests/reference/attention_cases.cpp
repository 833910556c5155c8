// Runs attention on tensors from standard input and writes its results to standard output, for
// attention_reference.py. Usage: attention_cases CASE DTYPE.
#include <cstdint>
#include <string>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/core/tensor.hpp"
#include "strata/ops/attention.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/head_norm.hpp"
#include "strata/ops/preference_loss.hpp"
#include "strata/ops/split_cross_entropy.hpp"

#include "streams.hpp"

namespace strata::ops {
namespace {

using reference::read_tensor;
using reference::Tensor;
using reference::write;
using reference::write_scalar;

/// An AttentionShape's members, in order, and rotary angles.
struct AttentionCase {
  AttentionShape shape;
  RotaryAngles angles;
};

/// The shape's counts, scale and softcap, then the share of rotary positions, and factor and
/// context of yarn (0: none).
AttentionCase read_case() {
  auto tensor = read_tensor<double>();
  const std::vector<double>& x = tensor.elements();
  require(x.size() == 10, "a case of {} numbers", x.size());
  const auto count = [&](std::size_t i) { return static_cast<std::int64_t>(x[i]); };
  AttentionCase read{{count(0), count(1), count(2), count(3), count(4), x[5], x[6]},
                     {.share = x[7]}};
  if (x[8] > 0.0) {
    read.angles.scaling = {.kind = RotaryScalingKind::kYarn,
                           .factor = x[8],
                           .low = 1.0,
                           .high = 32.0,
                           .context = x[9]};
  }
  return read;
}

enum class Positions { kNone, kRotary };

/// The output and the gradient of qkv. `masked`: the window and the starts of documents come after
/// the case.
template <typename T>
void attention(Context& context, Positions positions, bool masked = false) {
  const auto [shape, angles] = read_case();
  AttentionMask mask;
  std::vector<std::uint32_t> starts;
  if (masked) {
    auto window = read_tensor<std::int64_t>();
    mask.window = window.elements()[0];
    auto given = read_tensor<std::int64_t>();
    for (const std::int64_t start : given.elements()) {
      starts.push_back(static_cast<std::uint32_t>(start));
    }
    mask.document_starts = ConstTensorView(std::span(starts), Shape{shape.sequences, shape.tokens});
  }
  auto qkv = read_tensor<T>();
  auto dy = read_tensor<T>();
  Tensor<T> y(dy.shape());
  Tensor<T> dqkv(qkv.shape());
  Tensor<T> log_sums(Shape{shape.sequences, shape.heads(), shape.tokens});
  if (positions == Positions::kRotary) {
    rotary(context, shape, angles, 0, Rotation::kForward, qkv.view());
  }
  causal_attention_forward(context, shape, qkv.view(), y.view(), log_sums.view(), mask);
  causal_attention_backward(context, shape, qkv.view(), y.view(), log_sums.view(), dy.view(),
                            dqkv.view(), mask);
  if (positions == Positions::kRotary) {
    rotary(context, shape, angles, 0, Rotation::kBackward, dqkv.view());
  }
  write(y);
  write(dqkv);
}

template <typename T>
void head_norm(Context& context, WeightOffset offset) {
  const AttentionShape shape = read_case().shape;
  auto qkv = read_tensor<T>();
  auto query_weight = read_tensor<T>();
  auto key_weight = read_tensor<T>();
  auto dqkv = read_tensor<T>();
  Tensor<T> y(qkv.shape());
  Tensor<T> dquery_weight(query_weight.shape());
  Tensor<T> dkey_weight(key_weight.shape());
  const HeadNorm norm{1e-6, offset};
  head_norm_forward(context, shape, qkv.view(), query_weight.view(), key_weight.view(), norm,
                    y.view());
  head_norm_backward(context, shape, qkv.view(), query_weight.view(), key_weight.view(), norm,
                     dqkv.view(), dquery_weight.view(), dkey_weight.view());
  write(y);
  write(dqkv);
  write(dquery_weight);
  write(dkey_weight);
}

/// The mean loss of counted targets and its gradient, from the shards of the vocabulary (a tensor
/// of shards x rows x ids), with label smoothing and z-loss (a tensor of both). Of pairs: the mean
/// preference loss; beta, the starts of documents (samples x tokens) and the references follow.
template <typename T>
void split_cross_entropy(Context& context, bool of_pairs = false) {
  auto logits = read_tensor<T>();
  auto targets = read_tensor<std::int64_t>();
  auto given = read_tensor<T>();
  const auto values = given.view().template host<T>();
  const LossTerms terms{.label_smoothing = static_cast<double>(values[0]),
                        .z_loss = static_cast<double>(values[1])};
  const std::int64_t width = cross_entropy_width(terms);
  const std::int64_t shards = logits.shape()[0];
  const std::int64_t rows = logits.shape()[1];
  const std::int64_t ids = logits.shape()[2];
  Tensor<T> parts(Shape{shards, rows, width});
  Tensor<T> log_sums(Shape{rows});
  Tensor<T> dlogits(logits.shape());
  const auto shard_of = [rows](Tensor<T>& tensor, std::int64_t shard, std::int64_t columns) {
    return tensor.view()
        .flat_slice(shard * rows * columns, rows * columns)
        .reshaped({rows, columns});
  };
  std::vector<ReductionStep> steps;
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    cross_entropy_parts(context, shard_of(logits, shard, ids), targets.view(), shard * ids, ids,
                        shard_of(parts, shard, width));
    if (shard > 0) {
      steps.push_back({0, shard});
    }
  }
  Tensor<std::int64_t> sums(Shape{kLossElements});
  combine_cross_entropy(context, steps, parts.view(), targets.view(), shards * ids, rows,
                        log_sums.view(), sums.view(), terms);
  Tensor<T> row_scales(Shape{of_pairs ? rows : 0});
  if (of_pairs) {
    const double beta = static_cast<double>(read_tensor<T>().elements()[0]);
    auto starts = read_tensor<std::int64_t>();
    auto references = read_tensor<T>();
    const std::vector<std::uint32_t> documents(starts.elements().begin(), starts.elements().end());
    const std::vector<double> reference(references.elements().begin(), references.elements().end());
    const std::int64_t samples = std::ssize(reference);
    Tensor<double> pairs(Shape{samples, kPairElements});
    preference_loss(context, parts.view(), log_sums.view(),
                    targets.view().reshaped({samples, rows / samples}),
                    ConstTensorView(std::span(documents), Shape{samples, rows / samples}),
                    ConstTensorView(std::span(reference), Shape{samples}), beta, shards * ids,
                    samples, row_scales.view(), pairs.view(), sums.view());
  }
  const LossSums result = loss_sums_of(sums.view());
  const auto counted = static_cast<double>(result.counted);
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    cross_entropy_gradient(context, shard_of(logits, shard, ids), targets.view(), shard * ids, ids,
                           log_sums.view(), rows, 1.0 / counted, shard_of(dlogits, shard, ids),
                           terms, shards * ids, row_scales.view());
  }
  write_scalar<T>(result.loss / counted);
  write(dlogits);
}

template <typename T>
void run(const std::string& name) {
  Context context(2);
  if (name == "attention") {
    attention<T>(context, Positions::kNone);
  } else if (name == "rotary_attention") {
    attention<T>(context, Positions::kRotary);
  } else if (name == "masked_attention") {
    attention<T>(context, Positions::kRotary, true);
  } else if (name == "head_norm") {
    head_norm<T>(context, WeightOffset::kZero);
  } else if (name == "head_norm_from_one") {
    head_norm<T>(context, WeightOffset::kOne);
  } else if (name == "split_cross_entropy") {
    split_cross_entropy<T>(context);
  } else if (name == "preference_loss") {
    split_cross_entropy<T>(context, true);
  } else {
    fail(ExitCode::kUsage, "no case is called {}", name);
  }
}

}  // namespace
}  // namespace strata::ops

int main(int argc, char** argv) {
  return strata::reference::run_case(
      "attention_cases", argc, argv,
      []<typename T>(const std::string& name, T) { strata::ops::run<T>(name); });
}
