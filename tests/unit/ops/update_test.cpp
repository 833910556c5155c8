#include "strata/ops/update.hpp"

#include <functional>

#include "tensors.hpp"

namespace strata::ops::update_test {
namespace {

using namespace test;

constexpr std::int64_t kCount = 40003;
constexpr double kRate = 0.05;
constexpr double kDecay = 0.01;
constexpr double kClip = 0.5;

/// A parameter's slice with what an optimizer keeps of it.
template <typename T>
struct Slice {
  explicit Slice(std::size_t misalignment = 0)
      : weight(randoms<T>({kCount}, 1, 1.0, misalignment)),
        first({kCount}, misalignment),
        second({kCount}, misalignment) {}

  Tensor<T> weight;
  Tensor<T> first;
  Tensor<T> second;
};

/// One update of elements [begin, begin + count).
template <typename T>
using Update = std::function<void(Context&, Slice<T>&, const Tensor<T>& gradient, std::int64_t step,
                                  std::int64_t begin, std::int64_t count)>;

SgdOptions sgd(double momentum, Switch nesterov) {
  return {kRate, momentum, nesterov, kDecay, kClip};
}

AdamOptions adam(DecayKind decay, std::int64_t step) {
  AdamOptions options;
  options.learning_rate = kRate;
  options.weight_decay = kDecay;
  options.decay = decay;
  options.step = step;
  options.gradient_scale = kClip;
  return options;
}

template <typename T>
Update<T> sgd_of(double momentum, Switch nesterov) {
  return [=](Context& context, Slice<T>& slice, const Tensor<T>& gradient, std::int64_t,
             std::int64_t begin, std::int64_t count) {
    const TensorView velocity =
        momentum == 0.0 ? TensorView{} : slice.first.view().flat_slice(begin, count);
    sgd_update(context, slice.weight.view().flat_slice(begin, count),
               gradient.view().flat_slice(begin, count), velocity, sgd(momentum, nesterov));
  };
}

template <typename T>
Update<T> adam_of(DecayKind decay) {
  return [=](Context& context, Slice<T>& slice, const Tensor<T>& gradient, std::int64_t step,
             std::int64_t begin, std::int64_t count) {
    adam_update(context, slice.weight.view().flat_slice(begin, count),
                gradient.view().flat_slice(begin, count),
                slice.first.view().flat_slice(begin, count),
                slice.second.view().flat_slice(begin, count), adam(decay, step));
  };
}

template <typename T>
Update<T> adagrad() {
  return [](Context& context, Slice<T>& slice, const Tensor<T>& gradient, std::int64_t,
            std::int64_t begin, std::int64_t count) {
    adagrad_update(context, slice.weight.view().flat_slice(begin, count),
                   gradient.view().flat_slice(begin, count),
                   slice.first.view().flat_slice(begin, count), {kRate, 1e-10, kDecay, kClip});
  };
}

/// The formulas of each optimizer for one element, in plain double.
struct Reference {
  double w = 0.0;
  double first = 0.0;
  double second = 0.0;

