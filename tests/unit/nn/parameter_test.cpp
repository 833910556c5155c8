#include "strata/nn/parameter.hpp"

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/random.hpp"

namespace strata::nn::parameter_test {
namespace {

std::vector<float> initialised(const ParameterSpec& spec, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(spec.shape.count()), -9.0F);
  initialise({.spec = spec, .shape = spec.shape}, seed, 0,
             TensorView(std::span(values), spec.shape));
  return values;
}

TEST(LayoutOf, BeginsEveryParameterAtABlock) {
  const std::vector<ParameterSpec> all{{.name = "a", .shape = {1}, .layer = 0},
                                       {.name = "b", .shape = {1024}, .layer = 1},
                                       {.name = "c", .shape = {5, 205}, .layer = 1},
                                       {.name = "d", .shape = {3}, .layer = 2}};
  const ParameterLayout whole = layout_of(all, {0, 3});
  ASSERT_EQ(whole.parameters.size(), 4U);
  const std::vector<std::int64_t> offsets{0, 1024, 2048, 4096};
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    EXPECT_EQ(whole.parameters[i].offset, offsets[i]);
    EXPECT_EQ(whole.parameters[i].index, static_cast<std::int64_t>(i));
  }
  EXPECT_EQ(whole.elements, 5120);
  // A stage's layout begins anew but keeps the canonical numbers.
  const ParameterLayout middle = layout_of(all, {1, 2});
  ASSERT_EQ(middle.parameters.size(), 2U);
  EXPECT_EQ(middle.parameters[0].spec.name, "b");
  EXPECT_EQ(middle.parameters[0].offset, 0);
  EXPECT_EQ(middle.parameters[1].index, 2);
  EXPECT_EQ(middle.elements, 1024 + 2048);
  EXPECT_EQ(layout_of(all, {3, 9}).elements, 0);
}

TEST(Initialise, IsAFunctionOfSeedNameAndIndexOnly) {
  const ParameterSpec wide{.name = "w", .shape = {4, 30}, .initializer = Initializer::kHe};
  ParameterSpec tall = wide;
  tall.shape = {60, 2};
  tall.layer = 7;
  EXPECT_EQ(initialised(wide, 1), initialised(tall, 1));
  ParameterSpec shorter = wide;
  shorter.shape = {10};
  const std::vector<float> all = initialised(wide, 1);
  EXPECT_EQ(initialised(shorter, 1), std::vector<float>(all.begin(), all.begin() + 10));
  ParameterSpec other = wide;
  other.name = "v";
  EXPECT_NE(initialised(other, 1), all);
  EXPECT_NE(initialised(wide, 2), all);
}

TEST(Initialise, TakesTheRandomNumbersOfItsStream) {
  const ParameterSpec spec{
      .name = "w", .shape = {50}, .initializer = Initializer::kFanIn, .fan_in = 16};
  const RandomStream stream(3, RandomPurpose::kInitialise, subject_of("w"));
  const std::vector<float> values = initialised(spec, 3);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i], static_cast<float>((2.0 * stream.uniform(i) - 1.0) / 4.0));
  }
}

TEST(Initialise, HasTheDeviationOfItsKind) {
  struct Case {
    Initializer initializer;
    double deviation;
    double largest;
  };
  constexpr double kUnbounded = 1e9;
  const std::vector<Case> cases{
      {Initializer::kFanIn, 1.0 / std::sqrt(3.0 * 64.0), 1.0 / 8.0},
      {Initializer::kGlorot, std::sqrt(2.0 / 96.0), std::sqrt(6.0 / 96.0)},
      {Initializer::kHe, std::sqrt(2.0 / 64.0), kUnbounded},
      {Initializer::kNormal, 0.02, kUnbounded},
      {Initializer::kZeros, 0.0, 0.0}};
  for (const Case& c : cases) {
    const ParameterSpec spec{.name = "w",
                             .shape = {32, 64 * 20},
                             .initializer = c.initializer,
                             .fan_in = 64,
                             .fan_out = 32};
    double mean = 0.0;
    double square = 0.0;
    const std::vector<float> values = initialised(spec, 1);
    const auto count = static_cast<double>(values.size());
    for (const float value : values) {
      EXPECT_LE(std::fabs(static_cast<double>(value)), c.largest * (1.0 + 1e-6));
      mean += static_cast<double>(value) / count;
      square += static_cast<double>(value) * static_cast<double>(value) / count;
    }
    // 40,960 values: five standard errors are 2.5 % of the deviation for the mean, 1.8 % of the
    // deviation itself.
    EXPECT_NEAR(mean, 0.0, 0.025 * c.deviation) << name_of(c.initializer);
    EXPECT_NEAR(std::sqrt(square), c.deviation, 0.018 * c.deviation) << name_of(c.initializer);
  }
  const ParameterSpec ones{.name = "w", .shape = {3}, .initializer = Initializer::kOnes};
  EXPECT_EQ(initialised(ones, 1), std::vector<float>(3, 1.0F));
}

TEST(Initialise, RefusesMoreElementsThanThereAre) {
  const ParameterSpec spec{.name = "w", .shape = {2, 3}};
  std::vector<float> values(6);
  EXPECT_THROW(initialise({.spec = spec, .shape = spec.shape}, 1, 1,
                          TensorView(std::span(values), Shape{6})),
               std::logic_error);
}

