#include "strata/ops/attention.hpp"

#include <algorithm>
#include <array>
#include <ostream>

#include "tensors.hpp"

namespace strata::ops {

std::ostream& operator<<(std::ostream& out, const AttentionShape& shape) {
  return out << shape.sequences << " x " << shape.tokens << " tokens, " << shape.kv_heads << " x "
             << shape.queries << " heads of " << shape.head_size << ", scores times " << shape.scale
             << " capped at " << shape.softcap;
}

namespace attention_test {
namespace {

using namespace test;

/// What results may differ from plain loops in double by, relative to their norm.
template <typename T>
constexpr double kNear = sizeof(T) == 2   ? 4e-3
                         : sizeof(T) == 4 ? 1e-6
                                          : 1e-14;

/// The documents of every sequence begin at these tokens, besides the first one.
struct Mask {
  std::vector<std::int64_t> begins;
  std::int64_t window = 0;

  [[nodiscard]] std::int64_t start(std::int64_t token) const {
    std::int64_t start = 0;
    for (const std::int64_t begin : begins) {
      start = begin <= token ? begin : start;
    }
    return start;
  }
  [[nodiscard]] std::int64_t first(std::int64_t token) const {
    return std::max(start(token), window > 0 ? token - window + 1 : 0);
  }
};

std::ostream& operator<<(std::ostream& out, const Mask& mask) {
  out << "documents from";
  for (const std::int64_t begin : mask.begins) {
    out << " " << begin;
  }
  return out << ", window " << mask.window;
}

template <typename T>
struct Layer {
  explicit Layer(const AttentionShape& of, std::size_t misalignment = 0)
      : shape(of),
        qkv(randoms<T>({of.rows(), of.qkv_width()}, 1, 1.5, misalignment)),
        dy(randoms<T>({of.rows(), of.width()}, 2, 1.0, misalignment)),
        y({of.rows(), of.width()}, misalignment),
        log_sums({of.sequences, of.heads(), of.tokens}),
        dqkv({of.rows(), of.qkv_width()}, misalignment) {}

  void set(const Mask& of) {
    mask = of;
    starts.clear();
    for (std::int64_t row = 0; row < shape.rows() && !of.begins.empty(); ++row) {
      starts.push_back(static_cast<std::uint32_t>(of.start(row % shape.tokens)));
    }
  }
  [[nodiscard]] AttentionMask given_mask() const {
    return {.document_starts = starts.empty() ? ConstTensorView()
                                              : ConstTensorView(std::span(starts),
                                                                {shape.sequences, shape.tokens}),
            .window = mask.window};
  }
  void forward(Context& context) {
    causal_attention_forward(context, shape, qkv.view(), y.view(), log_sums.view(), given_mask());
  }
  void backward(Context& context) {
    causal_attention_backward(context, shape, qkv.view(), y.view(), log_sums.view(), dy.view(),
                              dqkv.view(), given_mask());
  }
  void run(int threads) {
    Context context(threads);
    forward(context);
    backward(context);
  }

  AttentionShape shape;
  Mask mask;
  std::vector<std::uint32_t> starts;
  Tensor<T> qkv;
  Tensor<T> dy;
  Tensor<T> y;
  Tensor<Compute<T>> log_sums;
  Tensor<T> dqkv;
};

/// The column of qkv that element `i` of head `index` of a key-value head is in.
std::int64_t column(const AttentionShape& shape, std::int64_t kv_head, std::int64_t index,
                    std::int64_t i) {
  return (kv_head * (shape.queries + 2) + index) * shape.head_size + i;
}

/// All results in plain loops, in double.
struct Reference {
  template <typename T>
  explicit Reference(const Layer<T>& layer)
      : shape(layer.shape),
        mask(layer.mask),
        y(static_cast<std::size_t>(shape.rows() * shape.width())),
        dqkv(static_cast<std::size_t>(shape.rows() * shape.qkv_width())) {
    for (const T element : layer.qkv.elements()) {
      qkv.push_back(as_double(element));
    }
    for (const T element : layer.dy.elements()) {
      dy.push_back(as_double(element));
    }
    for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
      for (std::int64_t head = 0; head < shape.heads(); ++head) {
        for (std::int64_t token = 0; token < shape.tokens; ++token) {
          row(sequence, head, token);
        }
      }
    }
  }