  void sgd(double gradient, double momentum, Switch nesterov) {
    const double g = kClip * gradient + kDecay * w;
    first = momentum * first + g;
    w -= kRate * (nesterov == Switch::kOn ? g + momentum * first : first);
  }
  void adam(double gradient, DecayKind decay, std::int64_t step) {
    double g = kClip * gradient;
    if (decay == DecayKind::kDecoupled) {
      w -= kRate * kDecay * w;
    } else {
      g += kDecay * w;
    }
    first = 0.9 * first + 0.1 * g;
    second = 0.999 * second + 0.001 * g * g;
    const double corrected_first = first / (1.0 - std::pow(0.9, step));
    const double corrected_second = second / (1.0 - std::pow(0.999, step));
    w -= kRate * corrected_first / (std::sqrt(corrected_second) + 1e-8);
  }
  void adagrad(double gradient) {
    const double g = kClip * gradient + kDecay * w;
    first += g * g;
    w -= kRate * g / (std::sqrt(first) + 1e-10);
  }
};

template <typename T>
struct Named {
  const char* name;
  Update<T> update;
  std::function<void(Reference&, double gradient, std::int64_t step)> reference;
};

template <typename T>
std::vector<Named<T>> all() {
  const auto sgd_reference = [](double momentum, Switch nesterov) {
    return [=](Reference& r, double g, std::int64_t) { r.sgd(g, momentum, nesterov); };
  };
  const auto adam_reference = [](DecayKind decay) {
    return [=](Reference& r, double g, std::int64_t step) { r.adam(g, decay, step); };
  };
  return {{"sgd", sgd_of<T>(0.0, Switch::kOff), sgd_reference(0.0, Switch::kOff)},
          {"momentum", sgd_of<T>(0.9, Switch::kOff), sgd_reference(0.9, Switch::kOff)},
          {"nesterov", sgd_of<T>(0.9, Switch::kOn), sgd_reference(0.9, Switch::kOn)},
          {"adam", adam_of<T>(DecayKind::kInGradient), adam_reference(DecayKind::kInGradient)},
          {"adamw", adam_of<T>(DecayKind::kDecoupled), adam_reference(DecayKind::kDecoupled)},
          {"adagrad", adagrad<T>(), [](Reference& r, double g, std::int64_t) { r.adagrad(g); }}};
}

template <typename T>
class UpdateTyped : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(UpdateTyped, Types);

TYPED_TEST(UpdateTyped, FollowsItsFormulasForFiveSteps) {
  using T = TypeParam;
  Context context(1);
  for (const Named<T>& optimizer : all<T>()) {
    Slice<T> slice;
    std::vector<Reference> references(kCount);
    for (std::int64_t i = 0; i < kCount; ++i) {
      references[static_cast<std::size_t>(i)].w = static_cast<double>(slice.weight[i]);
    }
    for (std::int64_t step = 1; step <= 5; ++step) {
      const auto gradient = randoms<T>({kCount}, static_cast<std::uint64_t>(10 + step));
      optimizer.update(context, slice, gradient, step, 0, kCount);
      for (std::int64_t i = 0; i < kCount; ++i) {
        optimizer.reference(references[static_cast<std::size_t>(i)],
                            static_cast<double>(gradient[i]), step);
      }
    }
    std::vector<double> expected;
    for (const Reference& reference : references) {
      expected.push_back(reference.w);
    }
    EXPECT_LT((relative_error<T, double>(slice.weight.elements(), expected)),
              sizeof(T) == 4 ? 1e-6 : 1e-14)
        << optimizer.name;
  }
}

TYPED_TEST(UpdateTyped, BitsDependOnNeitherSlicesNorThreadsNorAlignment) {
  using T = TypeParam;
  for (const Named<T>& optimizer : all<T>()) {
    Context one(1);
    Slice<T> whole;
    for (std::int64_t step = 1; step <= 2; ++step) {
      optimizer.update(one, whole, randoms<T>({kCount}, 7), step, 0, kCount);
    }
    for (const int threads : {1, 2, 4}) {
      Context context(threads);
      Slice<T> parts(3);
      for (std::int64_t step = 1; step <= 2; ++step) {
        const auto gradient = randoms<T>({kCount}, 7, 1.0, 1);
        for (const auto& [begin, count] :
             {std::pair<std::int64_t, std::int64_t>{0, 5}, {5, 20002}, {20007, kCount - 20007}}) {
          optimizer.update(context, parts, gradient, step, begin, count);
        }
      }
      EXPECT_TRUE(whole.weight.values() == parts.weight.values()) << optimizer.name;
      EXPECT_TRUE(whole.first.values() == parts.first.values()) << optimizer.name;
      EXPECT_TRUE(whole.second.values() == parts.second.values()) << optimizer.name;
    }
  }
}

TEST(Update, RefusesWhatDoesNotFit) {
  Context context(1);
  Tensor<float> weight({4});
  const Tensor<float> gradient({5});
  const Tensor<float> fits({4});
  EXPECT_THROW(sgd_update(context, weight.view(), gradient.view(), {}, {.learning_rate = 0.1}),
               std::logic_error);
  EXPECT_THROW(
      sgd_update(context, weight.view(), fits.view(), {}, {.learning_rate = 0.1, .momentum = 0.9}),
      std::logic_error);
}

}  // namespace
}  // namespace strata::ops::update_test
