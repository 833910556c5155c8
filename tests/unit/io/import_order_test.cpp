#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/io/dataset.hpp"

#include "data_files.hpp"
#include "image_files.hpp"
#include "import/sample_places.hpp"
#include "import/split_text.hpp"

namespace strata::io::import_order_test {
namespace {

namespace fs = std::filesystem;

using test::error_of;
using test::TemporaryDirectory;
using test::values_of;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The samples of each split, in the order of their places.
std::vector<std::vector<std::int64_t>> splits_of(const SamplePlaces& places,
                                                 const SplitCounts& counts) {
  const std::vector<std::int64_t> all = places.samples();
  return {{all.begin(), all.begin() + counts.train}, {all.begin() + counts.train, all.end()}};
}

std::vector<std::int64_t> classes_in(const std::vector<std::int64_t>& samples,
                                     const std::vector<std::int32_t>& labels) {
  std::vector<std::int32_t> found;
  for (const std::int64_t sample : samples) {
    found.push_back(labels[static_cast<std::size_t>(sample)]);
  }
  return counts_of_labels(found);
}

TEST(SamplePlaces, DivideEachClassInTheRatioOfTheSplits) {
  struct Case {
    std::vector<std::int64_t> classes;
    SplitCounts counts;
    std::vector<std::int64_t> train;
    std::vector<std::int64_t> test;
  };
  for (const Case& one : std::vector<Case>{{{50, 50, 50}, {120, 30}, {40, 40, 40}, {10, 10, 10}},
                                           {{100, 300}, {200, 40}, {50, 150}, {9, 31}},
                                           // A class of one sample is in train.
                                           {{1, 9, 10}, {15, 5}, {1, 7, 7}, {0, 2, 3}},
                                           {{1, 1, 2}, {3, 1}, {1, 1, 1}, {0, 0, 1}},
                                           // But where test needs all others.
                                           {{2, 2}, {1, 3}, {1}, {1, 2}},
                                           {{5}, {5, 0}, {5}, {}}}) {
    std::vector<std::int32_t> labels;
    for (std::size_t i = 0; i < one.classes.size(); ++i) {
      labels.insert(labels.end(), static_cast<std::size_t>(one.classes[i]),
                    static_cast<std::int32_t>(i));
    }
    const SamplePlaces places = SamplePlaces::shuffled(one.counts, std::ssize(labels), labels, 1);
    const auto splits = splits_of(places, one.counts);
    EXPECT_EQ(classes_in(splits[0], labels), one.train);
    EXPECT_EQ(classes_in(splits[1], labels), one.test);
    std::set<std::int64_t> different(splits[0].begin(), splits[0].end());
    different.insert(splits[1].begin(), splits[1].end());
    EXPECT_EQ(std::ssize(different), one.counts.train + one.counts.test);
  }
}

TEST(SamplePlaces, AreRandomAndFollowTheSeed) {
  const SplitCounts counts{800, 200};
  const auto splits = splits_of(SamplePlaces::shuffled(counts, 1000, {}, 1), counts);
  EXPECT_EQ(splits, splits_of(SamplePlaces::shuffled(counts, 1000, {}, 1), counts));
  EXPECT_NE(splits, splits_of(SamplePlaces::shuffled(counts, 1000, {}, 2), counts));
  for (const std::vector<std::int64_t>& split : splits) {
    // The mean of any quarter lies within four standard deviations of the middle.
    const std::size_t quarter = split.size() / 4;
    for (std::size_t at = 0; at + quarter <= split.size(); at += quarter) {
      const auto first = split.begin() + static_cast<std::ptrdiff_t>(at);
      const double mean =
          std::accumulate(first, first + static_cast<std::ptrdiff_t>(quarter), 0.0) /
          static_cast<double>(quarter);
      EXPECT_NEAR(mean, 499.5, 4 * 288.7 / std::sqrt(static_cast<double>(quarter)));
    }
  }
  const SamplePlaces apart = SamplePlaces::shuffled_apart(counts, 1);
  std::vector<std::int64_t> seen;
  for (std::int64_t sample = 0; sample < 800; ++sample) {
    seen.push_back(apart(sample));
  }
  EXPECT_FALSE(std::ranges::is_sorted(seen));
  std::ranges::sort(seen);
  EXPECT_EQ(seen.front(), 0);
  EXPECT_EQ(seen.back(), 799);
  EXPECT_GE(apart(800), 800);
}

TEST(ParseSplit, TakesPercentAndRefusesCountsThatLookLikeIt) {
  const SplitCounts counts = parse_split("80%,20%", 1742);
  EXPECT_EQ(counts.train, 1393);
  EXPECT_EQ(counts.test, 349);
  EXPECT_EQ(parse_split("12.5%", 80).train, 10);
  EXPECT_EQ(parse_split("90,10", 100).test, 10);
  EXPECT_EQ(error_of([] { static_cast<void>(parse_split("90,10", 1742)); }, ExitCode::kUsage),
            "--split=90,10 takes 100 of 1,742 samples; give 90%,10% for all of them, or counts "
            "that add up, as in 1567,175");
  EXPECT_THAT(error_of([] { static_cast<void>(parse_split("120%", 10)); }, ExitCode::kUsage),
              HasSubstr("90%,10%"));
  EXPECT_THAT(error_of([] { static_cast<void>(parse_split("99%,0.5%", 10)); }),
              HasSubstr("leaves the test split empty"));
}

/// Writes samples 0 to 59 sorted by their class, 0 to 2, in one format. Input: the sample's number.
struct Format {
  const char* name;
  std::function<ImportOptions(const TemporaryDirectory&)> write;
};

std::vector<Format> formats() {
  const auto csv = [](const TemporaryDirectory& directory) {
    std::string text = "x,kind\n";
    for (int i = 0; i < 60; ++i) {
      text += fmt::format("{},{}\n", i, i / 20);
    }
    write_file(directory / "t.csv", text);
    ImportOptions options;
    options.format = ImportFormat::kCsv;
    options.inputs = {directory / "t.csv"};
    options.table.label = "kind";
    return options;
  };
  const auto npy = [](const TemporaryDirectory& directory) {
    std::vector<std::uint8_t> x(60);
    std::iota(x.begin(), x.end(), std::uint8_t{0});
    std::vector<std::int64_t> y;
    for (int i = 0; i < 60; ++i) {
      y.push_back(i / 20);
    }
    return test::npy_options(directory, "", test::npy_of("|u1", "(60, 1)", x),
                             test::npy_of("<i8", "(60,)", y));
  };
  const auto cifar = [](const TemporaryDirectory& directory) {
    std::string bytes;
    for (int i = 0; i < 60; ++i) {
      bytes += static_cast<char>(i / 20);
      bytes += std::string(3072, static_cast<char>(i));
    }
    write_file(directory / "c.bin", bytes);
    ImportOptions options;
    options.format = ImportFormat::kCifar10;
    options.inputs = {directory / "c.bin"};
    return options;
  };
  const auto images = [](const TemporaryDirectory& directory) {
    for (int i = 0; i < 60; ++i) {
      test::write_image(directory / fmt::format("in/{}/{:02}.png", i / 20, i),
                        test::png(std::vector<std::uint8_t>(3, static_cast<std::uint8_t>(i)), 1, 1,
                                  PNG_FORMAT_RGB));
    }
    return test::image_options({directory / "in"}, directory / "out", "");
  };
  return {{"csv", csv}, {"npy", npy}, {"cifar10", cifar}, {"images", images}};
}

std::vector<std::int64_t> inputs_of(const Dataset& dataset) {
  std::vector<std::int64_t> inputs;
  for (std::int64_t i = 0; i < dataset.info().samples; ++i) {
    const auto bytes = dataset.sample_input(i);
    inputs.push_back(dataset.info().input_dtype == DType::kUint8
                         ? values_of<std::uint8_t>(bytes)[0]
                         : static_cast<std::int64_t>(values_of<float>(bytes)[0]));
    EXPECT_EQ(dataset.label(i), inputs.back() / 20);
  }
  return inputs;
}

TEST(ImportOrder, IsShuffledWithClassesSpreadEvenlyInEveryFormat) {
  for (const Format& format : formats()) {
    SCOPED_TRACE(format.name);
    const TemporaryDirectory directory;
    ImportOptions options = format.write(directory);
    options.order.reset();
    options.output = directory / "out";
    options.existing = Existing::kReplace;
    options.split = "0.8,0.1";
    options.shard_bytes = 7;
    const ImportReport report = import_dataset(options);
    EXPECT_EQ(report.unused_samples, 6);
    const Dataset train = Dataset::open(report.train);
    const Dataset test = Dataset::open(report.test);
    EXPECT_THAT(train.info().source, HasSubstr("; shuffled with seed 1"));
    const auto first_counts = [](const Dataset& dataset) {
      std::vector<std::int64_t> counts = dataset.class_counts();  // CIFAR has ten classes
      counts.resize(3);
      return counts;
    };
    EXPECT_THAT(first_counts(train), ElementsAre(16, 16, 16));
    EXPECT_THAT(first_counts(test), ElementsAre(2, 2, 2));
    const std::vector<std::int64_t> inputs = inputs_of(train);
    EXPECT_FALSE(std::ranges::is_sorted(inputs));
    for (const Dataset* const dataset : {&train, &test}) {
      for (const ShardCheck& check : dataset->verify()) {
        EXPECT_EQ(check.problem, "");
      }
    }
    const double mean = std::accumulate(inputs.begin(), inputs.end(), 0.0) / 48;
    EXPECT_NEAR(train.info().mean[0], mean, 1e-9);

    const std::string bytes = test::read_file(directory / "out/train-00003.h5");
    import_dataset(options);
    EXPECT_EQ(test::read_file(directory / "out/train-00003.h5"), bytes);
    options.seed = 2;
    EXPECT_NE(inputs_of(Dataset::open(import_dataset(options).train)), inputs);

    options.order = ImportOrder::kFile;
    options.split = "50,5";
    const Dataset first = Dataset::open(import_dataset(options).train);
    std::vector<std::int64_t> expected(50);
    std::iota(expected.begin(), expected.end(), 0);
    if (options.format == ImportFormat::kImages) {  // classes alternate
      std::ranges::transform(expected, expected.begin(),
                             [](std::int64_t i) { return i % 3 * 20 + i / 3; });
    }
    EXPECT_EQ(inputs_of(first), expected);
  }
}

TEST(ImportOrder, FilesOfTheTestSplitStayApart) {
  const TemporaryDirectory directory;
  for (const auto& [name, begin] : {std::pair{"a", 0}, {"b", 20}, {"c", 40}}) {
    std::string text = "x,kind\n";
    for (int i = begin; i < begin + 20; ++i) {
      text += fmt::format("{},{}\n", i, i / 20);
    }
    fs::create_directories(directory / (name == std::string("c") ? "data/test" : "data/train"));
    write_file(directory /
                   fmt::format("data/{}/{}.csv", name == std::string("c") ? "test" : "train", name),
               text);
  }
  ImportOptions options;
  options.format = ImportFormat::kCsv;
  options.table.label = "kind";
  options.output = directory / "out";
  options.existing = Existing::kReplace;
  const auto expect_apart = [&] {
    const ImportReport report = import_dataset(options);
    EXPECT_THAT(Dataset::open(report.train).class_counts(), ElementsAre(20, 20, 0));
    EXPECT_THAT(Dataset::open(report.test).class_counts(), ElementsAre(0, 0, 20));
    const std::vector<std::int64_t> inputs = inputs_of(Dataset::open(report.train));
    EXPECT_EQ(std::ranges::is_sorted(inputs), options.order == ImportOrder::kFile);
  };
  const fs::path train = directory / "data/train";
  const fs::path test = directory / "data/test";
  options.inputs = {train / "a.csv", train / "b.csv"};
  options.test_inputs = {test / "c.csv"};
  expect_apart();
  options.inputs = {train};
  options.test_inputs = {test};
  expect_apart();
  options.inputs = {directory / "data"};
  options.test_inputs = {};
  expect_apart();
  options.order = ImportOrder::kFile;
  expect_apart();

  // A published test set that counts would mix with the train set.
  options.order.reset();
  options.split = "40,20";
  EXPECT_THAT(
      error_of([&] { import_dataset(options); }, ExitCode::kUsage),
      AllOf(HasSubstr("both say what is in the test split"), HasSubstr("leave --split out")));
  options.inputs = {train / "a.csv", train / "b.csv", test / "c.csv"};
  EXPECT_THAT(error_of([&] { import_dataset(options); }, ExitCode::kUsage),
              AllOf(HasSubstr("--split=40,20 cuts just before"), HasSubstr("c.csv"),
                    HasSubstr("--test-files"), HasSubstr("--order=shuffled")));
  options.order = ImportOrder::kShuffled;
  EXPECT_THAT(Dataset::open(import_dataset(options).test).class_counts(), ElementsAre(6, 7, 7));

  options.split = "";
  options.inputs = {train / "a.csv"};
  options.test_inputs = {directory / "empty.csv"};
  write_file(directory / "empty.csv", "x,kind\n");
  EXPECT_THAT(error_of([&] { import_dataset(options); }),
              AllOf(HasSubstr("the test files hold no samples"), HasSubstr("empty.csv")));
  fs::create_directories(directory / "none/.hidden");
  options.test_inputs = {directory / "none"};
  EXPECT_THAT(error_of([&] { import_dataset(options); }), HasSubstr("holds no files"));
}

TEST(ImportOrder, ARareClassIsNamed) {
  const TemporaryDirectory directory;
  write_file(directory / "t.csv", "x,kind\n1,a\n2,b\n3,b\n4,b\n5,c\n6,b\n7,b\n8,b\n9,b\n10,b\n");
  ImportOptions options;
  options.format = ImportFormat::kCsv;
  options.inputs = {directory / "t.csv"};
  options.table.label = "kind";
  options.output = directory / "out";
  const ImportReport report = import_dataset(options);
  EXPECT_THAT(Dataset::open(report.train).class_counts(), ElementsAre(1, 7, 1));
  EXPECT_THAT(report.notes,
              ElementsAre("2 classes have a single sample, which no test can show: a, c"));
  options.split = "1.0";
  options.existing = Existing::kReplace;
  EXPECT_THAT(import_dataset(options).notes, IsEmpty());
}

}  // namespace
}  // namespace strata::io::import_order_test
