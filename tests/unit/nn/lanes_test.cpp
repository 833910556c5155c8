// Layers that compute one microbatch of every lane at once.
#include <gtest/gtest.h>

#include "strata/nn/model.hpp"

#include "layer_gradients.hpp"

namespace strata::nn::test {
namespace {

constexpr std::int64_t kLanes = 3;
constexpr std::int64_t kRows = 2;  // of a lane's microbatch
const Shape kImages{2, 3, 2};

Model model_of(std::int64_t lanes, const std::string& norm) {
  return Model({.layers = {"relu name=before", "conv 4 1", norm, "tanh", norm + " relu", "flatten"},
                .input_shape = kImages,
                .outputs = 4 * 3 * 2,
                .seed = 4,
                .step_microbatches = lanes,
                .lanes = lanes});
}

/// The stage behind the first layer, its passes over as many microbatches as there are lanes.
class Bench {
 public:
  Bench(std::int64_t lanes, std::int64_t rows, const std::string& norm, BackwardOrder order)
      : model(model_of(lanes, norm)),
        group(lanes),
        bench(model, spec_for(model, lanes, rows, order), comm::ShardGroup(1), &group),
        sink(bench.layout().elements) {
    for (std::int64_t k = 0; k < lanes; ++k) {
      concurrent.push_back({.number = k, .execution_index = k, .first_sample = k * rows});
    }
  }

  static StageSpec spec_for(const Model& model, std::int64_t lanes, std::int64_t rows,
                            BackwardOrder order) {
    StageSpec spec = spec_of<double>({1, model.layer_count()}, rows);
    spec.pass.concurrent_lanes = lanes;
    spec.order = order;
    return spec;
  }

  /// Values of all lanes, one after the other.
  std::vector<double> forward(const std::vector<double>& input) {
    scatter(input, [&](std::int64_t execution_index) {
      return bench.stage().inputs_of(execution_index).front();
    });
    bench.stage().forward(concurrent, Mode::kTraining);
    std::vector<double> outputs;
    for (const Microbatch& microbatch : concurrent) {
      const std::span<const double> values =
          bench.stage().outputs_of(microbatch).front().host<double>();
      outputs.insert(outputs.end(), values.begin(), values.end());
    }
    return outputs;
  }

  /// The input's gradient; the weights' are in the sink.
  std::vector<double> backward(const std::vector<double>& output_gradient) {
    scatter(output_gradient, [&](std::int64_t execution_index) {
      return bench.stage().output_gradients_of(execution_index).front();
    });
    bench.stage().backward_input(concurrent, sink);
    bench.stage().backward_weight(concurrent, sink);
    std::vector<double> gradient;
    for (const Microbatch& microbatch : concurrent) {
      const std::span<const double> values =
          bench.stage().input_gradients_of(microbatch.execution_index).front().host<double>();
      gradient.insert(gradient.end(), values.begin(), values.end());
    }
    return gradient;
  }

  Model model;
  comm::PartitionedGroup group;
  StageBench<double> bench;
  ArenaSink<double> sink;
  std::vector<Microbatch> concurrent;

 private:
  template <typename BufferOf>
  void scatter(const std::vector<double>& values, const BufferOf& buffer_of) {
    auto from = values.begin();
    for (const Microbatch& microbatch : concurrent) {
      const std::span<double> buffer =
          buffer_of(microbatch.execution_index).template host<double>();
      std::copy(from, from + std::ssize(buffer), buffer.begin());
      from += std::ssize(buffer);
    }
    ASSERT_EQ(from, values.end());
  }
};

void expect_near(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(a[i], b[i], 1e-12) << i;
  }
}

class ConcurrentLanes : public testing::TestWithParam<BackwardOrder> {};

TEST_P(ConcurrentLanes, GiveWhatOneMicrobatchOfAllSamplesGives) {
  const std::int64_t samples = kLanes * kRows;
  Bench lanes(kLanes, kRows, "batch_norm sync=yes momentum=0.3", GetParam());
  Bench whole(1, samples, "batch_norm momentum=0.3", GetParam());
  ASSERT_TRUE(lanes.model.joins_lanes());
  ASSERT_FALSE(whole.model.joins_lanes());
  const std::vector<double> input = numbers<double>(samples * kImages.count(), 1);
  const std::vector<double> factors = numbers<double>(samples * 24, 2);
  expect_near(lanes.forward(input), whole.forward(input));
  expect_near(lanes.backward(factors), whole.backward(factors));
  // These include running statistics, which the microbatches of all lanes update once.
  expect_near(lanes.sink.gradients(), whole.sink.gradients());
  for (std::size_t p = 0; p < lanes.model.parameters().size(); ++p) {
    EXPECT_EQ(lanes.model.parameters()[p].keep, whole.model.parameters()[p].keep);
  }
}

TEST_P(ConcurrentLanes, ShareTheirStatistics) {
  Bench joined(kLanes, kRows, "batch_norm sync=yes", GetParam());
  Bench apart(kLanes, kRows, "batch_norm", GetParam());
  const std::vector<double> input = numbers<double>(kLanes * kRows * kImages.count(), 1);
  EXPECT_NE(joined.forward(input), apart.forward(input));
}

INSTANTIATE_TEST_SUITE_P(Orders, ConcurrentLanes,
                         testing::Values(BackwardOrder::kSplit, BackwardOrder::kFused),
                         [](const auto& order) {
                           return order.param == BackwardOrder::kSplit ? "split" : "fused";
                         });

TEST(ConcurrentLanesErrors, OfAStageWithoutAGroup) {
  const Model model = model_of(kLanes, "batch_norm sync=yes");
  EXPECT_THROW(
      StageBench<double>(model, Bench::spec_for(model, kLanes, kRows, BackwardOrder::kSplit)),
      std::logic_error);
}

}  // namespace
}  // namespace strata::nn::test
