#include "strata/io/loader.hpp"

#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <numeric>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data_files.hpp"

namespace strata::io::loader_test {
namespace {

using test::error_of;
using test::import_images;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::vector<T> elements(const ConstTensorView& view) {
  const auto values = view.host<T>();
  return {values.begin(), values.end()};
}

// A data set of `count` samples whose input is the sample's index.
Dataset numbered(const TemporaryDirectory& directory, std::int64_t count) {
  std::vector<float> x(static_cast<std::size_t>(count));
  std::iota(x.begin(), x.end(), 0.0F);
  std::vector<double> y(x.begin(), x.end());
  const std::string rows = std::to_string(count);
  ImportOptions options =
      test::npy_options(directory, rows, test::npy_of<float>("<f4", "(" + rows + ", 1)", x),
                        test::npy_of<double>("<f8", "(" + rows + ",)", y));
  options.shard_bytes = 4 * 7;
  return Dataset::open(import_dataset(options).train);
}

TEST(SampleOrder, EveryEpochHasEverySampleOnce) {
  constexpr std::int64_t kCount = 101;
  std::vector<std::int64_t> previous;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < kCount; ++i) {
      order.push_back(sample_at(9, kCount, epoch * kCount + i));
    }
    EXPECT_NE(order, previous);
    previous = order;
    EXPECT_EQ(std::set<std::int64_t>(order.begin(), order.end()).size(),
              static_cast<std::size_t>(kCount));
    EXPECT_EQ(*std::max_element(order.begin(), order.end()), kCount - 1);
  }
  EXPECT_NE(sample_at(9, 1000000, 0), sample_at(10, 1000000, 0));
}

TEST(SampleOrder, SequentialEndsInTheLastSample) {
  EXPECT_EQ(sequential_sample_at(5, 0), 0);
  EXPECT_EQ(sequential_sample_at(5, 4), 4);
  EXPECT_EQ(sequential_sample_at(5, 9), 4);
}

TEST(Loader, GivesTheSamplesOfItsOffsetsAcrossEpochs) {
  const TemporaryDirectory directory;
  const Dataset dataset = numbered(directory, 23);
  LoaderOptions options;
  options.seed = 77;
  options.global_batch = 12;
  options.microbatch = 3;
  options.offsets = {9, 3};
  options.first_step = 1;
  options.steps = 6;
  Loader loader(dataset, options);
  // Step 1 holds places 12 to 23, and so the end of the first epoch.
  for (std::int64_t step = 1; step < 7; ++step) {
    const LoadedStep& loaded = loader.next();
    EXPECT_EQ(loaded.step(), step);
    for (std::int64_t m = 0; m < 2; ++m) {
      EXPECT_EQ(loaded.inputs(m).shape(), (Shape{3, 1}));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(loaded.inputs(m).raw()) % 64, 0U);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(loaded.targets(m).raw()) % 64, 0U);
      std::vector<float> expected;
      for (std::int64_t row = 0; row < 3; ++row) {
        const std::int64_t place = step * 12 + options.offsets[static_cast<std::size_t>(m)] + row;
        expected.push_back(static_cast<float>(sample_at(77, 23, place)));
      }
      EXPECT_EQ(elements<float>(loaded.inputs(m)), expected);
      EXPECT_EQ(elements<float>(loaded.targets(m)), expected);
    }
    EXPECT_THROW((void)loaded.inputs(2), std::logic_error);
  }
  EXPECT_THROW((void)loader.next(), std::logic_error);
}

TEST(Loader, RanksTogetherGiveEverySampleOnceAnEpoch) {
  const TemporaryDirectory directory;
  const Dataset dataset = numbered(directory, 24);
  std::multiset<float> seen;
  for (const std::int64_t rank : {0, 1, 2}) {
    LoaderOptions options;
    options.global_batch = 6;
    options.microbatch = 2;
    options.offsets = {rank * 2};
    options.steps = 8;
    Loader loader(dataset, options);
    for (int step = 0; step < 8; ++step) {
      const auto values = elements<float>(loader.next().inputs(0));
      seen.insert(values.begin(), values.end());
    }
  }
  ASSERT_EQ(seen.size(), 48U);
  for (int sample = 0; sample < 24; ++sample) {
    EXPECT_EQ(seen.count(static_cast<float>(sample)), 2U) << sample;
  }
}

