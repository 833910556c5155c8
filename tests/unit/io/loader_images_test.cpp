#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/random.hpp"
#include "strata/io/loader.hpp"

#include "data_files.hpp"

namespace strata::io::loader_images_test {
namespace {

using test::error_of;
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
  const ImportOptions options =
      test::npy_options(directory, rows, test::npy_of("|u1", "(" + rows + ", 3, 4, 5)", x),
                        test::npy_of("<i8", "(" + rows + ",)", y));
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

LoaderOptions augmented(const Augmentation& augmentation) {
  LoaderOptions options;
  options.seed = 5;
  options.global_batch = 12;
  options.microbatch = 12;
  options.steps = 6;
  options.normalise = Normalise::kStandard;
  options.augmentation = augmentation;
  return options;
}

// All inputs that a loader gives, step by step, in the order of places.
std::vector<float> all_inputs(const Dataset& dataset, const LoaderOptions& options) {
  Loader loader(dataset, options);
  std::vector<float> all;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const LoadedStep& loaded = loader.next();
    for (std::int64_t m = 0; m < std::ssize(options.offsets); ++m) {
      const auto values = loaded.inputs(m).host<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

using Picture = std::vector<std::vector<std::vector<float>>>;  // [y][x][channel]

Picture zeros(std::int64_t height, std::int64_t width) {
  return Picture(
      static_cast<std::size_t>(height),
      std::vector(static_cast<std::size_t>(width), std::vector<float>(std::size_t{kChannels})));
}

std::uint64_t scaled(std::uint32_t word, std::int64_t choices) {
  return static_cast<std::uint64_t>(word) * static_cast<std::uint64_t>(choices) >> 32U;
}

// As augmentation is described, step by step on whole pictures: padded, cut, mirrored, cut out.
Picture plainly_augmented(const Picture& image, const Augmentation& augmentation,
                          std::uint64_t seed, std::int64_t place) {
  const RandomStream random(seed, RandomPurpose::kAugment, 0);
  const auto words = random.words(static_cast<std::uint64_t>(place), 0);
  const auto more = random.words(static_cast<std::uint64_t>(place), 1);
  const auto padding = static_cast<std::size_t>(augmentation.crop_padding);
  Picture padded =
      zeros(kHeight + 2 * augmentation.crop_padding, kWidth + 2 * augmentation.crop_padding);
  for (std::size_t y = 0; y < image.size(); ++y) {
    for (std::size_t x = 0; x < image[y].size(); ++x) {
      padded[y + padding][x + padding] = image[y][x];
    }
  }
  Picture result = zeros(kHeight, kWidth);
  for (std::size_t y = 0; y < result.size(); ++y) {
    for (std::size_t x = 0; x < result[y].size(); ++x) {
      result[y][x] = padded[y + scaled(words[1], 2 * augmentation.crop_padding + 1)]
                           [x + scaled(words[2], 2 * augmentation.crop_padding + 1)];
    }
    if (augmentation.flip == Switch::kOn && words[0] >= 0x80000000U) {
      std::reverse(result[y].begin(), result[y].end());
    }
  }
  const std::int64_t side = augmentation.cutout;
  const auto top = static_cast<std::int64_t>(scaled(more[0], kHeight)) - side / 2;
  const auto left = static_cast<std::int64_t>(scaled(more[1], kWidth)) - side / 2;
  for (std::int64_t y = 0; y < kHeight; ++y) {
    for (std::int64_t x = 0; x < kWidth; ++x) {
      if (y >= top && y < top + side && x >= left && x < left + side) {
        result[static_cast<std::size_t>(y)][static_cast<std::size_t>(x)] = {0, 0, 0};
      }
    }
  }
  return result;
}

TEST(Augmentation, DoesWhatItsDescriptionSays) {
  const TemporaryDirectory directory;
  const Dataset dataset = colours(directory, 7);
  for (const Augmentation& augmentation :
       {Augmentation{.flip = Switch::kOn}, Augmentation{.crop_padding = 2},
        Augmentation{.cutout = 3}, Augmentation{.cutout = 2},
        Augmentation{.flip = Switch::kOn, .crop_padding = 4, .cutout = 1}}) {
    LoaderOptions options = augmented(augmentation);
    const std::vector<float> changed = all_inputs(dataset, options);
    options.augmentation = {};
    const std::vector<float> plain = all_inputs(dataset, options);
    EXPECT_NE(changed, plain);
    for (std::int64_t place = 0; place < options.steps * 12; ++place) {
      Picture image = zeros(kHeight, kWidth);
      for (std::int64_t i = 0; i < kElements; ++i) {
        image[static_cast<std::size_t>(i / kChannels / kWidth)][static_cast<std::size_t>(
            i / kChannels % kWidth)][static_cast<std::size_t>(i % kChannels)] =
            plain[static_cast<std::size_t>(place * kElements + i)];
      }
      const Picture expected = plainly_augmented(image, augmentation, options.seed, place);
      for (std::int64_t i = 0; i < kElements; ++i) {
        ASSERT_EQ(
            changed[static_cast<std::size_t>(place * kElements + i)],
            expected[static_cast<std::size_t>(i / kChannels / kWidth)][static_cast<std::size_t>(
                i / kChannels % kWidth)][static_cast<std::size_t>(i % kChannels)])
            << "place " << place << ", element " << i;
      }
    }
  }
}

TEST(Augmentation, ChoosesEvenly) {
  const RandomStream random(5, RandomPurpose::kAugment, 0);
  std::int64_t flipped = 0;
  for (std::uint64_t place = 0; place < 4000; ++place) {
    flipped += random.words(place, 0)[0] >= 0x80000000U ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(flipped), 2000.0, 130.0);
}

TEST(Augmentation, BitsDependOnThePlaceInTheStreamAlone) {
  const TemporaryDirectory directory;
  const Dataset dataset = colours(directory, 7);
  LoaderOptions options = augmented({.flip = Switch::kOn, .crop_padding = 2, .cutout = 2});
  const std::vector<float> whole = all_inputs(dataset, options);
  // The same places as microbatches of four, as ranks hold them.
  options.microbatch = 4;
  options.offsets = {0, 4, 8};
  EXPECT_EQ(all_inputs(dataset, options), whole);
  const std::size_t step = 12 * kElements;
  options.offsets = {8};
  const std::vector<float> last = all_inputs(dataset, options);
  for (std::size_t s = 0; s < 6; ++s) {
    EXPECT_TRUE(std::equal(last.begin() + static_cast<std::ptrdiff_t>(s * step / 3),
                           last.begin() + static_cast<std::ptrdiff_t>((s + 1) * step / 3),
                           whole.begin() + static_cast<std::ptrdiff_t>(s * step + step * 2 / 3)));
  }
  // A run that continues after step 2.
  options.offsets = {0, 4, 8};
  options.first_step = 2;
  options.steps = 4;
  const std::vector<float> continued = all_inputs(dataset, options);
  EXPECT_TRUE(std::equal(continued.begin(), continued.end(),
                         whole.begin() + static_cast<std::ptrdiff_t>(2 * step), whole.end()));
}

TEST(Augmentation, IsForImagesOnly) {
  const TemporaryDirectory directory;
  test::write_file(directory / "t.csv", "kind,a,b\n0,1,7\n1,3,7\n");
  ImportOptions import;
  import.order = ImportOrder::kFile;
  import.format = ImportFormat::kCsv;
  import.inputs = {directory / "t.csv"};
  import.table.label = "kind";
  import.split = "2";
  import.output = directory / "out";
  const Dataset dataset = Dataset::open(import_dataset(import).train);
  LoaderOptions options;
  options.augmentation.flip = Switch::kOn;
  EXPECT_THROW(Loader(dataset, options), std::logic_error);
}

TEST(LoaderThreads, GiveTheSameBits) {
  const TemporaryDirectory directory;
  const Dataset dataset = colours(directory, 7);
  LoaderOptions options = augmented({.flip = Switch::kOn, .crop_padding = 1, .cutout = 2});
  options.microbatch = 3;
  options.offsets = {9, 0, 6};
  options.steps = 40;
  const std::vector<float> one = all_inputs(dataset, options);
  for (const std::int64_t threads : {2, 3, 5, 16}) {
    options.reader_threads = threads;
    EXPECT_EQ(all_inputs(dataset, options), one) << threads;
  }
}

TEST(LoaderThreads, TheFirstDamageIsReportedAtItsStep) {
  const TemporaryDirectory directory;
  const std::filesystem::path shard = directory / "out/train-00000.h5";
  const std::filesystem::path master = colours(directory, 40).info().path;
  std::string bytes = test::read_file(shard);
  for (const std::int64_t sample : {21, 22, 27, 33}) {
    std::string image;
    for (std::int64_t element = 0; element < kElements; ++element) {
      image += static_cast<char>(colour(sample, element));
    }
    bytes[bytes.find(image)] = static_cast<char>(bytes[bytes.find(image)] ^ 1);
  }
  test::write_file(shard, bytes);
  const Dataset dataset = Dataset::open(master);
  for (int run = 0; run < 20; ++run) {
    LoaderOptions options;
    options.order = Order::kSequential;
    options.global_batch = 10;
    options.microbatch = 10;
    options.steps = 4;
    options.reader_threads = 4;
    Loader loader(dataset, options);
    EXPECT_EQ(loader.next().step(), 0);
    EXPECT_EQ(loader.next().step(), 1);
    for (int again = 0; again < 2; ++again) {
      EXPECT_THAT(error_of([&] { (void)loader.next(); }), HasSubstr("sample 21 "));
    }
  }
}

TEST(Loader, RoundsTargetsThatAreValuesToBfloat16) {
  const TemporaryDirectory directory;
  const std::vector<double> y{0.1, -3.0, 1.0e5};
  const ImportOptions import =
      test::npy_options(directory, "3", test::npy_of<float>("<f4", "(3, 1)", {1, 2, 3}),
                        test::npy_of<double>("<f8", "(3,)", y));
  const Dataset dataset = Dataset::open(import_dataset(import).train);
  LoaderOptions options;
  options.order = Order::kSequential;
  options.global_batch = 3;
  options.microbatch = 3;
  options.compute_dtype = DType::kBfloat16;
  Loader loader(dataset, options);
  const auto targets = loader.next().targets(0).host<BFloat16>();
  ASSERT_EQ(targets.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(targets[i], BFloat16(static_cast<float>(y[i])));
  }
}

}  // namespace
}  // namespace strata::io::loader_images_test
