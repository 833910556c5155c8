#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "strata/io/dataset.hpp"

#include "data_files.hpp"

namespace strata::io::import_csv_test {
namespace {

using namespace std::string_literals;

using test::error_of;
using test::TemporaryDirectory;
using test::values_of;
using test::write_file;
using ::testing::ContainsRegex;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ImportOptions csv_options(const TemporaryDirectory& directory, const std::string& text) {
  write_file(directory / "table.csv", text);
  ImportOptions options;
  options.order = ImportOrder::kFile;
  options.format = ImportFormat::kCsv;
  options.inputs = {directory / "table.csv"};
  options.table.label = "kind";
  options.split = "1.0";
  options.output = directory / "out";
  return options;
}

Dataset imported(const ImportOptions& options) {
  return Dataset::open(import_dataset(options).train);
}

TEST(ImportCsv, NamesTextLabelsInSortedOrder) {
  const TemporaryDirectory directory;
  const Dataset train = imported(csv_options(directory,
                                             "a,kind,b\n"
                                             "1,pear,2.5\n"
                                             "-3,apple,4e2\n"
                                             "5,pear,+6\n"));
  EXPECT_EQ(train.info().input_shape, Shape{2});
  EXPECT_EQ(train.info().input_dtype, DType::kFloat32);
  EXPECT_EQ(train.info().task, Task::kClassification);
  EXPECT_EQ(train.info().classes, 2);
  EXPECT_THAT(train.info().class_names, ElementsAre("apple", "pear"));
  EXPECT_THAT(train.info().column_names, ElementsAre("a", "b", "kind"));
  EXPECT_THAT(values_of<float>(train.sample_input(1)), ElementsAre(-3, 400));
  EXPECT_THAT(values_of<float>(train.sample_input(2)), ElementsAre(5, 6));
  EXPECT_EQ(values_of<std::int64_t>(train.sample_target(0))[0], 1);
  EXPECT_EQ(values_of<std::int64_t>(train.sample_target(1))[0], 0);
  EXPECT_THAT(train.info().mean, ElementsAre(DoubleEq(1.0), DoubleEq(408.5 / 3)));
}

TEST(ImportCsv, UnderstandsQuotesLineEndsAndBlankLines) {
  const TemporaryDirectory directory;
  const Dataset train = imported(csv_options(directory,
                                             "\xEF\xBB\xBF\"a, first\",kind\r\n"
                                             "\r\n"
                                             " \"1\" ,\"a \"\"b\"\",\nc\"\r\n"
                                             "2, plain \r\n"
                                             "3,\"\"\"\"\n"
                                             "\n"
                                             "4,plain"));
  EXPECT_EQ(train.info().samples, 4);
  EXPECT_THAT(train.info().class_names, ElementsAre("\"", "a \"b\",\nc", "plain"));
  EXPECT_EQ(values_of<float>(train.sample_input(3))[0], 4.0F);
}

TEST(ImportCsv, DecidesByTheLabels) {
  struct Case {
    const char* text;
    TaskChoice task;
    std::int64_t classes;
    Task expected_task;
    std::int64_t expected_classes;
    std::vector<std::string> names;
  };
  const std::vector<Case> cases{
      {"x,kind\n1,0\n2,3\n", TaskChoice::kAuto, 0, Task::kClassification, 4, {}},
      {"x,kind\n1,-1\n2,1\n", TaskChoice::kAuto, 0, Task::kClassification, 2, {"-1", "1"}},
      {"x,kind\n1,0.5\n2,3\n", TaskChoice::kAuto, 0, Task::kRegression, 0, {}},
      {"x,kind\n1,0\n2,3\n", TaskChoice::kValues, 0, Task::kRegression, 0, {}},
      {"x,kind\n1,0\n2,3\n", TaskChoice::kAuto, 7, Task::kClassification, 7, {}},
      {"x,kind\n1,0\n2,b\n", TaskChoice::kClasses, 0, Task::kClassification, 2, {"0", "b"}},
      // Whole numbers, however they are written.
      {"x,kind\n1,0.0\n2,1.0\n3,2.0\n1,0.0\n2,1.0\n3,2.0\n",
       TaskChoice::kAuto,
       0,
       Task::kClassification,
       3,
       {}},
      {"x,kind\n1,0\n2,-0.0\n3,+1\n4,2e0\n3,1\n4,2\n",
       TaskChoice::kAuto,
       0,
       Task::kClassification,
       3,
       {}},
      // Too many different ones are values, unless they are asked for.
      {"x,kind\n1,7\n2,3\n3,5\n", TaskChoice::kAuto, 0, Task::kRegression, 0, {}},
      {"x,kind\n1,7\n2,3\n3,5\n", TaskChoice::kClasses, 0, Task::kClassification, 8, {}},
      // Far from each other, they become names.
      {"x,kind\n1,1001\n2,3\n", TaskChoice::kAuto, 0, Task::kClassification, 2, {"1001", "3"}},
      {"x,kind\n1,0.0\n2,1.0\n", TaskChoice::kClasses, 0, Task::kClassification, 2, {}},
      {"x,kind\n1,-1.0\n2,1\n3,1.0\n", TaskChoice::kAuto, 0, Task::kClassification, 2, {"-1", "1"}},
      {"x,kind\n1,0.50\n2,1.0\n3,.5\n",
       TaskChoice::kClasses,
       0,
       Task::kClassification,
       2,
       {"0.5", "1"}},
      {"x,kind\n1,1.0\n2,b\n", TaskChoice::kClasses, 0, Task::kClassification, 2, {"1.0", "b"}},
      {"x,kind\n1,1e300\n2,3\n", TaskChoice::kAuto, 0, Task::kRegression, 0, {}},
  };
  for (const Case& expected : cases) {
    const TemporaryDirectory directory;
    ImportOptions options = csv_options(directory, expected.text);
    options.task = expected.task;
    options.classes = expected.classes;
    const Dataset dataset = imported(options);
    EXPECT_EQ(dataset.info().task, expected.expected_task) << expected.text;
    EXPECT_EQ(dataset.info().classes, expected.expected_classes) << expected.text;
    EXPECT_EQ(dataset.info().class_names, expected.names) << expected.text;
    if (expected.expected_task == Task::kRegression) {
      EXPECT_EQ(dataset.info().target_shape, Shape{1});
      EXPECT_EQ(values_of<double>(dataset.sample_target(1))[0], 3.0);
    }
  }
}

struct BadCsv {
  std::string text;
  std::vector<const char*> message;
  TaskChoice task = TaskChoice::kAuto;
  std::int64_t classes = 0;
};

TEST(ImportCsv, NamesWhatIsWrong) {
  const std::vector<BadCsv> cases{
      {"a,b,kind\n1,2,x\n1,2\n", {"table.csv:3:", "2 fields", "3 columns"}},
      {"a,kind\n1,\"x\ny\"\n1,2,3\n", {"table.csv:4:"}},
      {"a,kind\n1,x\n2e,x\n", {"table.csv:3:", "column 'a': '2e' is not a number"}},
      {"a,kind\n1,x\n,x\n", {"table.csv:3: column 'a': '' is missing", "--missing=mean"}},
      {"a,kind\nnan,x\n", {"column 'a': 'nan' is missing"}},
      {"a,kind\n1,x\n-inf,x\n", {"table.csv:3: column 'a': '-inf' is infinite"}},
      {"a,kind\n1e39,x\n", {"'1e39' is too large for a 32-bit"}},
      {"a,kind\n-1e400,x\n", {"'-1e400' is too large for a 32-bit"}},
      {"a,kind\n1\0,x\n"s, {"table.csv:2: column 'a': '1\\x00' holds a NUL byte"}},
      {"a,kind\n1,cat\n2,c\0at\0\n"s, {"table.csv:3: the label 'c\\x00at' holds a NUL byte"}},
      {"a,kind\n1,\0\n"s, {"table.csv:2: the label '' is missing"}},
      {"a,kind\n1,x\n2,caf\xe9\n",
       {"table.csv:3: the label 'caf\\xe9' is not UTF-8 text", "convert"}},
      {"a\0,kind\n1,x\n"s, {"table.csv:1: the column 'a\\x00' holds a NUL byte"}},
      {"caf\xe9,kind\n1,x\n", {"table.csv:1: the column 'caf\\xe9' is not UTF-8 text"}},
      {"a,kind,kind\n1,x,x\n", {"table.csv:1: the column 'kind' is there twice"}},
      {"a,b,a,kind\n1,2,3,x\n", {"the column 'a' is there twice"}},
      {std::string(1001, 'a') + ",kind\n1,x\n", {"has a name of 1001 bytes"}},
      {"a,kind\n1,x\n1,\n", {"table.csv:3: the label '' is missing"}},
      {"a,kind\n1,0.5\n1,inf\n", {"not finite"}},
      {"a,kind\n1,x\"y\n", {"has a quote"}},
      {"a,kind\n1,\"x\"y\n", {"goes on after its closing quote"}},
      {"a,kind\n1,\"x\n", {"never closed"}},
      {"a,kinds,k\n1,2,3\n", {"no column 'kind'", "did you mean 'kinds'"}},
      {"kind\n1\n", {"no column besides the label"}},
      {"a,kind\n", {"no rows"}},
      {"", {"is empty"}},
      {"a,kind\n1,3\n2,4\n3,x\n",
       {"table.csv:4: the label 'x' is text", "table.csv:2: the label '3' is a number"}},
      {"a,kind\n1,x\n", {"not a number"}, TaskChoice::kValues},
      {"a,kind\n1,0\n2,3\n", {"table.csv:3:", "the label 3 is out of range"}, TaskChoice::kAuto, 3},
      {"a,kind\n1,x\n2,y\n3,z\n", {"3 different labels"}, TaskChoice::kAuto, 2},
  };
  for (const BadCsv& bad : cases) {
    const TemporaryDirectory directory;
    ImportOptions options = csv_options(directory, bad.text);
    options.task = bad.task;
    options.classes = bad.classes;
    const std::string message = error_of([&] { import_dataset(options); });
    for (const char* part : bad.message) {
      EXPECT_THAT(message, HasSubstr(part)) << bad.text;
    }
  }
}

TEST(ImportCsv, NulsThatPadALabelAreLeftOut) {
  const TemporaryDirectory directory;
  const Dataset train =
      imported(csv_options(directory, "a,kind\n1,cat\0\0\0\n2,dog\n3,horse\0\n4,cat\n"s));
  EXPECT_THAT(train.info().class_names, ElementsAre("cat", "dog", "horse"));
  EXPECT_EQ(train.class_counts(), (std::vector<std::int64_t>{2, 1, 1}));
}

TEST(ImportCsv, ATinyNumberIsZero) {
  const TemporaryDirectory directory;
  const Dataset train =
      imported(csv_options(directory, "a,b,kind\n1e-325,1e-50,0\n1e-400,-1e-400,1\n"));
  EXPECT_THAT(values_of<float>(train.sample_input(0)), ElementsAre(0, 0));
  EXPECT_THAT(values_of<float>(train.sample_input(1)), ElementsAre(0, 0));
}

TEST(ImportCsv, MatchesTheColumnsOfSeveralFilesByName) {
  const TemporaryDirectory directory;
  ImportOptions options = csv_options(directory, "a,kind,b\n1,x,2\n");
  options.inputs.push_back(directory / "more.csv");
  write_file(directory / "more.csv", "kind,b,a\ny,4,3\n");
  const Dataset train = imported(options);
  EXPECT_THAT(values_of<float>(train.sample_input(1)), ElementsAre(3, 4));
  EXPECT_EQ(values_of<std::int64_t>(train.sample_target(1))[0], 1);
  EXPECT_THAT(train.info().column_names, ElementsAre("a", "b", "kind"));
  options.existing = Existing::kReplace;
  write_file(directory / "more.csv", "kind,a\ny,3\n");
  EXPECT_THAT(error_of([&] { import_dataset(options); }),
              ContainsRegex("table.csv has the column 'b', which .*more.csv lacks"));
  write_file(directory / "more.csv", "kind,a,b,c\ny,3,4,5\n");
  EXPECT_THAT(error_of([&] { import_dataset(options); }),
              ContainsRegex("more.csv has the column 'c', which .*table.csv lacks"));
}

TEST(ImportCsv, SplitsAFileOfUnknownLength) {
  const TemporaryDirectory directory;
  std::string text = "x,kind\n";
  for (int i = 0; i < 1000; ++i) {
    text += std::to_string(i) + "," + std::to_string(i % 4) + "\n";
  }
  ImportOptions options = csv_options(directory, text);
  options.split = "0.75,0.2";
  options.shard_bytes = 400;
  const ImportReport report = import_dataset(options);
  EXPECT_EQ(report.train_samples, 750);
  EXPECT_EQ(report.test_samples, 200);
  EXPECT_EQ(report.unused_samples, 50);
  const Dataset train = Dataset::open(report.train);
  const Dataset test = Dataset::open(report.test);
  EXPECT_EQ(train.info().shards.size(), 8U);
  EXPECT_EQ(values_of<float>(test.sample_input(199))[0], 949.0F);
  EXPECT_EQ(train.info().mean, test.info().mean);
  EXPECT_DOUBLE_EQ(train.info().mean[0], 374.5);
}

std::int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

TEST(ImportCsv, NeedsFarLessMemoryThanTheFileHas) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP()
      << "sanitizers keep freed memory and shadows of it: a peak says nothing about strata";
#endif
  const TemporaryDirectory directory;
  ImportOptions options = csv_options(directory, "");
  {
    std::ofstream file(directory / "table.csv");
    file << "kind,a,b,c,d,e,f,g,h\n";
    const std::string rest =
        ",0.12345678,0.12345678,0.12345678,0.12345678,0.12345678,0.12345678,"
        "0.12345678,0.12345678\n";
    for (int i = 0; i < 700000; ++i) {
      file << i % 10 << rest;
    }
  }
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(directory / "table.csv"));
  ASSERT_GT(size, std::int64_t{60} << 20);
  const std::int64_t before = peak_bytes();
  const ImportReport report = import_dataset(options);
  EXPECT_EQ(report.train_samples, 700000);
  EXPECT_LT(peak_bytes() - before, std::int64_t{30} << 20);
}

