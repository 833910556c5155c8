#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/io/loader.hpp"

#include "data_files.hpp"

namespace strata::io {
namespace {

using test::TemporaryDirectory;
using ::testing::HasSubstr;

constexpr std::int64_t kChannels = 3;
constexpr std::int64_t kHeight = 4;
constexpr std::int64_t kWidth = 5;
constexpr std::int64_t kElements = kChannels * kHeight * kWidth;

// Images of three channels of which the second is brighter than the first, and the third the same
// everywhere.
std::uint8_t colour(std::int64_t sample, std::int64_t element) {
  const std::int64_t channel = element / (kHeight * kWidth);
  return static_cast<std::uint8_t>(channel == 2 ? 9
                                                : test::pixel(sample, element) / 2 + channel * 64);
}

Dataset colours(const TemporaryDirectory& directory, std::int64_t count) {
  std::vector<std::uint8_t> x;
  std::vector<std::int64_t> y;
  for (std::int64_t sample = 0; sample < count; ++sample) {
    for (std::int64_t element = 0; element < kElements; ++element) {
      x.push_back(colour(sample, element));
    }
    y.push_back(sample % 3);
  }
  const std::string rows = std::to_string(count);
  test::write_file(directory / "x.npy", test::npy_of("|u1", "(" + rows + ", 3, 4, 5)", x));
  test::write_file(directory / "y.npy", test::npy_of("<i8", "(" + rows + ",)", y));
  ImportOptions options;
  options.format = ImportFormat::kNpy;
  options.inputs = {directory / "x.npy"};
  options.targets = {directory / "y.npy"};
  options.split = rows;
  options.output = directory / "out";
  return Dataset::open(import_dataset(options).train);
}

TEST(LoaderImages, HaveStatisticsOfEachChannel) {
  const TemporaryDirectory directory;
  const Dataset dataset = colours(directory, 7);
  ASSERT_EQ(dataset.info().mean.size(), 3U);
  for (std::int64_t channel = 0; channel < kChannels; ++channel) {
    double sum = 0;
    double squares = 0;
    for (std::int64_t i = 0; i < 7 * kHeight * kWidth; ++i) {
      const double x =
          colour(i / (kHeight * kWidth), channel * kHeight * kWidth + i % (kHeight * kWidth));
      sum += x;
      squares += x * x;
    }
    const double mean = sum / (7 * kHeight * kWidth);
    const auto at = static_cast<std::size_t>(channel);
    EXPECT_NEAR(dataset.info().mean[at], mean, 1e-10);
    EXPECT_NEAR(dataset.info().deviation[at],
                std::sqrt(std::max(0.0, squares / (7 * kHeight * kWidth) - mean * mean)), 1e-10);
  }
  EXPECT_THAT(inspect_dataset(dataset.info().path, Inspect::kDescribe).text, HasSubstr("channel"));
}

TEST(LoaderImages, ComeChannelsLast) {
  const TemporaryDirectory directory;
  const Dataset dataset = colours(directory, 4);
  EXPECT_EQ(channels_last(dataset.info().input_shape), (Shape{kHeight, kWidth, kChannels}));
  for (const Normalise normalise : {Normalise::kNone, Normalise::kUnit, Normalise::kStandard}) {
    LoaderOptions options;
    options.order = Order::kSequential;
    options.global_batch = 4;
    options.microbatch = 4;
    options.compute_dtype = DType::kFloat64;
    options.normalise = normalise;
    Loader loader(dataset, options);
    const ConstTensorView view = loader.next().inputs(0);
    EXPECT_EQ(view.shape(), (Shape{4, kHeight, kWidth, kChannels}));
    const auto values = view.host<double>();
    for (std::int64_t i = 0; i < 4 * kElements; ++i) {
      const std::int64_t channel = i % kChannels;
      const std::int64_t pixel = i / kChannels % (kHeight * kWidth);
      const double stored = colour(i / kElements, channel * kHeight * kWidth + pixel);
      const auto at = static_cast<std::size_t>(channel);
      double expected = stored;
      if (normalise == Normalise::kUnit) {
        expected = stored / 255.0;
      } else if (normalise == Normalise::kStandard) {
        const double deviation = dataset.info().deviation[at];
        expected = (stored - dataset.info().mean[at]) / (deviation == 0 ? 1.0 : deviation);
      }
      ASSERT_EQ(values[static_cast<std::size_t>(i)], expected) << i;
    }
  }
}

}  // namespace
}  // namespace strata::io
