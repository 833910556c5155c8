#include <algorithm>
#include <cmath>

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zstd.h>

#include "strata/io/dataset.hpp"
#include "strata/io/table.hpp"

#include "data_files.hpp"
#include "import/label_counts.hpp"

namespace strata::io::import_tables_test {
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

ImportOptions table_options(const TemporaryDirectory& directory, const std::string& text,
                            TableOptions table, ImportFormat format = ImportFormat::kCsv) {
  write_file(directory / "t", text);
  ImportOptions options;
  options.order = ImportOrder::kFile;
  options.format = format;
  options.inputs = {directory / "t"};
  options.table = std::move(table);
  options.split = "1.0";
  options.output = directory / "out";
  options.existing = Existing::kReplace;
  return options;
}

std::vector<std::vector<float>> inputs_of(const Dataset& dataset) {
  std::vector<std::vector<float>> inputs;
  for (std::int64_t i = 0; i < dataset.info().samples; ++i) {
    inputs.push_back(values_of<float>(dataset.sample_input(i)));
  }
  return inputs;
}

TEST(ImportTable, TheSameRowsInEveryForm) {
  struct Form {
    const char* name;
    ImportFormat format;
    std::string text;
  };
  const std::vector<Form> forms{
      {"commas", ImportFormat::kCsv, "a,b,kind\n1,2.5,x\n-3,\"4\",\"y, z\"\n"},
      {"semicolons", ImportFormat::kCsv, "a;b;kind\n1;2.5;x\n-3;\"4\";y, z\n"},
      {"tabs", ImportFormat::kCsv, "a\tb\tkind\r\n1\t2.5\tx\r\n-3\t \"4\"\ty, z\r\n"},
      {"bars", ImportFormat::kCsv, "a | b | kind\n1 | 2.5 | x\n-3 | 4 | y, z\n"},
      {"commas in quotes", ImportFormat::kCsv, "\"a\";b;\"kind\"\n1;2.5;x\n-3;4;\"y, z\"\n"},
      {"JSON lines", ImportFormat::kJsonLines,
       "\xEF\xBB\xBF{\"kind\": \"x\", \"a\": 1, \"b\": 2.5}\r\n\n"
       "{\"a\": -3, \"b\": \"4\", \"kind\": \"y, z\"}"}};
  for (const Form& form : forms) {
    SCOPED_TRACE(form.name);
    const TemporaryDirectory directory;
    const Dataset train = Dataset::open(
        import_dataset(table_options(directory, form.text, {.label = "kind"}, form.format)).train);
    EXPECT_THAT(train.info().column_names, ElementsAre("a", "b", "kind"));
    EXPECT_THAT(train.info().class_names, ElementsAre("x", "y, z"));
    EXPECT_THAT(inputs_of(train), ElementsAre(ElementsAre(1, 2.5), ElementsAre(-3, 4)));
  }
}

TEST(ImportTable, AFieldOfTabsIsEmpty) {
  const TemporaryDirectory directory;
  const ImportOptions options = table_options(directory, "a\tkind\n1\tx\n\t\n", {.label = "kind"});
  EXPECT_THAT(error_of([&] { import_dataset(options); }),
              HasSubstr("t:3: the label '' is missing"));
}

constexpr const char* kPeople =
    "id,age,city,code,pay\n"
    "1,30,Rome,7,1.5\n"
    "2,NA,Oslo,9,2.5\n"
    "3,50,,7,3.5\n"
    "4,40,Rome,7,4.5\n";

TEST(ImportTable, ColumnsOfNamesBecomeInputsAndMissingFieldsAreFilled) {
  const TemporaryDirectory directory;
  const TableOptions table{.label = "pay",
                           .columns = {},
                           .ignore = {"id"},
                           .categories = {"code"},
                           .missing = Missing::kMedian};
  const ImportReport report = import_dataset(table_options(directory, kPeople, table));
  const Dataset train = Dataset::open(report.train);
  const DatasetInfo& info = train.info();
  EXPECT_THAT(info.column_names,
              ElementsAre("age", "city=", "city=Oslo", "city=Rome", "code=7", "code=9", "pay"));
  EXPECT_THAT(inputs_of(train),
              ElementsAre(ElementsAre(30, 0, 0, 1, 1, 0), ElementsAre(40, 0, 1, 0, 0, 1),
                          ElementsAre(50, 1, 0, 0, 1, 0), ElementsAre(40, 0, 0, 1, 1, 0)));
  ASSERT_EQ(info.table.size(), 3U);
  EXPECT_EQ(info.table[0].name, "age");
  EXPECT_EQ(info.table[0].missing, 40.0);
  EXPECT_THAT(info.table[0].categories, IsEmpty());
  EXPECT_THAT(info.table[1].categories, ElementsAre("", "Oslo", "Rome"));
  EXPECT_THAT(info.table[2].categories, ElementsAre("7", "9"));
  EXPECT_TRUE(std::isnan(info.table[2].missing));
  EXPECT_THAT(inspect_dataset(report.train, Inspect::kVerify).text,
              AllOf(HasSubstr("label       pay\n"),
                    HasSubstr("columns     age (missing: 40), city (3 names), code (2 names)\n"),
                    HasSubstr("city=Oslo")));

  // The stored columns turn other fields into the same inputs.
  std::vector<float> inputs(3);
  EXPECT_EQ(encode_field(info.table[1], "Oslo", inputs), "");
  EXPECT_THAT(inputs, ElementsAre(0, 1, 0));
  EXPECT_EQ(encode_field(info.table[1], "n/a", inputs), "");
  EXPECT_THAT(inputs, ElementsAre(1, 0, 0));
  EXPECT_THAT(encode_field(info.table[1], "Paris", inputs), HasSubstr("is none of the names"));
  EXPECT_THAT(encode_field(info.table[2], "", inputs), HasSubstr("is missing"));
  EXPECT_EQ(encode_field(info.table[0], "NaN", std::span(inputs).first(1)), "");
  EXPECT_EQ(inputs[0], 40);

  ImportOptions others = table_options(directory, kPeople, table);
  others.table.missing = Missing::kDrop;
  const ImportReport dropped = import_dataset(others);
  EXPECT_THAT(dropped.notes, ElementsAre("2 of 4 rows have missing fields and are left out"));
  EXPECT_THAT(inputs_of(Dataset::open(dropped.train)),
              ElementsAre(ElementsAre(30, 1, 1), ElementsAre(40, 1, 1)));
  // A label cannot be filled in.
  others.table.label = "city";
  others.table.missing = Missing::kMean;
  EXPECT_THAT(import_dataset(others).notes,
              ElementsAre("1 of 4 rows have no label and are left out"));
  others.table.label = "pay";
  others.table.missing = Missing::kDrop;
  // Only columns that are used count.
  others.table.columns = {"code"};
  EXPECT_EQ(import_dataset(others).train_samples, 4);
  others.table.columns = {"age"};
  others.table.ignore = {};
  others.table.categories = {};
  others.table.missing = Missing::kMean;
  EXPECT_EQ(Dataset::open(import_dataset(others).train).info().table[0].missing, 40.0);
}

TEST(ImportTable, NamesWhatIsWrong) {
  struct Bad {
    std::string text;
    TableOptions table;
    std::vector<const char*> words;
    ExitCode code = ExitCode::kData;
    ImportFormat format = ImportFormat::kCsv;
  };
  std::string many = "name,y\n";
  for (int i = 0; i < 200; ++i) {
    many += fmt::format("n{},{}\n", i, i % 2);
  }
  const ImportFormat json = ImportFormat::kJsonLines;
  const std::vector<Bad> cases{
      {kPeople,
       {.label = "pay"},
       {"t:3: column 'age': 'NA' is missing", "--missing=mean", "--ignore=age"}},
      {"a,kind\n1,x\n2,NA\n", {.label = "kind"}, {"t:3: the label 'NA' is missing"}},
      {kPeople, {}, {"--label=COLUMN", "id, age, city, code, pay"}, ExitCode::kUsage},
      {kPeople,
       {.label = "wage"},
       {"no column 'wage'", "did you mean 'age'?", "id, age, city, code, pay"}},
      {kPeople, {.label = "pay", .ignore = {"ages"}}, {"no column 'ages' of --ignore", "'age'"}},
      {kPeople,
       {.label = "pay", .columns = {"age", "pay"}},
       {"'pay' of --columns is the --label"},
       ExitCode::kUsage},
      {kPeople,
       {.label = "pay", .ignore = {"id", "age", "city", "code"}},
       {"no column besides the label"}},
      {"5,1\n6,0\n", {.label = "y"}, {"t:1: the first line holds numbers"}},
      {"a,y\n1,0\ntwo,1\n",
       {.label = "y"},
       {"t:3: column 'a': 'two' is not a number, but '1' is", "--categories=a"}},
      {"a;y\n1,5;0\n2,5;1\n",
       {.label = "y"},
       {"t:2: column 'a': '1,5' is not a number: write a decimal point"}},
      {many,
       {.label = "y"},
       {"column 'name' has 200 different texts in 200 rows", "--ignore=name"}},
      {"a,y\nNA,0\nNA,1\n",
       {.label = "y", .missing = Missing::kMean},
       {"'a' has no values", "--ignore=a"}},
      {"a,y\n,0\n1,\n",
       {.label = "y", .missing = Missing::kDrop},
       {"no rows that are whole; 2 are left out"}},
      {"a=b,a,y\n1,b,0\n1,b,1\n", {.label = "y"}, {"two inputs would be called 'a=b'"}},
      {"{\"a\": 1, \"y\": 0}\n{\"a\": 1\n",
       {.label = "y"},
       {"t:2: the line is no JSON object"},
       ExitCode::kData,
       json},
      {"[{\"a\": 1}]\n",
       {.label = "y"},
       {"t:1: the line is no JSON object", "jq"},
       ExitCode::kData,
       json},
      {"", {.label = "y"}, {"is empty, an object per line"}, ExitCode::kData, json},
      {"{\"a\": [1], \"y\": 0}\n",
       {.label = "y"},
       {"t:1: the field 'a' is an array"},
       ExitCode::kData,
       json},
      {"{\"y\": 0}\n{\"a\": {}, \"y\": 0}\n",
       {.label = "y"},
       {"t:2: the field 'a' is an object"},
       ExitCode::kData,
       json},
      {"{\"a\": 1, \"y\": 0}\n{\"b\": 1, \"y\": 0}\n",
       {.label = "y"},
       {"t:2: column 'a': '' is missing"},
       ExitCode::kData,
       json},
      {"{\"a\": 1, \"y\": 0}\n{\"y\": 0}\n",
       {.label = "y"},
       {"t:2: column 'a': '' is missing"},
       ExitCode::kData,
       json},
  };
  for (const Bad& bad : cases) {
    const TemporaryDirectory directory;
    const std::string message =
        error_of([&] { import_dataset(table_options(directory, bad.text, bad.table, bad.format)); },
                 bad.code);
    for (const char* words : bad.words) {
      EXPECT_THAT(message, HasSubstr(words)) << bad.text;
    }
  }
  // With --categories, or chosen fields, some are right; and columns may be called by their number.
  const TemporaryDirectory directory;
  EXPECT_EQ(import_dataset(table_options(directory, "0,1\n5,0\n7,1\n", {.label = "1"})).classes, 2);
  EXPECT_EQ(Dataset::open(import_dataset(table_options(directory, many,
                                                       {.label = "y", .categories = {"name"}}))
                              .train)
                .info()
                .input_shape,
            Shape{200});
  EXPECT_EQ(
      import_dataset(table_options(directory,
                                   "{\"a\": 1, \"y\": true}\n{\"a\": 2, \"b\": 1, \"y\": false}\n",
                                   {.label = "y", .columns = {"a"}}, json))
          .classes,
      2);
  // A field that is not taken may hold anything, in any line.
  EXPECT_EQ(import_dataset(
                table_options(directory,
                              "{\"a\": 1, \"y\": true}\n{\"a\": 2, \"b\": [1], \"y\": false}\n",
                              {.label = "y", .ignore = {"b"}}, json))
                .classes,
            2);
}

TEST(LabelCounts, FewAreClassesAndManyAreValues) {
  struct Case {
    std::int64_t samples;
    std::function<std::int64_t(std::int64_t)> label;
    bool classes;
  };
  const std::vector<Case> cases{{2, [](std::int64_t i) { return i; }, true},
                                {3, [](std::int64_t i) { return i; }, false},
                                {4, [](std::int64_t i) { return i % 3; }, true},
                                {4, [](std::int64_t i) { return 1 + i % 3; }, false},
                                {4, [](std::int64_t i) { return i % 3 * 2; }, false},
                                {25, [](std::int64_t i) { return i % 21; }, false},
                                {150, [](std::int64_t i) { return i / 50; }, true},
                                {200, [](std::int64_t i) { return i % 20 * 1000; }, true},
                                {1742, [](std::int64_t i) { return i * 77 % 1201; }, false},
                                {60000, [](std::int64_t i) { return i % 1000; }, true},
                                {60000, [](std::int64_t i) { return i % 1000 * 50; }, false},
                                {9000, [](std::int64_t i) { return i % 1000; }, false},
                                {700000, [](std::int64_t i) { return i % 629368; }, false}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    LabelCounts counts;
    for (std::int64_t sample = 0; sample < cases[i].samples; ++sample) {
      counts.add(cases[i].label(sample));
    }
    EXPECT_EQ(counts.are_classes(), cases[i].classes) << "case " << i;
  }
  // So many that they are not counted, in any order.
  for (const std::int64_t step : {1, 7}) {
    LabelCounts counts;
    for (std::int64_t sample = 0; sample < 300000; ++sample) {
      counts.add(sample * step % 300000);
    }
    EXPECT_TRUE(counts.has_few_gaps());
  }
}

TEST(ImportTable, SaysWhatItTookWholeNumbersFor) {
  const TemporaryDirectory directory;
  std::string text = "a,y\n";
  for (int i = 0; i < 300; ++i) {
    text += fmt::format("{},{}\n", i, i * 7);
  }
  ImportOptions options = table_options(directory, text, {.label = "y"});
  ImportReport report = import_dataset(options);
  EXPECT_EQ(report.classes, 0);
  EXPECT_THAT(report.notes,
              ElementsAre("column 'y': 300 different whole numbers in 300 samples are taken as "
                          "values; if they are classes, give --task=classes"));
  options.task = TaskChoice::kClasses;
  report = import_dataset(options);
  EXPECT_EQ(report.classes, 300);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < 300; ++i) {
    labels.push_back(i % 15);
  }
  ImportOptions arrays =
      test::npy_options(directory, "1.0", test::npy_of("<f4", "(300,)", std::vector<float>(300)),
                        test::npy_of("<i8", "(300,)", labels));
  arrays.existing = Existing::kReplace;
  report = import_dataset(arrays);
  EXPECT_EQ(report.classes, 15);
}

