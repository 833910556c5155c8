#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/io/dataset.hpp"

#include "data_files.hpp"

namespace strata::io::import_arrays_test {
namespace {

using test::error_of;
using test::idx_options;
using test::import_images;
using test::npy;
using test::npy_of;
using test::npy_options;
using test::TemporaryDirectory;
using test::values_of;
using test::write_file;
using test::write_gzip;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string import_error(const ImportOptions& options, ExitCode code = ExitCode::kData) {
  const std::string message = error_of([&] { import_dataset(options); }, code);
  EXPECT_FALSE(std::filesystem::exists(options.output / "train.h5"));
  EXPECT_FALSE(std::filesystem::exists(options.output / "train-00000.h5"));
  return message;
}

TEST(ImportIdx, HoldsEverySampleInFileOrder) {
  const TemporaryDirectory directory;
  const ImportReport report = import_images(directory, 25, "15,7");
  EXPECT_EQ(report.train_samples, 15);
  EXPECT_EQ(report.test_samples, 7);
  EXPECT_EQ(report.unused_samples, 3);
  EXPECT_EQ(report.classes, 3);
  const Dataset train = Dataset::open(report.train);
  const Dataset test = Dataset::open(report.test);
  EXPECT_EQ(train.info().samples, 15);
  EXPECT_EQ(test.info().samples, 7);
  EXPECT_EQ(train.info().input_shape, (Shape{1, 4, 5}));
  EXPECT_EQ(train.info().input_dtype, DType::kUint8);
  EXPECT_EQ(train.info().target_shape, Shape{});
  EXPECT_EQ(train.info().task, Task::kClassification);
  EXPECT_EQ(train.info().source, "idx: images + labels");
  for (std::int64_t i = 0; i < 22; ++i) {
    const Dataset& dataset = i < 15 ? train : test;
    const std::int64_t local = i < 15 ? i : i - 15;
    const auto input = values_of<std::uint8_t>(dataset.sample_input(local));
    ASSERT_EQ(input.size(), 20U);
    for (std::int64_t element = 0; element < 20; ++element) {
      EXPECT_EQ(input[static_cast<std::size_t>(element)], test::pixel(i, element));
    }
    EXPECT_EQ(values_of<std::int64_t>(dataset.sample_target(local))[0], i % 3);
  }
}

TEST(ImportIdx, GzipGivesTheSameDataSet) {
  const TemporaryDirectory plain;
  const TemporaryDirectory compressed;
  import_images(plain, 30, "20,10");
  write_gzip(compressed / "images", test::images(30, 4, 5));
  write_gzip(compressed / "labels", test::labels(30, 3));
  import_dataset(idx_options(compressed, "20,10"));
  for (const char* file : {"out/train-00000.h5", "out/test-00000.h5"}) {
    EXPECT_EQ(test::read_file(plain / file), test::read_file(compressed / file)) << file;
  }
}

TEST(ImportIdx, TakesSeveralFilesInOrder) {
  const TemporaryDirectory directory;
  write_file(directory / "images", test::images(6, 2, 2));
  write_file(directory / "labels", test::labels(6, 3));
  write_file(directory / "more-images", test::images(4, 2, 2));
  write_file(directory / "more-labels", test::labels(4, 2));
  ImportOptions options = idx_options(directory, "6,4");
  options.inputs.push_back(directory / "more-images");
  options.targets.push_back(directory / "more-labels");
  const ImportReport report = import_dataset(options);
  const Dataset test = Dataset::open(report.test);
  EXPECT_EQ(values_of<std::uint8_t>(test.sample_input(1))[2], test::pixel(1, 2));
  EXPECT_EQ(test.info().classes, 3);
  EXPECT_THAT(test.class_counts(), ElementsAre(2, 2, 0));
}

TEST(ImportIdx, ReadsBigEndianFloats) {
  const TemporaryDirectory directory;
  std::string bytes = test::idx_header(0x0D, {2, 2});
  for (const float value : {1.5F, -2.25F, 0.0F, 1e10F}) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes += static_cast<char>(bits >> shift & 0xFFU);
    }
  }
  write_file(directory / "images", bytes);
  write_file(directory / "labels", test::labels(2, 2));
  const Dataset train = Dataset::open(import_dataset(idx_options(directory, "2")).train);
  EXPECT_EQ(train.info().input_dtype, DType::kFloat32);
  EXPECT_THAT(values_of<float>(train.sample_input(0)), ElementsAre(1.5F, -2.25F));
  EXPECT_THAT(values_of<float>(train.sample_input(1)), ElementsAre(0.0F, 1e10F));
}

