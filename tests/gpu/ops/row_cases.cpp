#include <array>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "strata/device/buffer.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/ops/activation.hpp"
#include "strata/ops/batch_norm.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/group_norm.hpp"
#include "strata/ops/loss.hpp"
#include "strata/ops/preference_loss.hpp"
#include "strata/ops/reduce.hpp"
#include "strata/ops/row_norm.hpp"
#include "strata/ops/split_cross_entropy.hpp"

#include "cases.hpp"

namespace strata::ops::test {
namespace {

using Tensors = std::vector<TensorView>;

constexpr double kEpsilon = 1e-5;

void add_layer_norms(std::vector<Case>& cases, const Shape& shape, const std::string& of) {
  const Shape n{shape.back()};
  const Shape rows{shape.count() / shape.back()};
  add_case(cases, "layer_norm_forward" + of,
           {read(shape), read(n), read(n), written(shape), computed(Role::kWritten, rows),
            computed(Role::kWritten, rows)},
           [](Context& context, const Tensors& t) {
             row_norm_forward(context, {Center::kMean}, t[0], t[1], t[2], kEpsilon, t[3], t[4],
                              t[5]);
           });
  add_case(cases, "layer_norm_without_bias" + of,
           {read(shape), read(n), written(shape), computed(Role::kWritten, rows),
            computed(Role::kWritten, rows)},
           [](Context& context, const Tensors& t) {
             row_norm_forward(context, {Center::kMean}, t[0], t[1], {}, kEpsilon, t[2], t[3], t[4]);
           });
  add_case(cases, "layer_norm_backward_input" + of,
           {read(shape), read(n), computed(Role::kRead, rows), positive(rows), read(shape),
            written(shape)},
           [](Context& context, const Tensors& t) {
             row_norm_backward_input(context, {Center::kMean}, t[0], t[1], t[2], t[3], t[4], {},
                                     t[5]);
           });
  add_case(cases, "layer_norm_backward_input_added" + of,
           {read(shape), read(n), computed(Role::kRead, rows), positive(rows), read(shape),
            read(shape), written(shape)},
           [](Context& context, const Tensors& t) {
             row_norm_backward_input(context, {Center::kMean}, t[0], t[1], t[2], t[3], t[4], t[5],
                                     t[6]);
           });
  for (const Accumulate accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
    const std::string added = accumulate == Accumulate::kAdd ? "_added" : "";
    add_case(cases, "layer_norm_backward_weight" + added + of,
             {read(shape), computed(Role::kRead, rows), positive(rows), read(shape),
              computed(Role::kBoth, n), computed(Role::kBoth, n)},
             [=](Context& context, const Tensors& t) {
               row_norm_backward_weight(context, {Center::kMean}, t[0], t[1], t[2], t[3], t[4],
                                        t[5], accumulate);
             });
    add_case(cases, "layer_norm_backward" + added + of,
             {read(shape), read(n), computed(Role::kRead, rows), positive(rows), read(shape),
              read(shape), written(shape), computed(Role::kBoth, n), computed(Role::kBoth, n)},
             [=](Context& context, const Tensors& t) {
               row_norm_backward(context, {Center::kMean}, t[0], t[1], t[2], t[3], t[4], t[5], t[6],
                                 t[7], t[8], accumulate);
             });
  }
}

void add_rms_norms(std::vector<Case>& cases, const Shape& shape, const std::string& of,
                   WeightOffset offset = WeightOffset::kZero) {
  const RowNorm norm{Center::kZero, offset};
  const Shape n{shape.back()};
  const Shape rows{shape.count() / shape.back()};
  add_case(cases, "rms_norm_forward" + of,
           {read(shape), read(n), written(shape), computed(Role::kWritten, rows)},
           [=](Context& context, const Tensors& t) {
             row_norm_forward(context, norm, t[0], t[1], {}, kEpsilon, t[2], {}, t[3]);
           });
  add_case(cases, "rms_norm_backward_input" + of,
           {read(shape), read(n), positive(rows), read(shape), written(shape)},
           [=](Context& context, const Tensors& t) {
             row_norm_backward_input(context, norm, t[0], t[1], {}, t[2], t[3], {}, t[4]);
           });
  add_case(cases, "rms_norm_backward_input_added" + of,
           {read(shape), read(n), positive(rows), read(shape), read(shape), written(shape)},
           [=](Context& context, const Tensors& t) {
             row_norm_backward_input(context, norm, t[0], t[1], {}, t[2], t[3], t[4], t[5]);
           });
  for (const Accumulate accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
    const std::string added = accumulate == Accumulate::kAdd ? "_added" : "";
    add_case(cases, "rms_norm_backward_weight" + added + of,
             {read(shape), positive(rows), read(shape), computed(Role::kBoth, n)},
             [=](Context& context, const Tensors& t) {
               row_norm_backward_weight(context, norm, t[0], {}, t[1], t[2], t[3], {}, accumulate);
             });
    add_case(cases, "rms_norm_backward" + added + of,
             {read(shape), read(n), positive(rows), read(shape), read(shape), written(shape),
              computed(Role::kBoth, n)},
             [=](Context& context, const Tensors& t) {
               row_norm_backward(context, norm, t[0], t[1], {}, t[2], t[3], t[4], t[5], t[6], {},
                                 accumulate);
             });
  }
}

void add_batch_norms(std::vector<Case>& cases, const Shape& shape, const std::string& of) {
  const Shape n{shape.back()};
  const Operand variance{.shape = n, .low = 0.5, .high = 2.0};
  // Near zero, and far from it for the deviation.
  for (const double low : {-1.75, 100.0}) {
    add_case(
        cases, "column_statistics" + of + "_from_" + std::to_string(low),
        {{.shape = shape, .low = low, .high = low + 2.0},
         computed(Role::kWritten, n),
         computed(Role::kWritten, n)},
        [](Context& context, const Tensors& t) { column_statistics(context, t[0], t[1], t[2]); });
  }
  for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
    const bool relu = activation == Activation::kRelu;
    const std::string name = (relu ? "_relu" : "") + of;
    const auto forward = [=](Context& context, const Tensors& t) {
      batch_norm_forward(context, t[0], t[1], t[2], t[3], t[4], kEpsilon, activation, t[5]);
    };
    add_case(cases, "batch_norm_forward" + name,
             {read(shape), computed(Role::kRead, n), positive(n), read(n), read(n), written(shape)},
             forward, Nearness::kSameBits);
    add_case(cases, "batch_norm_forward_with_stored_statistics" + name,
             {read(shape), read(n), variance, read(n), read(n), written(shape)}, forward,
             Nearness::kSameBits);
    const auto output = [=](const TensorView& y) { return relu ? y : TensorView(); };
    add_case(cases, "batch_norm_backward_sums" + name,
             {read(shape), computed(Role::kRead, n), positive(n), read(shape), read(shape),
              computed(Role::kWritten, n), computed(Role::kWritten, n)},
             [=](Context& context, const Tensors& t) {
               batch_norm_backward_sums(context, t[0], t[1], t[2], kEpsilon, output(t[3]), t[4],
                                        t[5], t[6]);
             });
    const std::vector<Operand> operands{read(shape),
                                        computed(Role::kRead, n),
                                        positive(n),
                                        read(n),
                                        read(shape),
                                        updated(shape),
                                        computed(Role::kRead, n),
                                        computed(Role::kRead, n),
                                        written(shape)};
    const auto backward = [=](Context& context, const Tensors& t, const TensorView& dx) {
      batch_norm_backward_input(context, t[0], t[1], t[2], t[3], kEpsilon, output(t[4]), t[5], t[6],
                                t[7], dx);
    };
    add_case(
        cases, "batch_norm_backward_input" + name, operands,
        [=](Context& context, const Tensors& t) { backward(context, t, t[8]); },
        Nearness::kSameBits);
    add_case(
        cases, "batch_norm_backward_input_in_place" + name, {operands.begin(), operands.end() - 1},
        [=](Context& context, const Tensors& t) { backward(context, t, t[5]); },
        Nearness::kSameBits);
  }
}

void add_joined_statistics(std::vector<Case>& cases) {
  const std::array<ReductionStep, 4> steps{{{0, 1}, {2, 3}, {0, 2}, {0, 4}}};
  add_case(
      cases, "combine_statistics", {read({5, 2, 300}), written({300}), written({300})},
      [=](Context& context, const Tensors& t) {
        combine_statistics(context, steps, t[0], t[1], t[2]);
      },
      Nearness::kSameBits, false);
  add_case(
      cases, "combine_statistics_of_one", {read({1, 2, 7}), written({7}), written({7})},
      [](Context& context, const Tensors& t) { combine_statistics(context, {}, t[0], t[1], t[2]); },
      Nearness::kSameBits, false);
  add_case(
      cases, "mean_of_parts", {read({5, 2, 150}), written({2, 150})},
      [=](Context& context, const Tensors& t) { mean_of_parts(context, steps, t[0], t[1]); },
      Nearness::kSameBits, false);
}

/// The additions of a balanced tree over parts [begin, end).
void add_tree(std::int64_t begin, std::int64_t end, std::vector<ReductionStep>& steps) {
  if (end - begin > 1) {
    const std::int64_t middle = begin + (end - begin) / 2;
    add_tree(begin, middle, steps);
    add_tree(middle, end, steps);
    steps.push_back({begin, middle});
  }
}

/// Folds of the matrices of t[0]; t[1] gets those that hold sums, `results`.
void add_fold(std::vector<Case>& cases, const std::string& name, const Shape& parts,
              const std::vector<ReductionStep>& steps, const std::vector<std::int64_t>& results) {
  const std::int64_t part = parts.count() / parts[0];
  add_case(
      cases, "fold_" + name, {updated(parts), written({std::ssize(results), part})},
      [=](Context& context, const Tensors& t) {
        // What was added holds anything, so it is no result.
        const device::Buffer memory(context.device(), t[0].bytes());
        const TensorView all = memory.view(0, t[0].shape(), t[0].dtype());
        copy(context, t[0], all);
        std::vector<TensorView> views;
        for (std::int64_t i = 0; i < parts[0]; ++i) {
          views.push_back(all.flat_slice(i * part, part));
        }
        fold(context, views, steps);
        for (std::size_t i = 0; i < results.size(); ++i) {
          copy(context, views[static_cast<std::size_t>(results[i])],
               t[1].flat_slice(static_cast<std::int64_t>(i) * part, part));
        }
        context.synchronize();
      },
      Nearness::kSameBits, false);
}

/// The same tree over parts in bfloat16, with its sum in another tensor.
void add_fold_into(std::vector<Case>& cases, const Shape& parts,
                   const std::vector<ReductionStep>& tree) {
  const std::int64_t part = parts.count() / parts[0];
  add_case(
      cases, fmt::format("fold_into_of_{}_of_{}", parts[0], part), {read(parts), written({part})},
      [=](Context& context, const Tensors& t) {
        const device::Buffer memory(context.device(), 2 * t[0].count());
        const TensorView all = memory.view(0, t[0].shape(), DType::kBfloat16);
        convert(context, t[0], all);
        std::vector<TensorView> views;
        for (std::int64_t i = 0; i < parts[0]; ++i) {
          views.push_back(all.flat_slice(i * part, part));
        }
        const device::Buffer sum(context.device(), 4 * part);
        fold_into(context, views, tree, sum.view(0, {part}, DType::kFloat32));
        convert(context, sum.view(0, {part}, DType::kFloat32), t[1]);
        context.synchronize();
      },
      Nearness::kSameBits, false);
}

void add_folds(std::vector<Case>& cases) {
  // Of parts of 1004 elements all begin at multiples of 16 bytes, of 1007 few.
  for (const std::int64_t count : {2, 3, 5, 8, 64}) {
    std::vector<ReductionStep> tree;
    add_tree(0, count, tree);
    for (const std::int64_t part : {1004, 1007}) {
      add_fold(cases, "tree_of_" + std::to_string(count) + "_of_" + std::to_string(part),
               {count, part}, tree, {0});
      add_fold_into(cases, {count, part}, tree);
    }
  }
  add_fold(cases, "row", {5, 1007}, {{0, 1}, {2, 3}, {0, 2}, {0, 4}}, {0});
  add_fold(cases, "elsewhere", {4, 1007}, {{0, 1}, {3, 2}, {3, 0}}, {3});
  add_fold(cases, "several_trees", {6, 1004}, {{0, 1}, {2, 3}, {5, 2}}, {0, 4, 5});
  // More parts than a pass takes, a deeper tree, and a part that is added twice.
  std::vector<ReductionStep> tree;
  add_tree(0, 70, tree);
  add_fold(cases, "tree_of_70", {70, 1004}, tree, {0});
  std::vector<ReductionStep> chain;
  for (std::int64_t i = 11; i > 0; --i) {
    chain.push_back({i - 1, i});
  }
  add_fold(cases, "chain", {12, 1004}, chain, {0});
  add_fold(cases, "twice", {3, 1004}, {{0, 1}, {2, 1}, {1, 0}}, {0, 1, 2});
}

void add_losses(std::vector<Case>& cases, std::int64_t rows, std::int64_t classes) {
  const Shape shape{rows, classes};
  const std::string of = "_of_" + std::to_string(classes);
  const std::int64_t valid = rows - rows / 8;
  cases.push_back({"cross_entropy" + of,
                   {read(shape), ids({rows}, 0, classes), written(shape)},
                   [=](Context& context, const Tensors& t) {
                     return loss_of(context, [&](const TensorView& sums) {
                       cross_entropy(context, t[0], t[1], valid, 0.125, t[2], sums);
                     });
                   }});
  cases.push_back({"cross_entropy_in_place" + of,
                   {updated(shape), ids({rows}, kUncounted, classes)},
                   [=](Context& context, const Tensors& t) {
                     return loss_of(context, [&](const TensorView& sums) {
                       cross_entropy(context, t[0], t[1], rows, 0.125, t[0], sums);
                     });
                   }});
  cases.push_back({"cross_entropy_alone" + of,
                   {read(shape), ids({rows}, 0, classes)},
                   [=](Context& context, const Tensors& t) {
                     return loss_of(context, [&](const TensorView& sums) {
                       cross_entropy(context, t[0], t[1], valid, 0.125, {}, sums);
                     });
                   }});
  // Some labels are none: `classes`, and -1, which counts nowhere.
  cases.push_back({"cross_entropy_with_bad_labels" + of,
                   {read(shape), ids({rows}, -1, classes + 1), written(shape)},
                   [=](Context& context, const Tensors& t) {
                     return loss_of(context, [&](const TensorView& sums) {
                       cross_entropy(context, t[0], t[1], valid, 0.125, t[2], sums);
                     });
                   }});
  cases.push_back({"mean_squared_error" + of,
                   {read(shape), read(shape), written(shape)},
                   [=](Context& context, const Tensors& t) {
                     return loss_of(context, [&](const TensorView& sums) {
                       mean_squared_error(context, t[0], t[1], valid, 0.125, t[2], sums);
                     });
                   }});
  cases.push_back(
      {"mean_squared_error_with_units" + of,
       {read(shape), read(shape), written(shape)},
       [=](Context& context, const Tensors& t) {
         const device::Buffer memory(context.device(), 8 * classes);
         const TensorView units = memory.view(0, {classes}, DType::kFloat64);
         device::write_from_host(units, [](std::int64_t first, const TensorView& piece) {
           const std::span<double> into = piece.host<double>();
           for (std::size_t i = 0; i < into.size(); ++i) {
             into[i] = 1.0 + 0.25 * static_cast<double>(static_cast<std::size_t>(first) + i);
           }
         });
         return loss_of(context, [&](const TensorView& sums) {
           mean_squared_error(context, t[0], t[1], valid, 0.125, t[2], sums, units);
         });
       }});
  // All columns, and rows that are longer than the shard has ids.
  for (const std::int64_t count : {classes, classes - classes / 8}) {
    const std::string name = of + "_with_ids_" + std::to_string(count);
    add_case(cases, "cross_entropy_parts" + name,
             {read(shape), ids({rows}, 0, 3 * classes),
              computed(Role::kWritten, {rows, kCrossEntropyParts})},
             [=](Context& context, const Tensors& t) {
               cross_entropy_parts(context, t[0], t[1], classes, count, t[2]);
             });
    add_case(cases, "cross_entropy_gradient" + name,
             {read(shape), ids({rows}, kUncounted, 3 * classes), computed(Role::kRead, {rows}),
              written(shape)},
             [=](Context& context, const Tensors& t) {
               cross_entropy_gradient(context, t[0], t[1], classes, count, t[2], valid, 0.125,
                                      t[3]);
             });
  }
}

/// A row whose first logits are minus infinity, as those of ids that are ruled out: some threads
/// see no others.
void add_infinite_losses(std::vector<Case>& cases) {
  constexpr std::int64_t kRuledOut = 5000;
  const Shape shape{3, 9001};
  cases.push_back({"cross_entropy_behind_infinities",
                   {read(shape),
                    ids({3}, kRuledOut, shape.back()),
                    {.shape = {kRuledOut}, .low = -1.75, .high = -0.5},
                    written(shape)},
                   [=](Context& context, const Tensors& t) {
                     const device::Buffer memory(context.device(), t[0].bytes());
                     const TensorView logits = memory.view(0, shape, t[0].dtype());
                     copy(context, t[0], logits);
                     scaled(context, INFINITY, t[2], logits.flat_slice(0, kRuledOut),
                            Accumulate::kOverwrite);
                     return loss_of(context, [&](const TensorView& sums) {
                       cross_entropy(context, logits, t[1], 3, 0.125, t[3], sums);
                     });
                   },
                   Nearness::kRounded,
                   false});
}

/// The parts of three shards, brought together, and the gradient of the second.
void add_shards(std::vector<Case>& cases, const std::string& name, const Operand& logits,
                const LossTerms& terms = {}) {
  const std::int64_t rows = logits.shape[1];
  const std::int64_t ids_of_shard = logits.shape[2];
  const std::int64_t vocabulary = 3 * ids_of_shard;
  const std::int64_t width = cross_entropy_width(terms);
  cases.push_back(
      {"cross_entropy_of_shards_" + name,
       {logits, ids({rows}, 0, vocabulary), computed(Role::kWritten, {3, rows, width}),
        computed(Role::kWritten, {rows}), written({rows, ids_of_shard})},
       [=](Context& context, const Tensors& t) {
         const std::array<ReductionStep, 2> steps{{{1, 2}, {0, 1}}};
         const auto shard_of = [=](const TensorView& all, std::int64_t s, std::int64_t columns) {
           return all.flat_slice(s * rows * columns, rows * columns).reshaped({rows, columns});
         };
         for (std::int64_t s = 0; s < 3; ++s) {
           cross_entropy_parts(context, shard_of(t[0], s, ids_of_shard), t[1], s * ids_of_shard,
                               ids_of_shard, shard_of(t[2], s, width));
         }
         const std::vector<double> sums = loss_of(context, [&](const TensorView& to) {
           combine_cross_entropy(context, steps, t[2], t[1], vocabulary, rows - 3, t[3], to, terms);
         });
         cross_entropy_gradient(context, shard_of(t[0], 1, ids_of_shard), t[1], ids_of_shard,
                                ids_of_shard, t[3], rows - 3, 0.125, t[4], terms, vocabulary);
         return sums;
       }});
}

/// Of pairs: four samples, of which three are valid, in three shards.
void add_preference_loss(std::vector<Case>& cases) {
  constexpr std::int64_t kSamples = 4;
  constexpr std::int64_t kTokens = 300;
  constexpr std::int64_t kRows = kSamples * kTokens;
  const Shape tokens{kSamples, kTokens};
  Operand references = read({kSamples});
  references.fixed = DType::kFloat64;
  Operand pairs = written({kSamples, kPairElements});
  pairs.fixed = DType::kFloat64;
  cases.push_back(
      {"preference_loss",
       {positive({3, kRows, kCrossEntropyParts}), computed(Role::kRead, {kRows}),
        ids(tokens, kUncounted, 31), references, computed(Role::kWritten, {kRows}), pairs},
       [=](Context& context, const Tensors& t) {
         std::vector<std::uint32_t> starts;
         for (std::uint32_t row = 0; row < kRows; ++row) {
           starts.push_back(row % kTokens < 170 ? 0 : 170);
         }
         const device::Buffer memory(context.device(), 4 * kRows);
         const TensorView documents = memory.view(0, tokens, DType::kUint32);
         device::copy_tensor(TensorView(std::span(starts), tokens), documents, context.stream());
         const std::array<ReductionStep, 2> steps{{{0, 1}, {0, 2}}};
         const device::Buffer spare(context.device(), t[1].bytes());
         return loss_of(context, [&](const TensorView& sums) {
           combine_cross_entropy(context, steps, t[0], t[2], 30, kRows,
                                 spare.view(0, t[1].shape(), t[1].dtype()), sums);
           preference_loss(context, t[0], t[1], t[2], documents, t[3], 0.1, 30, 3, t[4], t[5],
                           sums);
         });
       }});
}

/// What is told of single samples, of which the last ones are padding.
void add_losses_of_samples(std::vector<Case>& cases) {
  constexpr std::int64_t kSamples = 5;
  constexpr std::int64_t kRows = kSamples * 270;
  constexpr std::int64_t kValid = 3 * 270 + 7;
  // The loss's numbers, and those of the samples.
  const auto numbers_of = [](Context& context, const auto& operation) {
    const Shape shape{kSamples, kSampleElements};
    const device::Buffer memory(context.device(), shape.count() * size_bytes(DType::kFloat64));
    const TensorView samples = memory.view(0, shape, DType::kFloat64);
    std::vector<double> numbers =
        loss_of(context, [&](const TensorView& sums) { operation(sums, samples); });
    const device::HostView here(samples, context.stream());
    const std::span<const double> values = here.view().host<double>();
    numbers.insert(numbers.end(), values.begin(), values.end());
    return numbers;
  };
  cases.push_back({"cross_entropy_of_samples",
                   {read({kRows, 40}), ids({kRows}, kUncounted, 40)},
                   [=](Context& context, const Tensors& t) {
                     return numbers_of(
                         context, [&](const TensorView& sums, const TensorView& samples) {
                           cross_entropy(context, t[0], t[1], kValid, 0.125, {}, sums, samples);
                         });
                   }});
  cases.push_back({"mean_squared_error_of_samples",
                   {read({5, 70}), read({5, 70})},
                   [=](Context& context, const Tensors& t) {
                     return numbers_of(
                         context, [&](const TensorView& sums, const TensorView& samples) {
                           mean_squared_error(context, t[0], t[1], 4, 0.125, {}, sums, {}, samples);
                         });
                   }});
  cases.push_back(
      {"combine_cross_entropy_of_samples",
       {positive({2, kRows, kCrossEntropyParts}), ids({kRows}, kUncounted, 30),
        computed(Role::kWritten, {kRows})},
       [=](Context& context, const Tensors& t) {
         const std::array<ReductionStep, 1> steps{{{0, 1}}};
         return numbers_of(context, [&](const TensorView& sums, const TensorView& samples) {
           combine_cross_entropy(context, steps, t[0], t[1], 30, kValid, t[2], sums, {}, samples);
         });
       }});
}

}  // namespace

