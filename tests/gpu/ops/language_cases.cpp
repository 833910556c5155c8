#include <array>
#include <string>

#include "strata/ops/attention.hpp"
#include "strata/ops/embedding.hpp"
#include "strata/ops/head_norm.hpp"

#include "cases.hpp"

namespace strata::ops::test {
namespace {

using Tensors = std::vector<TensorView>;

/// A mask on a context's device.
struct DeviceMask {
  /// Documents of so many tokens, 0: none.
  DeviceMask(Context& context, const AttentionShape& shape, std::int64_t document,
             std::int64_t window)
      : memory(context.device(), document > 0 ? 4 * shape.rows() : 0), mask{.window = window} {
    if (document == 0) {
      return;
    }
    std::vector<std::uint32_t> starts;
    for (std::int64_t row = 0; row < shape.rows(); ++row) {
      starts.push_back(static_cast<std::uint32_t>(row % shape.tokens / document * document));
    }
    const Shape of{shape.sequences, shape.tokens};
    const TensorView there = memory.view(0, of, DType::kUint32);
    device::copy_tensor(TensorView(std::span(starts), of), there, context.stream());
    context.synchronize();
    mask.document_starts = there;
  }

  device::Buffer memory;
  AttentionMask mask;
};

void add_attention(std::vector<Case>& cases, const AttentionShape& shape, std::int64_t document = 0,
                   std::int64_t window = 0) {
  const std::string of = "_of_" + std::to_string(shape.tokens) + "x" +
                         std::to_string(shape.head_size) + (shape.scale > 0.0 ? "_scaled" : "") +
                         (shape.softcap > 0.0 ? "_capped" : "") +
                         (document > 0 ? "_in_documents_of_" + std::to_string(document) : "") +
                         (window > 0 ? "_in_windows_of_" + std::to_string(window) : "");
  const Shape qkv{shape.rows(), shape.qkv_width()};
  const Shape y{shape.rows(), shape.width()};
  const Shape sums{shape.sequences, shape.heads(), shape.tokens};
  add_case(cases, "attention_forward" + of, {read(qkv), written(y), computed(Role::kWritten, sums)},
           [=](Context& context, const Tensors& t) {
             const DeviceMask mask(context, shape, document, window);
             causal_attention_forward(context, shape, t[0], t[1], t[2], mask.mask);
             context.synchronize();
           });
  // Any numbers will do for y and log_sums: the gradient is a formula of them.
  Operand log_sums = positive(sums);
  log_sums.low = 2.0;
  log_sums.high = 4.0;
  add_case(cases, "attention_backward" + of, {read(qkv), read(y), log_sums, read(y), written(qkv)},
           [=](Context& context, const Tensors& t) {
             const DeviceMask mask(context, shape, document, window);
             causal_attention_backward(context, shape, t[0], t[1], t[2], t[3], t[4], mask.mask);
             context.synchronize();
           });
  if (document > 0 || window > 0 || shape.scale > 0.0 || shape.softcap > 0.0) {
    return;
  }
  if (shape.head_size % 2 == 0) {
    for (const Rotation rotation : {Rotation::kForward, Rotation::kBackward}) {
      RotaryScaling longrope{.kind = RotaryScalingKind::kLongrope, .factor = 4.0, .context = 64.0};
      longrope.factors.count = shape.head_size / 2;
      std::ranges::generate(longrope.factors.values,
                            [factor = 0.5]() mutable { return factor += 0.5; });
      for (const RotaryScaling& scaling :
           {RotaryScaling{}, longrope,
            RotaryScaling{.kind = RotaryScalingKind::kLlama3, .factor = 8.0, .context = 64.0},
            RotaryScaling{.kind = RotaryScalingKind::kYarn, .factor = 4.0, .context = 256.0}}) {
        // yarn also with a part of each head.
        const double share =
            scaling.kind == RotaryScalingKind::kYarn && shape.head_size % 4 == 0 ? 0.5 : 1.0;
        add_case(cases,
                 (rotation == Rotation::kForward ? "rotary" : "rotary_back") +
                     ("_" + std::string(name_of(scaling.kind))) + of,
                 {updated(qkv)}, [=](Context& context, const Tensors& t) {
                   rotary(context, shape, {.scaling = scaling, .share = share}, 3, rotation, t[0]);
                 });
      }
    }
  }
}

/// Weights of a head, and of all heads of a row.
void add_head_norms(std::vector<Case>& cases, const AttentionShape& shape, WeightOffset offset) {
  const HeadNorm norm{1e-5, offset};
  const Shape qkv{shape.rows(), shape.qkv_width()};
  for (const bool all : {false, true}) {
    const Shape queries{all ? shape.width() : shape.head_size};
    const Shape keys{all ? shape.kv_heads * shape.head_size : shape.head_size};
    const std::string of = (all ? "_of_rows_of_" : "_of_heads_of_") + std::to_string(shape.rows()) +
                           "x" + std::to_string(shape.kv_heads) + "x" +
                           std::to_string(shape.queries) + "x" + std::to_string(shape.head_size);
    add_case(cases, "head_norm_forward" + of, {read(qkv), read(queries), read(keys), written(qkv)},
             [=](Context& context, const Tensors& t) {
               head_norm_forward(context, shape, t[0], t[1], t[2], norm, t[3]);
             });
    add_case(cases, "head_norm_in_place" + of, {updated(qkv), read(queries), read(keys)},
             [=](Context& context, const Tensors& t) {
               head_norm_forward(context, shape, t[0], t[1], t[2], norm, t[0]);
             });
    for (const Accumulate accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
      const std::string added = accumulate == Accumulate::kAdd ? "_added" : "";
      add_case(cases, "head_norm_backward" + added + of,
               {read(qkv), read(queries), read(keys), updated(qkv), computed(Role::kBoth, queries),
                computed(Role::kBoth, keys)},
               [=](Context& context, const Tensors& t) {
                 head_norm_backward(context, shape, t[0], t[1], t[2], norm, t[3], t[4], t[5],
                                    accumulate);
               });
    }
    add_case(cases, "head_norm_backward_input" + of,
             {read(qkv), read(queries), read(keys), updated(qkv)},
             [=](Context& context, const Tensors& t) {
               head_norm_backward(context, shape, t[0], t[1], t[2], norm, t[3], {}, {});
             });
    if (!all) {
      continue;
    }
    // As one shard of two.
    const Shape sums{shape.rows(), 2};
    const auto twice = [=](const TensorView& squares, const TensorView& products) {
      return HeadSums{squares, products, 2 * shape.width(), 2 * shape.kv_heads * shape.head_size};
    };
    add_case(cases, "head_norm_shard" + of,
             {read(qkv), read(queries), read(keys), written(qkv), updated(qkv),
              computed(Role::kWritten, sums), computed(Role::kWritten, sums)},
             [=](Context& context, const Tensors& t) {
               head_norm_squares(context, shape, t[0], t[5]);
               head_norm_forward(context, shape, t[0], t[1], t[2], norm, t[3], twice(t[5], {}));
               head_norm_products(context, shape, t[0], t[1], t[2], norm, t[4], t[6]);
               head_norm_backward(context, shape, t[0], t[1], t[2], norm, t[4], {}, {},
                                  Accumulate::kOverwrite, twice(t[5], t[6]));
             });
  }
}

void add_caches(std::vector<Case>& cases, std::int64_t tokens, std::int64_t past,
                std::int64_t head_size, std::int64_t window = 0, double scale = 0.0,
                double softcap = 0.0) {
  const AttentionShape shape{.sequences = 2,
                             .tokens = tokens,
                             .kv_heads = 2,
                             .queries = 3,
                             .head_size = head_size,
                             .scale = scale,
                             .softcap = softcap};
  const auto caches = [past](const TensorView* of) {
    return std::array<KeyValueCache, 2>{{{of[0], of[1], past}, {of[2], of[3], past / 2}}};
  };
  const std::string of = "_of_" + std::to_string(tokens) + "_behind_" + std::to_string(past) + "x" +
                         std::to_string(head_size) +
                         (window > 0 ? "_window_" + std::to_string(window) : "") +
                         (scale > 0.0 ? "_scaled" : "") + (softcap > 0.0 ? "_capped" : "");
  const Shape qkv{shape.rows(), shape.qkv_width()};
  const Shape cache{shape.kv_heads, past + tokens + 5, shape.head_size};
  add_case(cases, "cached_attention" + of,
           {read(qkv), read(cache), read(cache), read(cache), read(cache),
            written({shape.rows(), shape.width()})},
           [=](Context& context, const Tensors& t) {
             cached_attention(context, shape, t[0], caches(&t[1]), window, t[5]);
           });
  add_case(
      cases, "append_to_cache" + of,
      {read(qkv), updated(cache), updated(cache), updated(cache), updated(cache)},
      [=](Context& context, const Tensors& t) {
        append_to_cache(context, shape, t[0], caches(&t[1]));
      },
      Nearness::kSameBits);
}

/// A table of 11 ids from 4 on. Of the ids in [low, high) some may lie outside, and most come
/// several times.
void add_embeddings(std::vector<Case>& cases, std::int64_t rows, std::int64_t n,
                    std::int64_t low = 0, std::int64_t high = 20) {
  const Operand id = ids({rows}, low, high);
  const Shape table{11, n};
  const std::string of = "_of_" + std::to_string(rows) + "x" + std::to_string(n);
  for (const Accumulate accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
    const std::string added = accumulate == Accumulate::kAdd ? "_added" : "";
    add_case(
        cases, "embedding_forward" + added + of, {id, read(table), updated({rows, n})},
        [=](Context& context, const Tensors& t) {
          embedding_forward(context, t[0], t[1], 4, t[2], accumulate);
        },
        Nearness::kSameBits);
    add_case(cases, "embedding_to_computed" + added + of,
             {id, read(table), computed(Role::kBoth, {rows, n})},
             [=](Context& context, const Tensors& t) {
               embedding_forward(context, t[0], t[1], 4, t[2], accumulate);
             });
    add_case(
        cases, "embedding_backward" + added + of,
        {id, read({rows, n}), computed(Role::kBoth, table)},
        [=](Context& context, const Tensors& t) {
          embedding_backward(context, t[0], t[1], 4, t[2], accumulate);
        },
        Nearness::kSameBits);
    add_case(
        cases, "positions_backward" + added + of,
        {read({3 * rows, n}), computed(Role::kBoth, {rows + 2, n})},
        [=](Context& context, const Tensors& t) {
          positions_backward(context, t[0], rows, t[1], accumulate);
        },
        Nearness::kSameBits);
  }
  add_case(
      cases, "add_positions" + of,
      {computed(Role::kRead, {rows, n}), read({9, n}), written({rows, n})},
      [](Context& context, const Tensors& t) {
        add_positions(context, t[0], t[1], {.tokens = 7, .first_row = 5, .offset = 2}, t[2]);
      },
      Nearness::kSameBits);
}

/// Shapes of attention that bfloat16 has tensor cores for; other dtypes have one code for all.
void add_matrix_attention(std::vector<Case>& cases, std::int64_t head_size) {
  const std::size_t before = cases.size();
  // One token, whole tiles, tiles with a rest, many tiles.
  add_attention(cases, {.sequences = 2, .tokens = 1, .kv_heads = 2, .head_size = head_size});
  add_attention(
      cases, {.sequences = 1, .tokens = 128, .kv_heads = 2, .queries = 2, .head_size = head_size});
  add_attention(
      cases, {.sequences = 2, .tokens = 203, .kv_heads = 1, .queries = 3, .head_size = head_size});
  add_attention(cases, {.sequences = 1, .tokens = 450, .kv_heads = 1, .head_size = head_size});
  add_attention(cases, {.sequences = 2, .tokens = 330, .kv_heads = 1, .head_size = head_size});
  add_attention(
      cases, {.sequences = 1, .tokens = 70, .kv_heads = 1, .head_size = head_size, .scale = 0.2});
  const AttentionShape masked{
      .sequences = 1, .tokens = 200, .kv_heads = 1, .queries = 2, .head_size = head_size};
  add_attention(cases, masked, 64);
  add_attention(cases, masked, 37);
  add_attention(cases, masked, 0, 100);
  add_attention(cases, masked, 150, 33);
  AttentionShape capped = masked;
  capped.scale = 0.2;
  capped.softcap = 3.0;
  add_attention(cases, capped);
  add_attention(cases, capped, 150, 33);
  add_caches(cases, 70, 140, head_size, 50);
  add_caches(cases, 1, 70, head_size);
  add_caches(cases, 140, 37, head_size, 0, 0.2);
  add_caches(cases, 70, 140, head_size, 50, 0.2, 3.0);
  for (std::size_t i = before; i < cases.size(); ++i) {
    cases[i].only_bfloat16 = true;
  }
}

}  // namespace

void add_attention_cases(std::vector<Case>& cases) {
  add_attention(cases,
                {.sequences = 2, .tokens = 203, .kv_heads = 2, .queries = 2, .head_size = 40});
  add_attention(cases,
                {.sequences = 1, .tokens = 33, .kv_heads = 3, .queries = 1, .head_size = 128});
  // cuDNN takes both passes in bfloat16.
  add_attention(
      cases,
      {.sequences = 1, .tokens = 90, .kv_heads = 2, .queries = 2, .head_size = 16, .scale = 0.4});
  // Between the sizes of tensor cores, up to the most.
  for (const std::int64_t head_size : {65, 80, 96, 127, 160}) {
    add_attention(
        cases, {.sequences = 1, .tokens = 50, .kv_heads = 2, .queries = 2, .head_size = head_size});
  }
  add_attention(cases, {.sequences = 3, .tokens = 1, .kv_heads = 1, .queries = 2, .head_size = 7});
  add_attention(cases,
                {.sequences = 1, .tokens = 128, .kv_heads = 1, .queries = 4, .head_size = 32});
  const AttentionShape masked{
      .sequences = 2, .tokens = 203, .kv_heads = 2, .queries = 2, .head_size = 40};
  add_attention(cases, masked, 32);
  add_attention(cases, masked, 7);
  add_attention(cases, masked, 0, 50);
  add_attention(cases, masked, 100, 1);
  AttentionShape capped = masked;
  capped.softcap = 2.0;
  add_attention(cases, capped);
  add_attention(cases, capped, 100, 50);
  AttentionShape large = capped;
  large.tokens = 35;
  large.head_size = 256;
  add_attention(cases, large);
  add_attention(cases, large, 40, 21);
  add_attention(cases, large, 0, 50);
  add_caches(cases, 40, 45, 160, 20, 0.3, 2.0);
  add_caches(cases, 1, 45, 256);
  add_caches(cases, 40, 45, 24, 20);
  add_caches(cases, 1, 45, 24);
  add_caches(cases, 40, 0, 24);
  add_caches(cases, 3, 31, 24, 0, 0.3);
  add_caches(cases, 40, 45, 24, 20, 0.3, 2.0);
  // Rows of a warp and of a block, more than a part of rows, and heads of no whole 16 bytes.
  add_head_norms(cases,
                 {.sequences = 2, .tokens = 13, .kv_heads = 2, .queries = 3, .head_size = 64},
                 WeightOffset::kZero);
  add_head_norms(cases, {.tokens = 5, .kv_heads = 3, .queries = 4, .head_size = 128},
                 WeightOffset::kOne);
  add_head_norms(cases, {.tokens = 601, .kv_heads = 2, .head_size = 12}, WeightOffset::kOne);
  add_head_norms(cases, {.tokens = 9, .kv_heads = 8, .queries = 2, .head_size = 7},
                 WeightOffset::kZero);
  add_matrix_attention(cases, 64);
  add_matrix_attention(cases, 128);
  add_matrix_attention(cases, 256);
}

void add_language_cases(std::vector<Case>& cases) {
  add_embeddings(cases, 700, 33);
  add_embeddings(cases, 30, 1100);
  add_embeddings(cases, 30, 1104);  // rows of bfloat16 that begin at multiples of 16 bytes
  add_embeddings(cases, 5000, 3);   // ids that several blocks sort
  // Ids that come many times, and one that is all of whole pieces.
  add_embeddings(cases, 5000, 12, 0, 6);
  add_embeddings(cases, 128, 4, 4, 5);
}

}  // namespace strata::ops::test