TEST(ImportIdx, RefusesBadFiles) {
  const TemporaryDirectory directory;
  const std::string good = test::images(10, 4, 5);
  write_file(directory / "images", good);
  write_file(directory / "labels", test::labels(10, 3));
  const ImportOptions options = idx_options(directory, "8,2");

  write_file(directory / "images", good.substr(0, good.size() - 13));
  EXPECT_THAT(import_error(options),
              AllOf(HasSubstr("images is 13 bytes short"), HasSubstr("10 x 4 x 5")));
  write_file(directory / "images", good + "xy");
  EXPECT_THAT(import_error(options), HasSubstr("images is 2 bytes too long"));
  write_file(directory / "images", good.substr(0, 9));
  EXPECT_THAT(import_error(options), HasSubstr("ends within its IDX header"));
  write_file(directory / "images", "PNG" + good);
  EXPECT_THAT(import_error(options), HasSubstr("is not an IDX file"));
  write_file(directory / "images", std::string{'\0', '\0', '\x07', '\1'} + good);
  EXPECT_THAT(import_error(options), HasSubstr("element type 0x07"));
  write_file(directory / "images", test::idx_header(0x08, {10, 0, 5}));
  EXPECT_THAT(import_error(options), HasSubstr("10 x 0 x 5"));
  write_file(directory / "images", test::images(9, 4, 5));
  EXPECT_THAT(import_error(options), HasSubstr("has 9 samples but"));
  std::filesystem::remove(directory / "images");
  EXPECT_THAT(import_error(options), HasSubstr("images does not exist"));
}

TEST(ImportIdx, RefusesATruncatedOrDamagedGzip) {
  const TemporaryDirectory directory;
  write_gzip(directory / "images", test::images(2000, 4, 5));
  write_file(directory / "labels", test::labels(2000, 3));
  const std::string good = test::read_file(directory / "images");
  const ImportOptions options = idx_options(directory, "10");
  // Cut far behind the ten samples of the split.
  write_file(directory / "images", good.substr(0, good.size() - 20));
  EXPECT_THAT(import_error(options), HasSubstr("images was cut short"));
  std::string damaged = good;
  damaged[damaged.size() - 6] = static_cast<char>(damaged[damaged.size() - 6] ^ 1);
  write_file(directory / "images", damaged);
  EXPECT_THAT(import_error(options), HasSubstr("cannot read"));
  write_gzip(directory / "images", test::images(2000, 4, 5) + "x");
  EXPECT_THAT(import_error(options), HasSubstr("goes on after the 2000 x 4 x 5"));
}

TEST(ImportIdx, RefusesALabelOutOfRange) {
  const TemporaryDirectory directory;
  const std::string message = error_of([&] {
    import_images(directory, 10, "10", [](ImportOptions& options) { options.classes = 2; });
  });
  EXPECT_THAT(message,
              AllOf(HasSubstr("the label of sample 2"), HasSubstr("is 2, expected 0 to 1")));
}

TEST(ImportIdx, RefusesSplitsThatCannotBe) {
  const TemporaryDirectory directory;
  write_file(directory / "images", test::images(10, 4, 5));
  write_file(directory / "labels", test::labels(10, 3));
  EXPECT_THAT(import_error(idx_options(directory, "8,3")),
              AllOf(HasSubstr("8 + 3"), HasSubstr("hold 10")));
  EXPECT_THAT(import_error(idx_options(directory, "0.7,0.4"), ExitCode::kUsage),
              HasSubstr("more than 1"));
  EXPECT_THAT(import_error(idx_options(directory, "0.01,0.9")), HasSubstr("train split empty"));
  for (const char* text : {"8;2", "-1,2", "1,2,3", "0.5,x"}) {
    EXPECT_THAT(import_error(idx_options(directory, text), ExitCode::kUsage),
                HasSubstr("is not understood"));
  }
}

TEST(ImportIdx, FractionsThatAddUpToOneUseEverySample) {
  for (const std::int64_t count : {10, 11, 37}) {
    const TemporaryDirectory directory;
    const ImportReport report = import_images(directory, count, "0.7,0.3");
    EXPECT_EQ(report.train_samples, count * 7 / 10);
    EXPECT_EQ(report.train_samples + report.test_samples, count);
  }
}

