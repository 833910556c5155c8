#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/io/dataset.hpp"

#include "data_files.hpp"

namespace strata::io::import_cifar_test {
namespace {

using namespace std::string_literals;

using test::error_of;
using test::pixel;
using test::TemporaryDirectory;
using test::values_of;
using test::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::int64_t kPixels = 3072;

// Records from `first` on, each with its label bytes.
std::string records(std::int64_t first, const std::vector<std::string>& labels) {
  std::string bytes;
  for (const std::string& label : labels) {
    bytes += label;
    for (std::int64_t element = 0; element < kPixels; ++element) {
      bytes += static_cast<char>(pixel(first, element));
    }
    ++first;
  }
  return bytes;
}

ImportOptions cifar_options(const TemporaryDirectory& directory, ImportFormat format,
                            const std::vector<std::string>& files, const std::string& split) {
  ImportOptions options;
  options.order = ImportOrder::kFile;
  options.format = format;
  for (const std::string& file : files) {
    options.inputs.push_back(directory / file);
  }
  options.split = split;
  options.output = directory / "out";
  return options;
}

TEST(ImportCifar, TakesFilesInOrder) {
  const TemporaryDirectory directory;
  write_file(directory / "data_batch_1.bin", records(0, {"\3", "\1"}));
  write_file(directory / "test_batch.bin", records(2, {"\11"}));
  const ImportReport report = import_dataset(cifar_options(
      directory, ImportFormat::kCifar10, {"data_batch_1.bin", "test_batch.bin"}, "2,1"));
  const Dataset train = Dataset::open(report.train);
  const Dataset test = Dataset::open(report.test);
  EXPECT_EQ(train.info().input_shape, (Shape{3, 32, 32}));
  EXPECT_EQ(train.info().classes, 10);
  ASSERT_THAT(train.info().class_names, SizeIs(10));
  EXPECT_EQ(train.info().class_names[9], "truck");
  EXPECT_EQ(train.info().source, "cifar10: data_batch_1.bin, test_batch.bin");
  const std::vector<std::int64_t> labels{3, 1, 9};
  for (std::int64_t i = 0; i < 3; ++i) {
    const Dataset& dataset = i < 2 ? train : test;
    const std::int64_t local = i < 2 ? i : 0;
    EXPECT_EQ(values_of<std::int64_t>(dataset.sample_target(local))[0],
              labels[static_cast<std::size_t>(i)]);
    const auto stored = values_of<std::uint8_t>(dataset.sample_input(local));
    for (std::int64_t element = 0; element < kPixels; ++element) {
      ASSERT_EQ(stored[static_cast<std::size_t>(element)], pixel(i, element));
    }
  }
}

TEST(ImportCifar, TakesTheFineLabelsOfCifar100) {
  const TemporaryDirectory directory;
  write_file(directory / "train.bin", records(0, {"\1\7", "\2c"}));
  ImportOptions options = cifar_options(directory, ImportFormat::kCifar100, {"train.bin"}, "2");
  options.existing = Existing::kReplace;
  {
    const Dataset train = Dataset::open(import_dataset(options).train);
    EXPECT_EQ(train.info().classes, 100);
    EXPECT_THAT(train.info().class_names, IsEmpty());
    EXPECT_EQ(values_of<std::int64_t>(train.sample_target(0))[0], 7);
    EXPECT_EQ(values_of<std::int64_t>(train.sample_target(1))[0], 99);
    EXPECT_EQ(values_of<std::uint8_t>(train.sample_input(1))[5], pixel(1, 5));
  }
  std::string names;
  for (int i = 0; i < 100; ++i) {
    names += "fine" + std::to_string(i) + "\n";
  }
  write_file(directory / "fine_label_names.txt", names);
  EXPECT_EQ(Dataset::open(import_dataset(options).train).info().class_names.at(99), "fine99");
  const auto with_last = [&](const std::string& name) {
    write_file(directory / "fine_label_names.txt", names.substr(0, names.size() - 7) + name);
    return error_of([&] { import_dataset(options); });
  };
  EXPECT_THAT(with_last("fine1"), HasSubstr("the name 'fine1' is there twice"));
  EXPECT_THAT(with_last("caf\xe9"), HasSubstr("the name 'caf\\xe9' is not UTF-8 text"));
  EXPECT_THAT(with_last("cat\0"s), HasSubstr("the name 'cat\\x00' holds a NUL byte"));
  write_file(directory / "fine_label_names.txt", "apple\nbear\n");
  EXPECT_THAT(error_of([&] { import_dataset(options); }),
              AllOf(HasSubstr("fine_label_names.txt has 2 names"), HasSubstr("expected 100")));
}

TEST(ImportCifar, RefusesBadFiles) {
  const TemporaryDirectory directory;
  const std::string good = records(0, {"\3", "\1"});
  write_file(directory / "a.bin", good);
  write_file(directory / "b.bin", good.substr(0, 5000));
  const auto error = [&](ImportFormat format, const std::vector<std::string>& files) {
    return error_of([&] { import_dataset(cifar_options(directory, format, files, "1.0")); });
  };
  EXPECT_THAT(error(ImportFormat::kCifar10, {"a.bin", "b.bin"}),
              AllOf(HasSubstr("b.bin has 5000 bytes"), HasSubstr("no multiple of 3073")));
  EXPECT_THAT(error(ImportFormat::kCifar100, {"a.bin"}),
              AllOf(HasSubstr("a.bin has 6146 bytes"), HasSubstr("no multiple of 3074")));
  write_file(directory / "b.bin", "");
  EXPECT_THAT(error(ImportFormat::kCifar10, {"b.bin"}), HasSubstr("b.bin has 0 bytes"));
  write_file(directory / "b.bin", records(0, {"\3", "\12"}));
  EXPECT_THAT(error(ImportFormat::kCifar10, {"a.bin", "b.bin"}),
              AllOf(HasSubstr("the label of record 1 of "), HasSubstr("b.bin is 10"),
                    HasSubstr("expected 0 to 9")));
  write_file(directory / "b.bin", records(0, {"\3d"}));
  EXPECT_THAT(error(ImportFormat::kCifar100, {"b.bin"}),
              AllOf(HasSubstr("is 100"), HasSubstr("expected 0 to 99")));
  EXPECT_THAT(error(ImportFormat::kCifar10, {"c.bin"}), HasSubstr("c.bin does not exist"));
}

TEST(ImportCifar, RefusesFilesThatChangeMeanwhile) {
  // Between the first file and the second, which had three records when they were counted.
  const std::string all = records(0, {"\3", "\1", "\4"});
  const auto error = [&](const std::function<void(const TemporaryDirectory&)>& change) {
    const TemporaryDirectory directory;
    // More than are read at once.
    write_file(directory / "a.bin", records(3, std::vector<std::string>(1400, "\2")));
    write_file(directory / "b.bin", all);
    const ImportOptions options =
        cifar_options(directory, ImportFormat::kCifar10, {"a.bin", "b.bin"}, "1400,3");
    const auto between = [&](std::int64_t done, std::int64_t total) {
      if (done < total) {
        change(directory);
      }
    };
    const std::string message = error_of([&] { import_dataset(options, between); });
    EXPECT_FALSE(std::filesystem::exists(options.output));
    return message;
  };
  const auto become = [](const std::string& bytes) {
    return [bytes](const TemporaryDirectory& in) { write_file(in / "b.bin", bytes); };
  };
  EXPECT_THAT(error(become(all.substr(0, 2 * 3073))),
              AllOf(HasSubstr("b.bin has 6146 bytes, but had 9219"), HasSubstr("import again")));
  EXPECT_THAT(error(become(all.substr(0, 4000))), HasSubstr("b.bin has 4000 bytes, but had 9219"));
  EXPECT_THAT(error(become("")), HasSubstr("b.bin has 0 bytes, but had 9219"));
  EXPECT_THAT(error(become(all + all)), HasSubstr("b.bin has 18438 bytes, but had 9219"));
  EXPECT_THAT(error([](const TemporaryDirectory& in) { std::filesystem::remove(in / "b.bin"); }),
              HasSubstr("b.bin does not exist"));
}

TEST(ImportCifar, RefusesAFileThatShrinksWhileItIsRead) {
  const TemporaryDirectory directory;
  const std::vector<std::string> labels(1400, "\3");
  write_file(directory / "a.bin", records(0, labels));
  const ImportOptions options =
      cifar_options(directory, ImportFormat::kCifar10, {"a.bin"}, "1,1399");
  const auto cut = [&](std::int64_t, std::int64_t) {
    std::filesystem::resize_file(directory / "a.bin", 3073);
  };
  EXPECT_THAT(error_of([&] { import_dataset(options, cut); }),
              AllOf(HasSubstr("cannot read"), HasSubstr("a.bin to its end of 4302200 bytes")));
}

}  // namespace
}  // namespace strata::io::import_cifar_test