void add_row_cases(std::vector<Case>& cases) {
  // A warp's row, a block's, and the least.
  for (const Shape& shape : {Shape{5, 13, 70}, Shape{9, 1500}, Shape{130, 1}}) {
    const std::string of = "_of_" + std::to_string(shape.back());
    add_case(cases, "softmax_forward" + of, {read(shape), written(shape)},
             [](Context& context, const Tensors& t) { softmax_forward(context, t[0], t[1]); });
    add_case(
        cases, "softmax_backward" + of, {read(shape), read(shape), written(shape)},
        [](Context& context, const Tensors& t) { softmax_backward(context, t[0], t[1], t[2]); });
    add_layer_norms(cases, shape, of);
    add_rms_norms(cases, shape, of);
    add_batch_norms(cases, shape, of);
  }
  // Rows that begin at multiples of 16 bytes, held whole; and longer ones, which are not.
  for (const Shape& shape : {Shape{11, 768}, Shape{3, 9000}, Shape{3, 9001}}) {
    const std::string of = "_of_" + std::to_string(shape.back());
    add_layer_norms(cases, shape, of);
    add_rms_norms(cases, shape, of);
    add_rms_norms(cases, shape, "_from_one" + of, WeightOffset::kOne);
  }
  // Over rows: more than one block of threads takes, of columns that are loaded one by one and
  // 16 bytes at a time.
  add_batch_norms(cases, {1100, 33}, "_of_33");
  add_batch_norms(cases, {1100, 72}, "_of_72");
  add_layer_norms(cases, {1100, 72}, "_of_1100x72");
  add_joined_statistics(cases);
  add_folds(cases);
  for (const std::int64_t block : {100, 2000}) {
    Operand sums = written({(4999 + block - 1) / block});
    sums.fixed = DType::kFloat64;
    add_case(
        cases, "sum_of_squares_of_" + std::to_string(block), {read({4999}), sums},
        [=](Context& context, const Tensors& t) {
          sum_of_squares_blocks(context, t[0], block, t[1]);
        },
        Nearness::kRounded, false);
  }
}