/// A frame of zstd.
std::string zstd(const std::string& text) {
  std::string bytes(ZSTD_compressBound(text.size()), '\0');
  bytes.resize(ZSTD_compress(bytes.data(), bytes.size(), text.data(), text.size(), 3));
  return bytes;
}

TEST(ImportTable, ZstdIsDecompressed) {
  const TemporaryDirectory directory;
  std::string text = "a,y\n";
  for (int i = 0; i < 400000; ++i) {
    text += fmt::format("{},{}\n", i * 37 % 1001, i % 3);
  }
  const auto half = static_cast<std::ptrdiff_t>(text.size() / 2);
  const std::string frames =
      zstd(text.substr(0, text.size() / 2)) + zstd({text.begin() + half, text.end()});
  import_dataset(table_options(directory, text, {.label = "y"}));
  const std::string plain = test::read_file(directory / "out/train-00000.h5");
  import_dataset(table_options(directory, frames, {.label = "y"}));
  EXPECT_EQ(test::read_file(directory / "out/train-00000.h5"), plain);
  EXPECT_THAT(error_of([&] {
                import_dataset(
                    table_options(directory, frames.substr(0, frames.size() - 5), {.label = "y"}));
              }),
              HasSubstr("was cut short"));
  std::string damaged = frames;
  for (std::size_t i = 20; i < 60; ++i) {
    damaged[i] = '\xFF';
  }
  EXPECT_THAT(error_of([&] { import_dataset(table_options(directory, damaged, {.label = "y"})); }),
              HasSubstr("cannot read"));
}

TEST(ImportTable, StandardInputIsAFile) {
  const TemporaryDirectory directory;
  ImportOptions options = table_options(directory, "a,y\n1,0\n2,1\n3,x\n", {.label = "y"});
  options.inputs = {"-"};
  EXPECT_EQ(test::in_child([&] {
              const int file = ::open((directory / "t").c_str(), O_RDONLY);
              ::dup2(file, STDIN_FILENO);
              EXPECT_THAT(error_of([&] { import_dataset(options); }),
                          AllOf(HasSubstr("standard input:4: the label 'x' is text"),
                                HasSubstr("standard input:2: ")));
              ::lseek(STDIN_FILENO, 0, SEEK_SET);
              options.task = TaskChoice::kClasses;
              const Dataset train = Dataset::open(import_dataset(options).train);
              EXPECT_THAT(train.info().source, HasSubstr("csv: standard input, label y"));
              EXPECT_EQ(train.info().samples, 3);
            }),
            0);
  for (const auto& entry : fs::directory_iterator(directory / "out")) {
    EXPECT_NE(entry.path().extension(), ".partial");
  }
}

}  // namespace
}  // namespace strata::io::import_tables_test
