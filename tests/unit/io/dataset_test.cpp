#include "strata/io/dataset.hpp"

#include <cmath>
#include <fstream>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <signal.h>
#include <sys/resource.h>

#include "strata/io/loader.hpp"

#include "data_files.hpp"
#include "dataset/dataset_names.hpp"
#include "hdf5/hdf5_file.hpp"

namespace strata::io::dataset_test {
namespace {

using test::error_of;
using test::flip_bit;
using test::import_images;
using test::read_file;
using test::TemporaryDirectory;
using test::values_of;
using test::write_file;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// 25 train samples of 20 bytes in three shards of at most ten, and 5 test samples.
ImportReport import_in_shards(const TemporaryDirectory& directory) {
  return import_images(directory, 30, "25,5",
                       [](ImportOptions& options) { options.shard_bytes = 219; });
}

std::string image(std::int64_t sample) {
  return test::image_bytes(sample, 20);
}

std::string open_error(const std::filesystem::path& master) {
  return error_of([&] { (void)Dataset::open(master); });
}

template <typename T>
std::vector<T> read_whole(const std::filesystem::path& path, const char* name, hid_t type,
                          std::vector<hsize_t> expected_shape) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
  const hid_t space = H5Dget_space(dataset);
  std::vector<hsize_t> shape(static_cast<std::size_t>(H5Sget_simple_extent_ndims(space)));
  H5Sget_simple_extent_dims(space, shape.data(), nullptr);
  EXPECT_EQ(shape, expected_shape);
  std::vector<T> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  EXPECT_GE(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  H5Sclose(space);
  H5Dclose(dataset);
  H5Fclose(file);
  return values;
}

TEST(Dataset, FindsEverySampleInItsShard) {
  const TemporaryDirectory directory;
  const Dataset train = Dataset::open(import_in_shards(directory).train);
  ASSERT_EQ(train.info().shards.size(), 3U);
  EXPECT_EQ(train.info().shards[2].file, "train-00002.h5");
  EXPECT_EQ(train.info().shards[2].samples, 5);
  for (std::int64_t i = 0; i < 25; ++i) {
    const std::vector<char> input = values_of<char>(train.sample_input(i));
    EXPECT_EQ(std::string(input.begin(), input.end()), image(i));
    EXPECT_EQ(values_of<std::int64_t>(train.sample_target(i)), std::vector<std::int64_t>{i % 3});
  }
  EXPECT_THROW((void)train.sample_input(25), std::logic_error);
  EXPECT_THAT(train.class_counts(), ElementsAre(9, 8, 8));
}

TEST(Dataset, MasterShowsTheShardsWhole) {
  const TemporaryDirectory directory;
  const ImportReport report = import_in_shards(directory);
  const auto inputs =
      read_whole<std::uint8_t>(report.train, "inputs", H5T_NATIVE_UINT8, {25, 1, 4, 5});
  const auto targets = read_whole<std::int64_t>(report.train, "targets", H5T_NATIVE_INT64, {25});
  for (std::int64_t i = 0; i < 25; ++i) {
    EXPECT_EQ(std::string(inputs.begin() + i * 20, inputs.begin() + i * 20 + 20), image(i));
    EXPECT_EQ(targets[static_cast<std::size_t>(i)], i % 3);
  }
  const auto checksums =
      read_whole<std::uint64_t>(report.train, "checksums", H5T_NATIVE_UINT64, {25, 2});
  const auto last = read_whole<std::uint64_t>(directory / "out/train-00002.h5", "checksums",
                                              H5T_NATIVE_UINT64, {5, 2});
  EXPECT_EQ(checksums.back(), last.back());
  EXPECT_NE(last.back(), 0U);
}

TEST(Dataset, CanBeMovedAsAWhole) {
  const TemporaryDirectory directory;
  import_in_shards(directory);
  std::filesystem::rename(directory / "out", directory / "elsewhere");
  const std::filesystem::path master = directory / "elsewhere/train.h5";
  EXPECT_EQ(read_whole<std::uint8_t>(master, "inputs", H5T_NATIVE_UINT8, {25, 1, 4, 5})[21],
            test::pixel(1, 1));
  EXPECT_EQ(Dataset::open(master).info().samples, 25);
}

TEST(Dataset, StatisticsAreThoseOfTheTrainSplit) {
  const TemporaryDirectory directory;
  const ImportReport report = import_in_shards(directory);
  double sum = 0;
  double squares = 0;
  for (std::int64_t i = 0; i < 25; ++i) {
    for (std::int64_t element = 0; element < 20; ++element) {
      sum += test::pixel(i, element);
      squares += std::pow(test::pixel(i, element), 2);
    }
  }
  const double mean = sum / 500;
  const Dataset train = Dataset::open(report.train);
  const Dataset test = Dataset::open(report.test);
  ASSERT_EQ(train.info().mean.size(), 1U);
  EXPECT_NEAR(train.info().mean[0], mean, 1e-10);
  EXPECT_NEAR(train.info().deviation[0], std::sqrt(squares / 500 - mean * mean), 1e-10);
  EXPECT_EQ(train.info().mean, test.info().mean);
  EXPECT_EQ(train.info().deviation, test.info().deviation);
}

TEST(Dataset, TwoImportsMakeTheSameShardBytes) {
  const TemporaryDirectory first;
  const TemporaryDirectory second;
  import_in_shards(first);
  import_in_shards(second);
  EXPECT_EQ(read_file(first / "out/train-00001.h5"), read_file(second / "out/train-00001.h5"));
}

TEST(Dataset, RefusesFilesThatAreNotOurs) {
  const TemporaryDirectory directory;
  EXPECT_THAT(open_error(directory / "none.h5"), HasSubstr("none.h5 does not exist"));
  write_file(directory / "text.h5", "no HDF5 at all");
  EXPECT_THAT(open_error(directory / "text.h5"), HasSubstr("is not an HDF5 file"));
  const std::filesystem::path foreign = directory / "foreign.h5";
  H5Fclose(H5Fcreate(foreign.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  EXPECT_THAT(open_error(foreign),
              AllOf(HasSubstr("not the master"), HasSubstr("strata data import")));
  import_in_shards(directory);
  EXPECT_THAT(open_error(directory / "out/train-00000.h5"), HasSubstr("not the master"));
}

TEST(Dataset, RefusesAMissingShard) {
  const TemporaryDirectory directory;
  const ImportReport report = import_in_shards(directory);
  std::filesystem::remove(directory / "out/train-00001.h5");
  EXPECT_THAT(open_error(report.train), HasSubstr("the shard train-00001.h5 of"));
}

TEST(Dataset, RefusesAShardThatIsTooShort) {
  for (const bool earlier : {false, true}) {
    const TemporaryDirectory directory;
    const ImportReport report = import_in_shards(directory);
    if (earlier) {
      test::remove_manifest(report.train);
    }
    const std::filesystem::path shard = directory / "out/train-00001.h5";
    std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 100);
    EXPECT_THAT(open_error(report.train),
                AllOf(HasSubstr("train-00001.h5"),
                      HasSubstr(earlier ? "truncated" : "has 2396 bytes, 2496 were written")));
    std::filesystem::resize_file(shard, 0);
    EXPECT_THAT(open_error(report.train),
                HasSubstr(earlier ? "is not an HDF5 file" : "has 0 bytes"));
    // One with fewer samples than the master promises.
    std::filesystem::copy_file(directory / "out/train-00002.h5", shard,
                               std::filesystem::copy_options::overwrite_existing);
    EXPECT_THAT(open_error(report.train),
                earlier ? AllOf(HasSubstr("5 x 1 x 4 x 5"), HasSubstr("promises 10 x 1 x 4 x 5"))
                        : AllOf(HasSubstr("train-00001.h5"), HasSubstr("is damaged")));
  }
}

TEST(Dataset, RefusesAShardOfAnotherImport) {
  for (const bool earlier : {false, true}) {
    const TemporaryDirectory directory;
    const ImportReport report = import_in_shards(directory);
    if (earlier) {
      test::remove_manifest(report.train);
    }
    std::filesystem::copy_file(directory / "out/train-00000.h5", directory / "out/train-00001.h5",
                               std::filesystem::copy_options::overwrite_existing);
    EXPECT_THAT(open_error(report.train),
                HasSubstr(earlier ? "belongs to another import" : "does not match the checksum"));
  }
}

TEST(Dataset, NoticesAFlippedBit) {
  const TemporaryDirectory directory;
  const ImportReport report = import_in_shards(directory);
  flip_bit(directory / "out/train-00001.h5", image(13));
  const Dataset train = Dataset::open(report.train);
  EXPECT_THAT(error_of([&] { (void)train.sample_input(13); }),
              AllOf(HasSubstr("the input of sample 13"), HasSubstr("number 3 of"),
                    HasSubstr("train-00001.h5"), HasSubstr("damaged")));
  EXPECT_NO_THROW((void)train.sample_target(13));
  std::int64_t reported = 0;
  const std::vector<ShardCheck> checks =
      train.verify([&](std::int64_t done, std::int64_t) { reported = done; });
  EXPECT_EQ(reported, 25);
  ASSERT_EQ(checks.size(), 3U);
  EXPECT_EQ(checks[0].problem, "");
  EXPECT_EQ(checks[1].bad_samples, 1);
  EXPECT_EQ(checks[1].problem, "sample 13 is damaged");
  EXPECT_EQ(checks[2].problem, "");
  const Inspection inspection = inspect_dataset(report.train, Inspect::kVerify);
  EXPECT_EQ(inspection.bad_shards, 1);
  EXPECT_THAT(inspection.text, HasSubstr("BAD: sample 13 is damaged"));
}

TEST(Dataset, NoticesADamagedListOfChecksums) {
  const TemporaryDirectory directory;
  const ImportReport report = import_in_shards(directory);
  const auto checksums = read_whole<std::uint64_t>(directory / "out/train-00000.h5", "checksums",
                                                   H5T_NATIVE_UINT64, {10, 2});
  flip_bit(directory / "out/train-00000.h5",
           test::raw_bytes(std::span<const std::uint64_t>(checksums).subspan(6, 1)));
  const Dataset train = Dataset::open(report.train);
  EXPECT_THAT(error_of([&] { (void)train.sample_input(3); }), HasSubstr("sample 3"));
  EXPECT_EQ(train.verify()[0].problem, "the list of checksums is damaged");
}

Dataset table(const TemporaryDirectory& directory, const std::string& name, const std::string& text,
              const std::string& split = "1.0", TaskChoice task = TaskChoice::kAuto) {
  write_file(directory / (name + ".csv"), text);
  ImportOptions options;
  options.order = ImportOrder::kFile;
  options.format = ImportFormat::kCsv;
  options.inputs = {directory / (name + ".csv")};
  options.table.label = text.substr(text.rfind(',', text.find('\n')) + 1, 1);
  options.split = split;
  options.task = task;
  options.output = directory / name;
  const ImportReport report = import_dataset(options);
  return Dataset::open(report.test.empty() ? report.train : report.test);
}

template <typename T>
std::vector<T> all_of(const ConstTensorView& view) {
  const auto values = view.host<T>();
  return {values.begin(), values.end()};
}

TEST(Dataset, ColumnsAndClassesAreMatchedByName) {
  const TemporaryDirectory directory;
  const Dataset train = table(directory, "train", "a,b,y\n1,2,dog\n3,4,bird\n5,9,cat\n");
  Dataset test = table(directory, "test", "b,a,y\n20,10,dog\n40,30,cat\n");
  EXPECT_THAT(test.match_names(train.info(), ""),
              ContainsRegex("test/train.h5 has its columns in another order than .*train/train.h5: "
                            "matched by name; .*test/train.h5 numbers its classes otherwise"));
  EXPECT_THAT(test.info().class_names, ElementsAre("bird", "cat", "dog"));
  EXPECT_THAT(test.info().column_names, ElementsAre("a", "b", "y"));
  EXPECT_THAT(test.info().mean, ElementsAre(20, 30));
  EXPECT_EQ(test.class_counts(), (std::vector<std::int64_t>{0, 1, 1}));
  Loader loader(test, {.order = Order::kSequential,
                       .global_batch = 2,
                       .microbatch = 2,
                       .normalise = Normalise::kNone});
  const LoadedStep& step = loader.next();
  EXPECT_THAT(all_of<float>(step.inputs(0)), ElementsAre(10, 20, 30, 40));
  EXPECT_THAT(all_of<std::int64_t>(step.targets(0)), ElementsAre(2, 1));
  EXPECT_EQ(test.match_names(train.info(), ""), "");
}

TEST(Dataset, NamesThatDoNotMatchAreRefused) {
  struct Case {
    const char* train;
    const char* test;
    const char* words;      ///< of the refusal; empty for none
    const char* line = "";  ///< that is said instead
    std::vector<std::int64_t> labels = {};
    const char* split = "1.0";
  };
  const std::vector<Case> cases{
      {"a,y\n1,cat\n2,dog\n", "a,y\n1,dog\n2,horse\n",
       "test/train.h5 has samples of the class 'horse', which .*train/train.h5 lacks; the advice"},
      {"a,b,y\n1,2,x\n", "a,y\n1,x\n", "train/train.h5 has the input column 'b', which .*test"},
      {"a,y\n1,x\n", "a,b,y\n1,2,x\n", "test/train.h5 has the input column 'b', which .*train"},
      {"a,b,y\n1,2,x\n", "a,c,y\n1,2,x\n", "test/train.h5 has the input column 'c'"},
      {"a,y\n1,0.5\n", "a,z\n1,0.5\n",
       "the label of .*test.* is the column 'z', that of .*train.*'y'"},
      {"a,y\n1,0\n", "a,z\n1,0\n", "the label of"},
      // Names of classes say what labels are, whatever their column is called.
      {"a,y\n1,cat\n2,dog\n", "a,z\n1,dog\n", "", "numbers its classes otherwise", {1}},
      // A class without samples does no harm.
      {"a,y\n1,cat\n2,dog\n", "a,y\n1,emu\n2,dog\n", "", "numbers its", {1}, "1,1"},
      // Class numbers are names where the other's names are numbers.
      {"a,y\n1,-5\n2,2\n3,7\n1,-5\n2,2\n3,7\n", "a,y\n1,2\n2,7.0\n", "", "numbers its", {1, 2}},
      {"a,y\n1,-5\n2,2\n", "a,y\n1,2\n2,3\n", "has samples of the class '3'"},
      {"a,y\n1,0\n2,2\n", "a,y\n1,-1\n2,2\n", "has samples of the class '-1'"},
      {"a,y\n1,0\n2,2\n", "a,y\n1,-1\n2,2\n", "", "numbers its", {2}, "1,1"},
      {"a,y\n1,cat\n2,dog\n",
       "a,y\n1,1\n2,0\n",
       "",
       "the classes of .*test/train.h5 have no names: its class 0 counts as 'cat'",
       {1, 0}},
      {"a,y\n1,0\n2,1\n",
       "a,y\n1,dog\n2,cat\n",
       "",
       "the classes of .*train/train.h5 have no names: its class 0 counts as 'cat'",
       {1, 0}},
      {"a,y\n1,0\n2,1\n", "a,y\n1,1\n", "", "^$", {1}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.test);
    const TemporaryDirectory directory;
    const Dataset train = table(directory, "train", one.train);
    Dataset test = table(directory, "test", one.test, one.split);
    if (*one.words != '\0') {
      EXPECT_THAT(error_of([&] { test.match_names(train.info(), "the advice"); }),
                  ContainsRegex(one.words));
      continue;
    }
    EXPECT_THAT(test.match_names(train.info(), ""), ContainsRegex(one.line));
    for (std::size_t i = 0; i < one.labels.size(); ++i) {
      EXPECT_EQ(test.label(static_cast<std::int64_t>(i)), one.labels[i]);
    }
  }
}

TEST(Dataset, NamesThatAreNotKnownAreNotCompared) {
  const DatasetInfo model{.classes = 2, .class_names = {"caf\ufffd", "tea"}, .column_names = {}};
  const DatasetInfo earlier{
      .classes = 2, .class_names = {"caf\xe9", "tea"}, .column_names = {"a", "y"}};
  EXPECT_THAT(matched_classes(earlier, model), testing::IsEmpty());
  EXPECT_THAT(matched_columns(earlier, model, ""), testing::IsEmpty());
  // Those of damaged records lead to no class that is not there.
  const DatasetInfo damaged{.classes = 1, .class_names = {"milk", "tea", "tea"}};
  EXPECT_THAT(matched_classes({.classes = 3, .class_names = {"tea", "milk"}}, damaged),
              ElementsAre(-1, 0, -1));
}

TEST(Dataset, CountsNoDamagedLabel) {
  const TemporaryDirectory directory;
  const ImportReport report = import_in_shards(directory);
  const std::filesystem::path shard = directory / "out/train-00000.h5";
  {
    const hdf5::File file = hdf5::File::open(shard, ExitCode::kData);
    const std::int64_t label = file.open_dataset("targets").byte_range().begin + 8;
    std::fstream bytes(shard, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(label);
    bytes.put(2);  // it was 1; both are classes
  }
  EXPECT_THAT(error_of([&] { (void)inspect_dataset(report.train, Inspect::kDescribe); }),
              HasSubstr("the target of sample 1 (number 1 of"));
}

TEST(Dataset, InspectionDescribesIt) {
  const TemporaryDirectory directory;
  write_file(directory / "table.csv",
             "height,age,kind\n1.5,2,oak\n2.5,2,elm\n3.5,2,oak\n4.5,2,oak\n");
  ImportOptions options;
  options.order = ImportOrder::kFile;
  options.format = ImportFormat::kCsv;
  options.inputs = {directory / "table.csv"};
  options.table.label = "kind";
  options.split = "4";
  options.output = directory / "out";
  const Inspection inspection = inspect_dataset(import_dataset(options).train, Inspect::kVerify);
  EXPECT_EQ(inspection.bad_shards, 0);
  EXPECT_THAT(inspection.text,
              AllOf(HasSubstr("csv: table.csv, label kind"), HasSubstr("classification"),
                    HasSubstr("samples     4"), HasSubstr("2 float32"), HasSubstr("elm"),
                    HasSubstr("train-00000.h5"), HasSubstr("ok"), Not(HasSubstr("BAD"))));
  EXPECT_THAT(inspection.text, HasSubstr("    1  oak         3"));
  EXPECT_THAT(inspection.text, HasSubstr("\nage              2                0\n"));
  EXPECT_THAT(inspect_dataset(directory / "out/train.h5", Inspect::kDescribe).text,
              HasSubstr("not read"));
}

// Limits the size of files as a full disk would, for as long as it lives.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    handler_ = signal(SIGXFSZ, SIG_IGN);
  }
  ~SmallDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  rlimit before_{};
  sighandler_t handler_ = SIG_DFL;
};

TEST(Dataset, AFullDiskLeavesNothingBehind) {
  const TemporaryDirectory directory;
  write_file(directory / "images", test::images(1000, 100, 100));
  write_file(directory / "labels", test::labels(1000, 3));
  const ImportOptions options = test::idx_options(directory, "900,100");
  {
    const SmallDisk disk(512);
    EXPECT_THAT(error_of([&] { import_dataset(options); }),
                ContainsRegex("out/train-00000.h5.[0-9a-f]{16}.partial: "));
  }
  EXPECT_FALSE(std::filesystem::exists(directory / "out"));
  std::optional<SmallDisk> disk;
  EXPECT_THAT(
      error_of([&] {
        import_dataset(options, [&](std::int64_t done, std::int64_t) {
          EXPECT_LT(done, 900);
          disk.emplace(100000);
        });
      }),
      AllOf(HasSubstr("cannot write"), ContainsRegex("out/train-00000.h5.[0-9a-f]{16}.partial: "),
            HasSubstr("free some space")));
  disk.reset();
  EXPECT_FALSE(std::filesystem::exists(directory / "out"));
  EXPECT_EQ(import_dataset(options).train_samples, 900);
}

TEST(Dataset, ADiskThatIsTooSmallIsSeenBeforehand) {
  const TemporaryDirectory directory;
  const auto available = std::filesystem::space(directory.path()).available;
  const std::uintmax_t samples = available / 20 + 1000000;
  const std::string rows = std::to_string(samples);
  const ImportOptions options =
      test::npy_options(directory, rows, test::npy("<f4", "(" + rows + ", 4)", ""),
                        test::npy("|u1", "(" + rows + ",)", ""));
  std::error_code error;
  std::filesystem::resize_file(directory / "x.npy", 128 + samples * 16, error);
  if (error) {
    GTEST_SKIP() << "the file system has no files of " << samples * 16 << " bytes";
  }
  std::filesystem::resize_file(directory / "y.npy", 128 + samples);
  EXPECT_THAT(error_of([&] { import_dataset(options); }),
              AllOf(HasSubstr("the data set takes"), HasSubstr("has only")));
}

}  // namespace
}  // namespace strata::io::dataset_test