  void row(std::int64_t sequence, std::int64_t head, std::int64_t token) {
    const std::int64_t kv_head = head / shape.queries;
    const double scale =
        shape.scale > 0.0 ? shape.scale : 1.0 / std::sqrt(static_cast<double>(shape.head_size));
    const auto at = [&](std::int64_t position, std::int64_t index, std::int64_t i) {
      return static_cast<std::size_t>((sequence * shape.tokens + position) * shape.qkv_width() +
                                      column(shape, kv_head, index, i));
    };
    const auto out = [&](std::int64_t i) {
      return static_cast<std::size_t>((sequence * shape.tokens + token) * shape.width() +
                                      head * shape.head_size + i);
    };
    const std::int64_t query = head % shape.queries;
    std::vector<double> weights;
    std::vector<double> slopes;
    double sum = 0.0;
    const std::int64_t first = mask.first(token);
    for (std::int64_t key = first; key <= token; ++key) {
      double score = 0.0;
      for (std::int64_t i = 0; i < shape.head_size; ++i) {
        score += qkv[at(token, query, i)] * qkv[at(key, shape.queries, i)] * scale;
      }
      const double capped =
          shape.softcap > 0.0 ? shape.softcap * std::tanh(score / shape.softcap) : score;
      weights.push_back(capped);
      slopes.push_back(shape.softcap > 0.0 ? 1.0 - std::pow(capped / shape.softcap, 2) : 1.0);
    }
    const double largest = *std::max_element(weights.begin(), weights.end());
    for (double& weight : weights) {
      weight = std::exp(weight - largest);
      sum += weight;
    }
    log_sums.push_back(largest + std::log(sum));
    double correction = 0.0;
    for (std::int64_t i = 0; i < shape.head_size; ++i) {
      for (std::int64_t key = first; key <= token; ++key) {
        y[out(i)] += weights[static_cast<std::size_t>(key - first)] / sum *
                     qkv[at(key, shape.queries + 1, i)];
      }
      correction += y[out(i)] * dy[out(i)];
    }
    for (std::int64_t key = first; key <= token; ++key) {
      const double weight = weights[static_cast<std::size_t>(key - first)] / sum;
      double dweight = 0.0;
      for (std::int64_t i = 0; i < shape.head_size; ++i) {
        dweight += dy[out(i)] * qkv[at(key, shape.queries + 1, i)];
        dqkv[at(key, shape.queries + 1, i)] += weight * dy[out(i)];
      }
      const double dscore =
          weight * (dweight - correction) * scale * slopes[static_cast<std::size_t>(key - first)];
      for (std::int64_t i = 0; i < shape.head_size; ++i) {
        dqkv[at(token, query, i)] += dscore * qkv[at(key, shape.queries, i)];
        dqkv[at(key, shape.queries, i)] += dscore * qkv[at(token, query, i)];
      }
    }
  }