TEST(ImportCsv, MemoryForFieldsIsBounded) {
  const auto repeated = [](const char* text, std::size_t bytes) {
    std::string all;
    while (all.size() < bytes) {
      all += text;
    }
    return all;
  };
  struct Case {
    std::string text;
    const char* words;
  };
  const std::size_t many = std::size_t{3} << 20;
  const std::vector<Case> cases{
      {"kind" + repeated(",a", std::size_t{20} << 20), "table.csv:1: the header does not end"},
      {"kind" + repeated(",a", many) + "\n1,2\n", "at most 1048576 columns are read"},
      {"kind,a\n1" + repeated(",2", many) + "\n", "at most 1048576 columns are read"},
      {"kind,a\n1" + repeated(",\"2\"", many) + "\n", "has 786433 fields, the header names 2"},
      {"kind,a\n" + std::string(1001, 'x') + ",2\n", "the label has 1001 bytes, at most 1000"}};
  const std::int64_t before = peak_bytes();
  for (const Case& one : cases) {
    const TemporaryDirectory directory;
    EXPECT_THAT(error_of([&] { import_dataset(csv_options(directory, one.text)); }),
                HasSubstr(one.words));
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(peak_bytes() - before, std::int64_t{100} << 20);
#else
  static_cast<void>(before);
#endif
}

}  // namespace
}  // namespace strata::io::import_csv_test