TEST(ImportIdx, ReplacesOnlyWhenAsked) {
  const TemporaryDirectory directory;
  import_images(directory, 20, "10,10", [](ImportOptions& options) { options.shard_bytes = 60; });
  EXPECT_TRUE(std::filesystem::exists(directory / "out/train-00003.h5"));
  EXPECT_THAT(error_of([&] { import_images(directory, 20, "10,10"); }, ExitCode::kUsage),
              AllOf(HasSubstr("already exists"), HasSubstr("--overwrite")));
  const ImportReport report = import_images(
      directory, 20, "12", [](ImportOptions& options) { options.existing = Existing::kReplace; });
  EXPECT_EQ(Dataset::open(report.train).info().samples, 12);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory / "out")) {
    files.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(files,
              ::testing::UnorderedElementsAre("train.h5", "train.manifest", "train-00000.h5"));
}

TEST(ImportNpy, KeepsFloatsAndTakesIntegersAsClasses) {
  const TemporaryDirectory directory;
  write_file(directory / "x.npy", npy_of<double>("<f8", "(3, 2)", {1, 2, 3, 4, 5, 0.1}));
  write_file(directory / "y.npy", npy_of<std::int32_t>("<i4", "(3,)", {0, 4, 0}));
  const Dataset train = Dataset::open(import_dataset(npy_options(directory, "1.0")).train);
  EXPECT_EQ(train.info().input_dtype, DType::kFloat64);
  EXPECT_EQ(train.info().input_shape, Shape{2});
  EXPECT_EQ(train.info().classes, 5);
  EXPECT_THAT(values_of<double>(train.sample_input(2)), ElementsAre(5, 0.1));
  EXPECT_THAT(values_of<std::int64_t>(train.sample_target(1)), ElementsAre(4));
  // By numpy: x.mean(0), x.std(0).
  ASSERT_EQ(train.info().mean.size(), 2U);
  EXPECT_DOUBLE_EQ(train.info().mean[0], 3.0);
  EXPECT_DOUBLE_EQ(train.info().mean[1], 6.1 / 3);
  EXPECT_DOUBLE_EQ(train.info().deviation[0], std::sqrt(8.0 / 3));
}

TEST(ImportNpy, ReadsHeadersAsNumpyDoes) {
  const TemporaryDirectory directory;
  write_file(directory / "y.npy", npy_of<std::int64_t>("<i8", "(2L,)", {0, 1}));
  const std::string plain = npy_of<float>("<f4", "(2L, 3L)", {1, 2, 3, 4, 5, 6});
  std::string quoted = plain;
  std::replace(quoted.begin(), quoted.begin() + 100, '\'', '"');
  std::string prefixed = plain;
  prefixed.replace(plain.find("'<f4', "), 7, "u'<f4',");
  for (const std::string& bytes : {plain, quoted, prefixed}) {
    write_file(directory / "x.npy", bytes);
    ImportOptions options = npy_options(directory, "1.0");
    options.existing = Existing::kReplace;
    const Dataset train = Dataset::open(import_dataset(options).train);
    EXPECT_EQ(train.info().input_shape, Shape{3});
    EXPECT_EQ(train.info().classes, 2);
    EXPECT_THAT(values_of<float>(train.sample_input(1)), ElementsAre(4, 5, 6));
  }
}

TEST(ImportNpy, TakesFloatsAsValuesOfTheirShape) {
  const TemporaryDirectory directory;
  write_file(directory / "x.npy", npy_of<float>("<f4", "(2,)", {1.5F, 2.5F}));
  write_file(directory / "y.npy", npy_of<float>("<f4", "(2, 3)", {1, 2, 3, 4, 5, 6}));
  const Dataset train = Dataset::open(import_dataset(npy_options(directory, "1.0")).train);
  EXPECT_EQ(train.info().input_shape, Shape{1});
  EXPECT_EQ(train.info().task, Task::kRegression);
  EXPECT_EQ(train.info().target_shape, Shape{3});
  EXPECT_EQ(train.info().classes, 0);
  EXPECT_THAT(values_of<double>(train.sample_target(1)), ElementsAre(4, 5, 6));
}

