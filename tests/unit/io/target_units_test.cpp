#include <cmath>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/io/import.hpp"
#include "strata/io/loader.hpp"

#include "data_files.hpp"

namespace strata::io::target_units_test {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;

/// Samples i = 0, 2, 4, 6 with the targets 1000 + 10 i and 7.
Dataset import_values(const test::TemporaryDirectory& directory) {
  test::write_file(directory / "x.npy", test::npy_of<double>("<f8", "(4, 1)", {0, 2, 4, 6}));
  test::write_file(directory / "y.npy",
                   test::npy_of<double>("<f8", "(4, 2)", {1000, 7, 1020, 7, 1040, 7, 1060, 7}));
  ImportOptions options;
  options.format = ImportFormat::kNpy;
  options.inputs = {directory / "x.npy"};
  options.targets = {directory / "y.npy"};
  options.split = "4";
  options.output = directory / "out";
  return Dataset::open(import_dataset(options).train);
}

TEST(TargetUnits, ImportStoresStatistics) {
  const test::TemporaryDirectory directory;
  const DatasetInfo info = import_values(directory).info();
  // By numpy: y.mean(0), y.std(0).
  EXPECT_THAT(info.target_mean, ElementsAre(DoubleEq(1030), DoubleEq(7)));
  EXPECT_THAT(info.target_deviation, ElementsAre(DoubleEq(std::sqrt(500)), DoubleEq(0)));
}

TEST(TargetUnits, LoaderStandardisesEachTarget) {
  const test::TemporaryDirectory directory;
  const Dataset dataset = import_values(directory);
  LoaderOptions options;
  options.order = Order::kSequential;
  options.global_batch = options.microbatch = 4;
  options.compute_dtype = DType::kFloat64;
  Loader stored(dataset, options);
  options.target_mean = {1000, 5};
  options.target_deviation = {10, 4};
  // Statistics of inputs are those of the options too, not those of the data set.
  options.normalise = Normalise::kStandard;
  options.mean = {-1};
  options.deviation = {2};
  Loader loader(dataset, options);
  const LoadedStep& plain = stored.next();
  const LoadedStep& step = loader.next();
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double input = plain.inputs(0).host<double>()[at];
    EXPECT_EQ(plain.targets(0).host<double>()[2 * at], 1000 + 10 * input);
    EXPECT_EQ(step.inputs(0).host<double>()[at], (input + 1) / 2);
    EXPECT_EQ(step.targets(0).host<double>()[2 * at], input);
    EXPECT_EQ(step.targets(0).host<double>()[2 * at + 1], 0.5);
  }
}

}  // namespace
}  // namespace strata::io::target_units_test