TEST(Loader, SequentialOrderIsPaddedWithTheLastSample) {
  const TemporaryDirectory directory;
  const Dataset dataset = numbered(directory, 5);
  LoaderOptions options;
  options.order = Order::kSequential;
  options.global_batch = 4;
  options.microbatch = 4;
  options.steps = 2;
  Loader loader(dataset, options);
  EXPECT_THAT(elements<float>(loader.next().inputs(0)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(elements<float>(loader.next().inputs(0)), ElementsAre(4, 4, 4, 4));
}

LoaderOptions one_batch(std::int64_t count) {
  LoaderOptions options;
  options.order = Order::kSequential;
  options.global_batch = count;
  options.microbatch = count;
  return options;
}

TEST(Loader, NormalisesBytes) {
  const TemporaryDirectory directory;
  const Dataset dataset = Dataset::open(import_images(directory, 6, "6").train);
  const double mean = dataset.info().mean[0];
  const double deviation = dataset.info().deviation[0];
  for (const Normalise normalise :
       {Normalise::kAuto, Normalise::kUnit, Normalise::kNone, Normalise::kStandard}) {
    LoaderOptions options = one_batch(6);
    options.normalise = normalise;
    Loader narrow(dataset, options);
    options.compute_dtype = DType::kFloat64;
    Loader wide(dataset, options);
    const ConstTensorView view = narrow.next().inputs(0);
    EXPECT_EQ(view.shape(), (Shape{6, 4, 5, 1}));
    const auto floats = elements<float>(view);
    const auto doubles = elements<double>(wide.next().inputs(0));
    for (std::int64_t i = 0; i < 120; ++i) {
      const std::uint8_t x = test::pixel(i / 20, i % 20);
      const auto at = static_cast<std::size_t>(i);
      if (normalise == Normalise::kNone) {
        EXPECT_EQ(floats[at], x);
        EXPECT_EQ(doubles[at], x);
      } else if (normalise == Normalise::kStandard) {
        EXPECT_EQ(floats[at], (static_cast<float>(x) - static_cast<float>(mean)) /
                                  static_cast<float>(deviation));
        EXPECT_EQ(doubles[at], (x - mean) / deviation);
      } else {
        EXPECT_EQ(floats[at], static_cast<float>(x) / 255.0F);
        EXPECT_EQ(doubles[at], x / 255.0);
      }
    }
  }
}

TEST(Loader, StandardisesEachFeature) {
  const TemporaryDirectory directory;
  test::write_file(directory / "t.csv", "kind,a,b\n0,1,7\n1,3,7\n0,5,7\n");
  ImportOptions import;
  import.order = ImportOrder::kFile;
  import.format = ImportFormat::kCsv;
  import.inputs = {directory / "t.csv"};
  import.table.label = "kind";
  import.split = "3";
  import.output = directory / "out";
  const Dataset dataset = Dataset::open(import_dataset(import).train);
  LoaderOptions options = one_batch(3);
  options.compute_dtype = DType::kFloat64;
  Loader loader(dataset, options);  // auto: the columns of a table
  const LoadedStep& loaded = loader.next();
  const auto values = elements<double>(loaded.inputs(0));
  EXPECT_DOUBLE_EQ(values[0], -2 / std::sqrt(8.0 / 3));
  EXPECT_EQ(values[2], 0.0);
  // A feature that never changes.
  EXPECT_EQ(values[1], 0.0);
  EXPECT_THAT(elements<std::int64_t>(loaded.targets(0)), ElementsAre(0, 1, 0));
  LoaderOptions as_stored = one_batch(3);
  as_stored.normalise = Normalise::kNone;
  Loader plain(dataset, as_stored);
  EXPECT_THAT(elements<float>(plain.next().inputs(0)), ElementsAre(1, 7, 3, 7, 5, 7));
}

TEST(Loader, ReadsOnlyTheAskedParts) {
  const TemporaryDirectory directory;
  const ImportReport report = import_images(directory, 8, "8");
  const Dataset dataset = Dataset::open(report.train);
  LoaderOptions options = one_batch(8);
  options.parts = Parts::kTargets;
  Loader targets(dataset, options);
  const LoadedStep& loaded = targets.next();
  EXPECT_THAT(elements<std::int64_t>(loaded.targets(0)), ElementsAre(0, 1, 2, 0, 1, 2, 0, 1));
  EXPECT_THROW((void)loaded.inputs(0), std::logic_error);
  EXPECT_EQ(loaded.memory().bytes(), 64);
  options.parts = Parts::kInputs;
  Loader inputs(dataset, options);
  const LoadedStep& step = inputs.next();
  EXPECT_THROW((void)step.targets(0), std::logic_error);
  EXPECT_EQ(step.memory().bytes(), 8 * 20 * 4);
  EXPECT_EQ(2 * step.memory().bytes(), Loader::memory_bytes(dataset.info(), options));
}

/// A data set of 12 images, of which number 9 is not as it was written.
Dataset damaged(const TemporaryDirectory& directory) {
  const ImportReport report = import_images(directory, 12, "12");
  test::flip_bit(directory / "out/train-00000.h5", test::image_bytes(9, 20));
  return Dataset::open(report.train);
}

TEST(Loader, DamageSurfacesAtItsStep) {
  const TemporaryDirectory directory;
  const Dataset dataset = damaged(directory);
  LoaderOptions options = one_batch(4);
  options.steps = 3;
  Loader loader(dataset, options);
  EXPECT_EQ(loader.next().step(), 0);
  EXPECT_EQ(loader.next().step(), 1);
  EXPECT_THAT(error_of([&] { (void)loader.next(); }),
              AllOf(HasSubstr("sample 9"), HasSubstr("train-00000.h5")));
  // A loader of targets alone does not read the damaged input.
  options.parts = Parts::kTargets;
  Loader targets(dataset, options);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(targets.next().step(), step);
  }
}

/// Waits until the loader is ready, for a second where it will not be.
bool becomes_ready(const Loader& loader) {
  for (int turn = 0; turn < 1000 && !loader.ready(); ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return loader.ready();
}

TEST(Loader, IsReadyWhereTheNextStepIsRead) {
  const TemporaryDirectory directory;
  const Dataset dataset = numbered(directory, 12);
  LoaderOptions options = one_batch(4);
  options.steps = 2;
  Loader loader(dataset, options);
  for (std::int64_t step = 0; step < 2; ++step) {
    EXPECT_TRUE(becomes_ready(loader));
    EXPECT_EQ(loader.next().step(), step);
  }
  EXPECT_FALSE(becomes_ready(loader));
}

TEST(Loader, IsNotReadyWhereTheNextStepIsDamaged) {
  const TemporaryDirectory directory;
  const Dataset dataset = damaged(directory);
  LoaderOptions options = one_batch(4);
  options.steps = 3;
  Loader loader(dataset, options);
  (void)loader.next();
  EXPECT_TRUE(becomes_ready(loader));
  (void)loader.next();
  EXPECT_FALSE(becomes_ready(loader));
}

TEST(Loader, RefusesNumbersThatAreNotFinite) {
  const TemporaryDirectory directory;
  const ImportOptions import =
      test::npy_options(directory, "3", test::npy_of<double>("<f8", "(3, 1)", {1, 1e300, 2}),
                        test::npy_of<double>("<f8", "(3,)", {1, 2, -1e300}));
  const Dataset dataset = Dataset::open(import_dataset(import).train);
  LoaderOptions options = one_batch(3);
  options.parts = Parts::kInputs;
  Loader inputs(dataset, options);
  EXPECT_THAT(error_of([&] { (void)inputs.next(); }),
              AllOf(HasSubstr("the input of sample 1 "), HasSubstr("float32")));
  options.parts = Parts::kTargets;
  Loader targets(dataset, options);
  EXPECT_THAT(error_of([&] { (void)targets.next(); }), HasSubstr("the target of sample 2 "));
  options.parts = Parts::kBoth;
  options.compute_dtype = DType::kFloat64;
  Loader wide(dataset, options);
  EXPECT_THAT(elements<double>(wide.next().inputs(0)), ElementsAre(1, 1e300, 2));
}

TEST(Loader, StopsPromptlyWhenDropped) {
  const TemporaryDirectory directory;
  const Dataset dataset = numbered(directory, 40);
  LoaderOptions options;
  options.global_batch = 1 << 22;
  options.microbatch = 1 << 22;
  options.steps = 1000;
  // A step takes far more time of a core.
  const std::clock_t start = std::clock();
  { Loader loader(dataset, options); }
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 0.5);
  // Also while it waits for a free buffer: this test then ends.
  options.global_batch = 2;
  options.microbatch = 2;
  Loader loader(dataset, options);
  (void)loader.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST(Loader, RefusesOptionsThatContradictEachOther) {
  const TemporaryDirectory directory;
  const Dataset dataset = numbered(directory, 4);
  LoaderOptions options = one_batch(4);
  options.offsets = {1};
  EXPECT_THROW(Loader(dataset, options), std::logic_error);
  options.offsets = {};
  EXPECT_THROW(Loader(dataset, options), std::logic_error);
  options = one_batch(4);
  options.compute_dtype = DType::kInt64;
  EXPECT_THROW(Loader(dataset, options), std::logic_error);
}

}  // namespace
}  // namespace strata::io::loader_test