TEST(Initialise, GivesASliceItsShareOfTheWhole) {
  ParameterSpec spec{.name = "w", .shape = {5, 6}, .initializer = Initializer::kHe};
  const std::vector<float> whole = initialised(spec, 3);
  for (const std::int64_t dimension : {0, 1}) {
    spec.split = dimension;
    for (std::int64_t shard = 0; shard < 4; ++shard) {
      const ParameterLayout layout =
          layout_of({spec}, {0, 1}, {.count = 4, .own = {shard, shard + 1}});
      ASSERT_EQ(layout.parameters.size(), 1U);
      const PlacedParameter& slice = layout.parameters.front();
      std::vector<float> values(static_cast<std::size_t>(slice.shape.count()));
      initialise(slice, 3, 0, TensorView(std::span(values), slice.shape));
      for (std::int64_t i = 0; i < slice.shape[0]; ++i) {
        for (std::int64_t j = 0; j < slice.shape[1]; ++j) {
          const std::int64_t row = dimension == 0 ? slice.first_index + i : i;
          const std::int64_t column = dimension == 1 ? slice.first_index + j : j;
          EXPECT_EQ(values[static_cast<std::size_t>(i * slice.shape[1] + j)],
                    whole[static_cast<std::size_t>(row * 6 + column)]);
        }
      }
    }
  }
}

TEST(LayoutOf, PlacesEverySliceOfTheOwnShards) {
  const std::vector<ParameterSpec> all{
      {.name = "table", .shape = {10, 300}, .layer = 0, .split = 0},
      {.name = "gain", .shape = {300}, .layer = 1},
      {.name = "down", .shape = {8, 400}, .layer = 1, .split = 1}};
  const ParameterLayout layout = layout_of(all, {0, 2}, {.count = 4, .own = {0, 2}});
  ASSERT_EQ(layout.parameters.size(), 5U);
  EXPECT_EQ(layout.parameters[0].shape, (Shape{3, 300}));
  EXPECT_EQ(layout.parameters[1].shape, (Shape{3, 300}));
  EXPECT_EQ(layout.parameters[1].first_index, 3);
  EXPECT_EQ(layout.parameters[2].spec.name, "gain");
  EXPECT_EQ(layout.parameters[3].shape, (Shape{8, 100}));
  EXPECT_EQ(layout.parameters[4].first_index, 100);
  EXPECT_EQ(layout.elements, layout.weight_elements);
}

TEST(LayoutOf, PlacesBorrowedParametersLast) {
  const std::vector<ParameterSpec> all{{.name = "table", .shape = {9, 300}, .layer = 0, .split = 0},
                                       {.name = "gain", .shape = {300}, .layer = 1},
                                       {.name = "table",
                                        .shape = {9, 300},
                                        .layer = 2,
                                        .split = 0,
                                        .ownership = Ownership::kBorrowed},
                                       {.name = "bias", .shape = {9}, .layer = 2}};
  const ParameterLayout whole = layout_of(all, {0, 3});
  EXPECT_EQ(whole.shared, (grid::Range{0, 3072}));
  EXPECT_EQ(whole.borrowed, (grid::Range{5120, 8192}));
  EXPECT_EQ(whole.weight_elements, 5120);
  EXPECT_EQ(whole.elements, 8192);
  const ParameterLayout last = layout_of(all, {1, 3});
  EXPECT_EQ(last.shared.count(), 0);
  EXPECT_EQ(last.borrowed, (grid::Range{2048, 5120}));
  EXPECT_EQ(last.weight_elements, 5120);
}

TEST(LayoutOf, PlacesChunksOneAfterTheOther) {
  const std::vector<ParameterSpec> all{
      {.name = "table", .shape = {3000}, .layer = 0},
      {.name = "up", .shape = {1025}, .layer = 1},
      {.name = "gain", .shape = {7}, .layer = 3},
      {.name = "table", .shape = {3000}, .layer = 4, .ownership = Ownership::kBorrowed},
      {.name = "bias", .shape = {9}, .layer = 4}};
  using Numbers = std::vector<std::int64_t>;
  struct Case {
    std::vector<grid::Range> chunks;
    Numbers indices;
    Numbers offsets;
    Numbers chunk_begins;
    std::int64_t weights;
    std::int64_t elements;
  };
  const std::vector<Case> cases{
      {{{0, 5}}, {0, 1, 2, 4, 3}, {0, 3072, 5120, 6144, 7168}, {}, 7168, 10240},
      // As zb-v places them: the owner of the table and its borrower are on one stage.
      {{{0, 1}, {4, 5}}, {0, 4, 3}, {0, 3072, 4096}, {3072}, 4096, 7168},
      {{{0, 1}, {3, 4}}, {0, 2}, {0, 3072}, {3072}, 4096, 4096},
      {{{1, 2}, {4, 5}}, {1, 4, 3}, {0, 2048, 3072}, {2048}, 6144, 6144},
      {{{0, 1}, {1, 2}, {3, 5}},
       {0, 1, 2, 4, 3},
       {0, 3072, 5120, 6144, 7168},
       {3072, 5120},
       7168,
       10240},
      // Layer 2 has no parameters.
      {{{0, 1}, {2, 3}, {3, 4}}, {0, 2}, {0, 3072}, {3072, 3072}, 4096, 4096},
      {{{2, 3}, {3, 4}}, {2}, {0}, {0}, 1024, 1024}};
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c.offsets));
    const ParameterLayout layout = layout_of(all, c.chunks);
    Numbers indices;
    Numbers offsets;
    for (const PlacedParameter& placed : layout.parameters) {
      indices.push_back(placed.index);
      offsets.push_back(placed.offset);
    }
    EXPECT_EQ(indices, c.indices);
    EXPECT_EQ(offsets, c.offsets);
    EXPECT_EQ(layout.chunk_begins, c.chunk_begins);
    EXPECT_EQ(layout.weight_elements, c.weights);
    EXPECT_EQ(layout.elements, c.elements);
  }
}

}  // namespace
}  // namespace strata::nn::parameter_test
