#include "strata/ops/head_norm.hpp"

#include "norms.hpp"

namespace strata::ops::head_norm_test {
namespace {

using namespace test;

/// Whether each head has its own root mean square, or all heads of a row have one; kShards: these
/// lie in a block for each key-value head, as on shards.
enum class Over { kHead, kRow, kShards };

struct Heads {
  AttentionShape shape;
  Over over = Over::kHead;
  WeightOffset offset = WeightOffset::kZero;

  [[nodiscard]] Shape input() const { return {shape.rows(), shape.qkv_width()}; }
  [[nodiscard]] std::int64_t query_weights() const {
    return shape.head_size * (over == Over::kHead ? 1 : shape.heads());
  }
  [[nodiscard]] std::int64_t key_weights() const {
    return shape.head_size * (over == Over::kHead ? 1 : shape.kv_heads);
  }
  /// That of queries, then that of keys.
  [[nodiscard]] Shape weight() const { return {query_weights() + key_weights()}; }
  [[nodiscard]] Shape bias() const { return {0}; }
  [[nodiscard]] Shape mean() const { return {0}; }
  [[nodiscard]] Shape spread() const { return {0}; }

  [[nodiscard]] auto of_queries(const auto& weights) const {
    return weights.flat_slice(0, query_weights());
  }
  [[nodiscard]] auto of_keys(const auto& weights) const {
    return weights.flat_slice(query_weights(), key_weights());
  }
  [[nodiscard]] std::int64_t blocks() const { return over == Over::kShards ? shape.kv_heads : 1; }
  [[nodiscard]] AttentionShape block_shape() const {
    AttentionShape block = shape;
    block.kv_heads /= blocks();
    return block;
  }
  [[nodiscard]] auto block(const auto& qkv, std::int64_t b) const {
    return block_of_weight(qkv, b).reshaped(Shape{shape.rows(), block_shape().qkv_width()});
  }
  [[nodiscard]] auto block_of_weight(const auto& weight, std::int64_t b) const {
    const std::int64_t count = weight.count() / blocks();
    return weight.flat_slice(b * count, count);
  }
  /// With kShards the sum over blocks of what make(block, part) writes.
  template <typename C, typename Make>
  Tensor<C> summed(const Make& make) const {
    Tensor<C> sum({shape.rows(), 2});
    Tensor<C> part({shape.rows(), 2});
    for (std::int64_t b = 0; b < blocks() && over == Over::kShards; ++b) {
      make(b, part.view());
      std::ranges::transform(sum.elements(), part.elements(), sum.elements().begin(), std::plus());
    }
    return sum;
  }
  template <typename T>
  Tensor<Compute<T>> squares(Context& context, const Tensor<T>& x) const {
    return summed<Compute<T>>([&](std::int64_t b, const TensorView& part) {
      head_norm_squares(context, block_shape(), block(x.view(), b), part);
    });
  }
  [[nodiscard]] HeadSums sums(const TensorView& squares, const TensorView& products) const {
    return over != Over::kShards
               ? HeadSums()
               : HeadSums{squares, products, shape.width(), shape.kv_heads * shape.head_size};
  }