  AttentionShape shape;
  Mask mask;
  std::vector<double> qkv;
  std::vector<double> dy;
  std::vector<double> y;
  std::vector<double> log_sums;
  std::vector<double> dqkv;
};

std::vector<AttentionShape> shapes() {
  std::vector<AttentionShape> all;
  for (const std::int64_t tokens : {1, 7, 64, 65, 130}) {
    for (const std::int64_t head_size : {5, 32, 64}) {
      for (const std::int64_t queries : {1, 3}) {
        all.push_back({2, tokens, 2, queries, head_size});
      }
    }
  }
  all.push_back({2, 130, 2, 3, 32, 0.4});
  all.push_back({2, 130, 2, 3, 32, 0.0, 2.0});
  all.push_back({1, 70, 1, 1, 24, 0.4, 5.0});
  return all;
}

template <typename T>
class AttentionTyped : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(AttentionTyped, Types);

TYPED_TEST(AttentionTyped, AgreesWithPlainLoops) {
  using T = TypeParam;
  for (const AttentionShape& shape : shapes()) {
    Layer<T> layer(shape);
    layer.run(1);
    const Reference reference(layer);
    EXPECT_LT((relative_error<T, double>(layer.y.elements(), reference.y)), kNear<T>) << shape;
    const double log_error =
        relative_error<Compute<T>, double>(layer.log_sums.elements(), reference.log_sums);
    EXPECT_LT(log_error, kNear<Compute<T>>) << shape;
    EXPECT_LT((relative_error<T, double>(layer.dqkv.elements(), reference.dqkv)), kNear<T>)
        << shape;
  }
}

/// Documents that end at, within and behind a tile, of one token and of several tiles.
const std::vector<Mask> kMasks{{{64, 128}}, {{1, 2, 100, 199}}, {{63, 65, 130}},
                               {{}, 1},     {{}, 64},           {{}, 70},
                               {{}, 500},   {{40, 150}, 33},    {{10, 20, 30}, 100}};

TYPED_TEST(AttentionTyped, MaskedTokensAgreeWithPlainLoops) {
  using T = TypeParam;
  for (const Mask& mask : kMasks) {
    for (const AttentionShape& shape :
         {AttentionShape{2, 200, 2, 2, 24}, AttentionShape{1, 200, 1, 1, 64},
          AttentionShape{1, 200, 1, 2, 16, 0.3, 3.0}}) {
      Layer<T> layer(shape);
      layer.set(mask);
      layer.run(2);
      const Reference reference(layer);
      EXPECT_LT((relative_error<T, double>(layer.y.elements(), reference.y)), kNear<T>) << mask;
      const double log_error =
          relative_error<Compute<T>, double>(layer.log_sums.elements(), reference.log_sums);
      EXPECT_LT(log_error, kNear<Compute<T>>) << mask;
      EXPECT_LT((relative_error<T, double>(layer.dqkv.elements(), reference.dqkv)), kNear<T>)
          << mask;
    }
  }
}

/// The rows [first, first + rows) of a tensor of `width` columns.
template <typename T>
std::vector<T> rows_of(const Tensor<T>& tensor, std::int64_t width, std::int64_t first,
                       std::int64_t rows) {
  const auto begin = tensor.elements().begin() + first * width;
  return {begin, begin + rows * width};
}

TYPED_TEST(AttentionTyped, ADocumentKnowsNothingOfTheOthers) {
  using T = TypeParam;
  const AttentionShape shape{1, 200, 2, 2, 24};
  const std::vector<std::int64_t> begins{0, 64, 90, 128, 129, 200};
  Layer<T> pack(shape);
  pack.set({.begins = begins});
  pack.run(1);
  for (std::size_t d = 0; d + 1 < begins.size(); ++d) {
    const std::int64_t first = begins[d];
    const std::int64_t tokens = begins[d + 1] - first;
    // Other documents' tokens change no bit.
    Layer<T> others(shape);
    others.set({.begins = begins});
    const auto spoil = [&](std::int64_t row, T value) {
      std::fill_n(others.qkv.elements().begin() + row * shape.qkv_width(), shape.qkv_width(),
                  value);
      std::fill_n(others.dy.elements().begin() + row * shape.width(), shape.width(), value);
    };
    for (std::int64_t row = 0; row < shape.tokens; ++row) {
      if (row < first || row >= first + tokens) {
        spoil(row, static_cast<T>(Compute<T>{7}));
      }
    }
    others.run(1);
    EXPECT_TRUE(rows_of(pack.y, shape.width(), first, tokens) ==
                rows_of(others.y, shape.width(), first, tokens));
    EXPECT_TRUE(rows_of(pack.dqkv, shape.qkv_width(), first, tokens) ==
                rows_of(others.dqkv, shape.qkv_width(), first, tokens));
    // Alone it has the same bits where the tiles are those of the pack.
    AttentionShape of_document = shape;
    of_document.tokens = tokens;
    Layer<T> alone(of_document);
    std::ranges::copy(rows_of(pack.qkv, shape.qkv_width(), first, tokens),
                      alone.qkv.elements().begin());
    std::ranges::copy(rows_of(pack.dy, shape.width(), first, tokens), alone.dy.elements().begin());
    alone.run(1);
    const std::vector<T> y = rows_of(pack.y, shape.width(), first, tokens);
    const std::vector<T> dqkv = rows_of(pack.dqkv, shape.qkv_width(), first, tokens);
    if (first % 64 == 0) {
      EXPECT_TRUE(alone.y.values() == y) << first;
      EXPECT_TRUE(alone.dqkv.values() == dqkv) << first;
    } else {
      EXPECT_LT((relative_error<T, T>(alone.y.elements(), y)), kNear<T>) << first;
      EXPECT_LT((relative_error<T, T>(alone.dqkv.elements(), dqkv)), kNear<T>) << first;
    }
  }
}

TYPED_TEST(AttentionTyped, BitsDependOnNeitherThreadsNorAlignment) {
  using T = TypeParam;
  for (const AttentionShape& shape :
       {AttentionShape{3, 70, 2, 3, 24}, AttentionShape{1, 130, 5, 1, 32},
        AttentionShape{1, 100, 2, 2, 20, 0.3, 2.0}}) {
    Layer<T> first(shape);
    first.run(1);
    for (const int threads : {2, 3}) {
      for (const std::size_t misalignment : {0, 3}) {
        Layer<T> layer(shape, misalignment);
        layer.run(threads);
        EXPECT_TRUE(first.y.values() == layer.y.values()) << shape;
        EXPECT_TRUE(first.log_sums.values() == layer.log_sums.values()) << shape;
        EXPECT_TRUE(first.dqkv.values() == layer.dqkv.values()) << shape;
      }
    }
  }
}

/// A layer of the sequences and key-value heads from `sequence` and `kv_head` on of another.
template <typename T>
Layer<T> part_of(const Layer<T>& whole, const AttentionShape& shape, std::int64_t sequence,
                 std::int64_t kv_head) {
  Layer<T> part(shape);
  const std::int64_t first_column = column(whole.shape, kv_head, 0, 0);
  const std::int64_t first_out = kv_head * shape.queries * shape.head_size;
  for (std::int64_t row = 0; row < shape.rows(); ++row) {
    const std::int64_t from = sequence * shape.tokens + row;
    for (std::int64_t c = 0; c < shape.qkv_width(); ++c) {
      part.qkv[row * shape.qkv_width() + c] =
          whole.qkv[from * whole.shape.qkv_width() + first_column + c];
    }
    for (std::int64_t c = 0; c < shape.width(); ++c) {
      part.dy[row * shape.width() + c] = whole.dy[from * whole.shape.width() + first_out + c];
    }
  }
  return part;
}

template <typename T>
void expect_part(const Layer<T>& whole, const Layer<T>& part, std::int64_t sequence,
                 std::int64_t kv_head) {
  const AttentionShape& shape = part.shape;
  const std::int64_t first_column = column(whole.shape, kv_head, 0, 0);
  const std::int64_t first_out = kv_head * shape.queries * shape.head_size;
  for (std::int64_t row = 0; row < shape.rows(); ++row) {
    const std::int64_t from = sequence * shape.tokens + row;
    for (std::int64_t c = 0; c < shape.width(); ++c) {
      ASSERT_EQ(part.y[row * shape.width() + c],
                whole.y[from * whole.shape.width() + first_out + c]);
    }
    for (std::int64_t c = 0; c < shape.qkv_width(); ++c) {
      ASSERT_EQ(part.dqkv[row * shape.qkv_width() + c],
                whole.dqkv[from * whole.shape.qkv_width() + first_column + c]);
    }
  }
}

TYPED_TEST(AttentionTyped, HeadsAndSequencesAloneHaveTheBitsOfTheWhole) {
  using T = TypeParam;
  const AttentionShape shape{3, 70, 4, 2, 20};
  Layer<T> whole(shape);
  whole.run(1);
  AttentionShape heads = shape;
  heads.sequences = 1;
  heads.kv_heads = 2;
  for (const std::int64_t kv_head : {0, 2}) {
    Layer<T> part = part_of(whole, heads, 0, kv_head);
    part.run(1);
    expect_part(whole, part, 0, kv_head);
  }
  AttentionShape sequences = shape;
  sequences.sequences = 1;
  for (const std::int64_t sequence : {0, 1, 2}) {
    Layer<T> part = part_of(whole, sequences, sequence, 0);
    part.run(2);
    expect_part(whole, part, sequence, 0);
  }
}

TYPED_TEST(AttentionTyped, ALaterTokenChangesNothingBefore) {
  using T = TypeParam;
  const AttentionShape shape{1, 131, 2, 2, 16};
  Layer<T> layer(shape);
  layer.run(1);
  for (const std::int64_t changed : {1, 63, 64, 100, 130}) {
    Layer<T> other(shape);
    for (std::int64_t c = 0; c < shape.qkv_width(); ++c) {
      other.qkv[changed * shape.qkv_width() + c] = static_cast<T>(Compute<T>{3});
    }
    // The changed token's own output must not bring it to the queries before.
    std::fill(other.dy.elements().begin() + changed * shape.width(), other.dy.elements().end(),
              T{});
    Layer<T> cut(shape);
    std::copy(other.dy.elements().begin(), other.dy.elements().end(), cut.dy.elements().begin());
    other.run(1);
    cut.run(1);
    for (std::int64_t i = 0; i < changed * shape.width(); ++i) {
      ASSERT_EQ(layer.y[i], other.y[i]) << changed;
    }
    for (std::int64_t i = 0; i < changed * shape.qkv_width(); ++i) {
      ASSERT_EQ(cut.dqkv[i], other.dqkv[i]) << changed;
    }
    EXPECT_NE(layer.y[changed * shape.width()], other.y[changed * shape.width()]);
  }
}

TEST(Attention, BackwardAgreesWithFiniteDifferences) {
  Context context(1);
  for (const AttentionShape& shape :
       {AttentionShape{2, 5, 2, 2, 3}, AttentionShape{1, 66, 1, 1, 2},
        AttentionShape{1, 9, 1, 2, 3, 0.3}, AttentionShape{1, 9, 1, 2, 3, 0.0, 0.7}}) {
    Layer<double> layer(shape);
    layer.forward(context);
    layer.backward(context);
    expect_gradient(
        [&] {
          layer.forward(context);
          return dot(layer.dy, layer.y);
        },
        layer.qkv.elements(), layer.dqkv.values());
  }
}

TEST(Attention, LargeScoresNeitherOverflowNorVanish) {
  Context context(1);
  Layer<float> layer({1, 100, 1, 1, 8});
  for (float& element : layer.qkv.elements()) {
    element *= 40.0F;
  }
  layer.forward(context);
  layer.backward(context);
  const auto finite = [](float value) { return std::isfinite(value); };
  EXPECT_TRUE(std::ranges::all_of(layer.y.elements(), finite));
  EXPECT_TRUE(std::ranges::all_of(layer.dqkv.elements(), finite));
  const Reference reference(layer);
  EXPECT_LT((relative_error<float, double>(layer.y.elements(), reference.y)), 1e-4);
}

TYPED_TEST(AttentionTyped, CachedTokensHaveTheRowsOfTheWhole) {
  using T = TypeParam;
  const AttentionShape shape{1, 140, 2, 3, 20, 0.3, 2.0};
  constexpr std::int64_t kCapacity = 150;
  // Several new tokens end at, within and behind a tile of keys.
  const std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> calls{
      {0, {65, 1, 1, 60, 3, 10}},
      {0, {37, 100, 3}},
      {0, {1, 139}},
      {50, {65, 1, 1, 60, 3, 10}},
      {3, {100, 40}}};
  for (const auto& [window, steps] : calls) {
    Layer<T> whole(shape);
    whole.set({.window = window});
    whole.run(1);
    Context context(static_cast<int>(steps.size() % 2) + 1);
    Tensor<T> keys({shape.kv_heads, kCapacity, shape.head_size});
    Tensor<T> values({shape.kv_heads, kCapacity, shape.head_size});
    Tensor<T> y({shape.rows(), shape.width()});
    std::int64_t past = 0;
    for (const std::int64_t tokens : steps) {
      AttentionShape step = shape;
      step.tokens = tokens;
      const auto qkv = whole.qkv.view()
                           .flat_slice(past * shape.qkv_width(), tokens * shape.qkv_width())
                           .reshaped({tokens, shape.qkv_width()});
      const std::array<KeyValueCache, 1> cache{{{keys.view(), values.view(), past}}};
      append_to_cache(context, step, qkv, cache);
      cached_attention(context, step, qkv, cache, window,
                       y.view()
                           .flat_slice(past * shape.width(), tokens * shape.width())
                           .reshaped({tokens, shape.width()}));
      past += tokens;
    }
    // The same operations on the same numbers, tile by tile of keys.
    EXPECT_TRUE(whole.y.values() == y.values());
  }
}

TEST(Attention, ChecksWhatItIsGiven) {
  Context context(1);
  const AttentionShape shape{1, 4, 2, 1, 8};
  Layer<float> layer(shape);
  Layer<double> wide(shape);
  EXPECT_THROW(causal_attention_forward(context, shape, wide.qkv.view(), layer.y.view(),
                                        layer.log_sums.view()),
               std::logic_error);
  EXPECT_THROW(causal_attention_forward(context, shape, layer.y.view(), layer.y.view(),
                                        layer.log_sums.view()),
               std::logic_error);
  for (const AttentionShape& negative :
       {AttentionShape{1, 4, 2, 1, 8, -1.0}, AttentionShape{1, 4, 2, 1, 8, 0.0, -1.0}}) {
    EXPECT_THROW(causal_attention_forward(context, negative, layer.qkv.view(), layer.y.view(),
                                          layer.log_sums.view()),
                 std::logic_error);
  }
  Tensor<float> cache({2, 6, 8});
  const auto behind = [&](std::int64_t past) {
    return std::array<KeyValueCache, 1>{{{cache.view(), cache.view(), past}}};
  };
  EXPECT_NO_THROW(append_to_cache(context, shape, layer.qkv.view(), behind(2)));
  EXPECT_THROW(append_to_cache(context, shape, layer.qkv.view(), behind(3)), std::logic_error);
  EXPECT_THROW(cached_attention(context, shape, layer.qkv.view(), behind(3), 0, layer.y.view()),
               std::logic_error);
  EXPECT_THROW(append_to_cache(context, shape, layer.qkv.view(), {}), std::logic_error);
  const Tensor<std::uint32_t> starts({1, 3});
  EXPECT_THROW(causal_attention_forward(context, shape, layer.qkv.view(), layer.y.view(),
                                        layer.log_sums.view(), {.document_starts = starts.view()}),
               std::logic_error);
}

}  // namespace
}  // namespace attention_test
}  // namespace strata::ops