void add_loss_cases(std::vector<Case>& cases) {
  add_losses(cases, 600, 10);
  add_losses(cases, 40, 1300);
  add_losses(cases, 9, 1304);  // rows of bfloat16 that begin at multiples of 16 bytes
  add_losses(cases, 9, 9001);
  add_infinite_losses(cases);
  // All logits are the largest: the first counts.
  for (const std::int64_t classes : {10, 1300, 9001}) {
    cases.push_back({"cross_entropy_of_equals_" + std::to_string(classes),
                     {{.shape = {50, classes}, .low = 1.0, .high = 1.0}, ids({50}, 0, 2)},
                     [=](Context& context, const Tensors& t) {
                       return loss_of(context, [&](const TensorView& sums) {
                         cross_entropy(context, t[0], t[1], 47, 0.125, {}, sums);
                       });
                     }});
  }
  for (const std::int64_t columns : {7, 1100}) {
    const std::string of = "_of_" + std::to_string(columns);
    add_shards(cases, "mixed" + of, read({3, 60, columns}));
    add_shards(cases, "smoothed" + of, read({3, 60, columns}), {0.1, 0.001});
    // All logits of all shards are the largest: the first of the first shard counts.
    add_shards(cases, "equals" + of, {.shape = {3, 60, columns}, .low = 1.0, .high = 1.0});
  }
  add_preference_loss(cases);
  add_losses_of_samples(cases);
  const std::array<ReductionStep, 2> steps{{{0, 1}, {0, 2}}};
  cases.push_back({"combine_cross_entropy",
                   {positive({3, 300, kCrossEntropyParts}), ids({300}, -1, 31),
                    computed(Role::kWritten, {300})},
                   [=](Context& context, const Tensors& t) {
                     return loss_of(context, [&](const TensorView& sums) {
                       combine_cross_entropy(context, steps, t[0], t[1], 30, 290, t[2], sums);
                     });
                   }});
}

}  // namespace strata::ops::test