  template <typename T>
  void forward(Context& context, const Tensor<T>& x, const Tensor<T>& weight, Tensor<T>& y) const {
    Tensor<Compute<T>> of_x = squares(context, x);
    for (std::int64_t b = 0; b < blocks(); ++b) {
      head_norm_forward(context, block_shape(), block(x.view(), b),
                        block_of_weight(of_queries(weight.view()), b),
                        block_of_weight(of_keys(weight.view()), b), {kEpsilon, offset},
                        block(y.view(), b), sums(of_x.view(), {}));
    }
  }
  template <typename L>
  void forward(Context& context, L& l) const {
    forward(context, l.x, l.weight, l.y);
  }
  template <typename L>
  void backward(Context& context, L& l, Accumulate accumulate = Accumulate::kOverwrite) const {
    std::ranges::copy(l.dy.elements(), l.dx.elements().begin());
    const ConstTensorView queries = of_queries(l.weight.view());
    const ConstTensorView keys = of_keys(l.weight.view());
    Tensor<typename L::C> of_x = squares(context, l.x);
    Tensor<typename L::C> of_gradient = summed<typename L::C>([&](std::int64_t b,
                                                                  const TensorView& part) {
      head_norm_products(context, block_shape(), block(l.x.view(), b), block_of_weight(queries, b),
                         block_of_weight(keys, b), {kEpsilon, offset}, block(l.dx.view(), b), part);
    });
    for (std::int64_t b = 0; b < blocks(); ++b) {
      head_norm_backward(context, block_shape(), block(l.x.view(), b), block_of_weight(queries, b),
                         block_of_weight(keys, b), {kEpsilon, offset}, block(l.dx.view(), b),
                         block_of_weight(of_queries(l.dweight.view()), b),
                         block_of_weight(of_keys(l.dweight.view()), b), accumulate,
                         sums(of_x.view(), of_gradient.view()));
    }
  }
};

template <typename T>
using Layer = test::NormLayer<T, Heads>;

/// The output by the formula, in double.
template <typename T>
std::vector<double> normed(const Layer<T>& layer) {
  const auto& [shape, over, offset] = layer.norm;
  const double start = offset == WeightOffset::kOne ? 1.0 : 0.0;
  std::vector<double> result;
  for (const T element : layer.x.elements()) {
    result.push_back(as_double(element));
  }
  const auto element = [&, of = layer.norm.block_shape()](std::int64_t row, std::int64_t kv_head,
                                                          std::int64_t index,
                                                          std::int64_t i) -> double& {
    const std::int64_t block_row = kv_head / of.kv_heads * of.rows() + row;
    const std::int64_t head = kv_head % of.kv_heads * (of.queries + 2) + index;
    return result[static_cast<std::size_t>(block_row * of.qkv_width() + head * of.head_size + i)];
  };
  // Norms the heads that begin at those of `index`, `count` of each key-value head.
  const auto norm = [&, of = shape, all = over != Over::kHead](
                        std::int64_t index, std::int64_t count, std::int64_t first_weight) {
    for (std::int64_t row = 0; row < of.rows(); ++row) {
      std::vector<std::vector<double*>> groups(all ? 1U : 0U);
      for (std::int64_t head = 0; head < of.kv_heads * count; ++head) {
        if (!all) {
          groups.emplace_back();
        }
        for (std::int64_t i = 0; i < of.head_size; ++i) {
          groups.back().push_back(&element(row, head / count, index + head % count, i));
        }
      }
      for (const std::vector<double*>& group : groups) {
        double squares = 0.0;
        for (const double* value : group) {
          squares += *value * *value / static_cast<double>(group.size());
        }
        std::int64_t weight = first_weight;
        for (double* value : group) {
          *value *= (start + as_double(layer.weight[weight++])) / std::sqrt(squares + kEpsilon);
        }
      }
    }
  };
  norm(0, shape.queries, 0);
  norm(shape.queries, 1, layer.norm.query_weights());
  return result;
}

std::vector<Heads> all_heads() {
  std::vector<Heads> all;
  for (const Over over : {Over::kHead, Over::kRow, Over::kShards}) {
    for (const WeightOffset offset : {WeightOffset::kZero, WeightOffset::kOne}) {
      all.push_back({{.sequences = 2, .tokens = 2, .kv_heads = 2, .queries = 3, .head_size = 5},
                     over,
                     offset});
      all.push_back({{.tokens = 3, .kv_heads = 3, .head_size = 16}, over, offset});
      all.push_back({{.tokens = 2, .queries = 4, .head_size = 1}, over, offset});
    }
  }
  return all;
}

template <typename T>
class HeadNormTyped : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(HeadNormTyped, Types);

TYPED_TEST(HeadNormTyped, AgreesWithItsFormula) {
  using T = TypeParam;
  Context context(1);
  std::vector<Heads> all = all_heads();
  // A run of heads of more than 1024 elements.
  all.push_back({{.tokens = 3, .kv_heads = 2, .queries = 9, .head_size = 128}, Over::kRow});
  for (const Heads& heads : all) {
    Layer<T> layer(heads);
    layer.forward(context);
    EXPECT_LT((relative_error<T, double>(layer.y.elements(), normed(layer))), kStoredTolerance<T>)
        << heads.input().text();
    const Tensor<T> y(layer.y, 0);
    heads.forward(context, layer.x, layer.weight, layer.x);
    EXPECT_TRUE(layer.x.values() == y.values()) << heads.input().text() << " in place";
  }
}

TEST(HeadNorm, BackwardAgreesWithFiniteDifferences) {
  for (const Heads& heads : all_heads()) {
    test::expect_norm_gradients(heads);
  }
}

TYPED_TEST(HeadNormTyped, WeightGradientsAreAdded) {
  for (const Heads& heads : all_heads()) {
    test::expect_weight_gradients_added<TypeParam>(heads);
  }
}

TYPED_TEST(HeadNormTyped, BitsDependOnNeitherThreadsNorAlignment) {
  for (const Over over : {Over::kHead, Over::kRow, Over::kShards}) {
    test::expect_same_bits<TypeParam>(
        Heads{{.sequences = 3, .tokens = 50, .kv_heads = 2, .queries = 3, .head_size = 72}, over});
    test::expect_same_bits<TypeParam>(
        Heads{{.tokens = 77, .kv_heads = 3, .queries = 2, .head_size = 150}, over},
        Accumulate::kAdd);
  }
}

TYPED_TEST(HeadNormTyped, LeavesOutWeightGradientsThatAreEmpty) {
  Context context(1);
  Layer<TypeParam> whole({{.tokens = 4, .kv_heads = 2, .queries = 2, .head_size = 6}});
  whole.backward(context);
  Layer<TypeParam> layer(whole.norm);
  std::ranges::copy(layer.dy.elements(), layer.dx.elements().begin());
  head_norm_backward(context, layer.norm.shape, layer.x.view(),
                     layer.norm.of_queries(layer.weight.view()),
                     layer.norm.of_keys(layer.weight.view()), {kEpsilon}, layer.dx.view(), {}, {});
  EXPECT_TRUE(layer.dx.values() == whole.dx.values());
}

TEST(HeadNorm, ChecksWhatItIsGiven) {
  Context context(1);
  Layer<BFloat16> layer({{.tokens = 2, .kv_heads = 2, .queries = 2, .head_size = 4}});
  const auto forward = [&](const TensorView& queries, const TensorView& keys) {
    head_norm_forward(context, layer.norm.shape, layer.x.view(), queries, keys, {}, layer.y.view());
  };
  Tensor<BFloat16> of_head({4});
  Tensor<BFloat16> of_keys({8});
  Tensor<float> wide({4});
  EXPECT_NO_THROW(forward(of_head.view(), of_keys.view()));
  EXPECT_THROW(forward(of_keys.view(), of_head.view()), std::logic_error);
  EXPECT_THROW(forward(wide.view(), of_head.view()), std::logic_error);
  EXPECT_THROW(forward(of_head.view(), wide.view()), std::logic_error);
  EXPECT_THROW(head_norm_backward(context, layer.norm.shape, layer.x.view(), of_head.view(),
                                  of_head.view(), {}, layer.dx.view(), of_head.view(), wide.view()),
               std::logic_error);
  // Sums of one root mean square for all heads.
  Tensor<float> sums({2, 2});
  Tensor<BFloat16> of_queries({16});
  const auto summed = [&](const TensorView& keys, const TensorView& squares) {
    head_norm_forward(context, layer.norm.shape, layer.x.view(), of_queries.view(), keys, {},
                      layer.y.view(), {squares, {}, 32, 16});
  };
  EXPECT_NO_THROW(summed(of_keys.view(), sums.view()));
  EXPECT_THROW(summed(of_head.view(), sums.view()), std::logic_error);
  EXPECT_THROW(summed(of_keys.view(), wide.view()), std::logic_error);
  EXPECT_THROW(head_norm_squares(context, layer.norm.shape, layer.x.view(), wide.view()),
               std::logic_error);
}

}  // namespace
}  // namespace strata::ops::head_norm_test