TEST(ImportNpy, TakesIntegersAsValuesOnRequest) {
  const TemporaryDirectory directory;
  write_file(directory / "x.npy", npy_of<std::int16_t>("<i2", "(2, 2)", {-1, 2, 300, -400}));
  write_file(directory / "y.npy", npy_of<std::int64_t>("<i8", "(2,)", {-7, 9}));
  ImportOptions options = npy_options(directory, "1.0");
  options.task = TaskChoice::kValues;
  const Dataset train = Dataset::open(import_dataset(options).train);
  EXPECT_EQ(train.info().target_shape, Shape{1});
  EXPECT_THAT(values_of<float>(train.sample_input(1)), ElementsAre(300, -400));
  EXPECT_THAT(values_of<double>(train.sample_target(0)), ElementsAre(-7));
}

TEST(ImportNpy, RefusesBadFiles) {
  const TemporaryDirectory directory;
  const ImportOptions options = npy_options(directory, "1.0");
  const auto with_inputs = [&](const std::string& bytes) {
    write_file(directory / "x.npy", bytes);
    write_file(directory / "y.npy", npy_of<std::int64_t>("<i8", "(2,)", {0, 1}));
    return import_error(options);
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(with_inputs(npy_of<float>("<f4", "(2, 2)", {1, 2, 3, kNan})),
              AllOf(HasSubstr("element 1 of sample 1"), HasSubstr("x.npy"), HasSubstr("NaN")));
  EXPECT_THAT(with_inputs(npy_of<float>("<f4", "(2, 1)", {kInfinity, 2})),
              HasSubstr("element 0 of sample 0"));
  EXPECT_THAT(with_inputs(npy_of<float>("<f4", "(3,)", {1, 2, 3})), HasSubstr("has 3 samples but"));
  EXPECT_THAT(with_inputs(npy_of<float>("<f4", "(2, 2)", {1, 2, 3})), HasSubstr("4 bytes short"));
  EXPECT_THAT(with_inputs(npy("<c8", "(2,)", std::string(16, '\0'))), HasSubstr("'<c8'"));
  EXPECT_THAT(with_inputs(npy("<f4", "(2, 2)", std::string(16, '\0'), "True")),
              HasSubstr("Fortran order"));
  EXPECT_THAT(with_inputs(npy("<f4", "()", std::string(4, '\0'))), HasSubstr("0 dimensions"));
  EXPECT_THAT(with_inputs(npy("<f4", "(2LL, L)", "")), HasSubstr("shape cannot be read"));
  // A structured type, in the place of another as long.
  const std::string fields = "[('shape', '<f4'), ('b', '<i4', (2,))]";
  std::string structured = npy(std::string(fields.size() - 2, '?'), "(2,)", std::string(24, '\0'));
  structured.replace(structured.find("'?"), fields.size(), fields);
  EXPECT_THAT(with_inputs(structured), AllOf(HasSubstr("NumPy type " + fields + ", expected f4"),
                                             HasSubstr("structured_to_unstructured()")));
  EXPECT_THAT(with_inputs("a,b\n1,2\n"), HasSubstr("is not a .npy file"));
}

TEST(ImportNpy, RefusesTargetsThatAreNoClasses) {
  const TemporaryDirectory directory;
  write_file(directory / "x.npy", npy_of<float>("<f4", "(2,)", {1, 2}));
  ImportOptions options = npy_options(directory, "1.0");
  write_file(directory / "y.npy", npy_of<std::int64_t>("<i8", "(2,)", {0, -1}));
  EXPECT_THAT(import_error(options), HasSubstr("the label of sample 1"));
  write_file(directory / "y.npy",
             npy_of<std::int64_t>("<i8", "(2,)", {0, std::numeric_limits<std::int64_t>::max()}));
  EXPECT_THAT(import_error(options), AllOf(HasSubstr("the label of sample 1 of"),
                                           HasSubstr("a class number from 0 to 16777215")));
  write_file(directory / "y.npy", npy_of<std::int64_t>("<i8", "(2, 1)", {0, 1}));
  EXPECT_THAT(import_error(options), HasSubstr("--task=values"));
  write_file(directory / "y.npy", npy_of<float>("<f4", "(2,)", {0, 1}));
  options.task = TaskChoice::kClasses;
  EXPECT_THAT(import_error(options), HasSubstr("must be integers"));
  options.task = TaskChoice::kAuto;
  write_file(directory / "y.npy",
             npy_of<float>("<f4", "(2,)", {0, std::numeric_limits<float>::infinity()}));
  EXPECT_THAT(import_error(options), AllOf(HasSubstr("y.npy"), HasSubstr("sample 1")));
}

}  // namespace
}  // namespace strata::io::import_arrays_test
