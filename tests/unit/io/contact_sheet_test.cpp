#include "strata/io/contact_sheet.hpp"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image_files.hpp"

namespace strata::io::contact_sheet_test {
namespace {

using test::error_of;
using test::TemporaryDirectory;
using ::testing::HasSubstr;

// The sheet as an image again, by way of an import.
std::vector<std::uint8_t> sheet_of(const Dataset& dataset, std::int64_t samples, Shape& shape) {
  const TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "in/a");
  write_contact_sheet(dataset, directory / "in/a/sheet.png", samples);
  const Dataset sheet = Dataset::open(
      import_dataset(test::image_options({directory / "in"}, directory / "out", "1")).train);
  shape = sheet.info().input_shape;
  return test::values_of<std::uint8_t>(sheet.sample_input(0));
}

TEST(ContactSheet, ShowsSamplesEnlargedWithTheirClass) {
  const TemporaryDirectory directory;
  for (const char* name : {"in/a/0.png", "in/b/0.png", "in/a/1.png"}) {
    test::write_image(directory / name, test::png(32, 32, name[5] == '0' ? 1 : 2));
  }
  const Dataset dataset = Dataset::open(
      import_dataset(test::image_options({directory / "in"}, directory / "out", "3")).train);
  Shape shape;
  const auto planes = sheet_of(dataset, 64, shape);
  // Two columns and two rows of 64 pixels, 4 apart, with 7 pixels of text and 8 around it below.
  EXPECT_EQ(shape, (Shape{3, 2 * (64 + 7 + 12) + 4, 2 * 68 + 4}));
  const auto red_at = [&](std::int64_t y, std::int64_t x) {
    return planes[static_cast<std::size_t>(y * shape[2] + x)];
  };
  const auto stored = test::values_of<std::uint8_t>(dataset.sample_input(0));
  for (std::int64_t y = 0; y < 64; ++y) {
    for (std::int64_t x = 0; x < 64; ++x) {
      ASSERT_EQ(red_at(4 + y, 4 + x), stored[static_cast<std::size_t>(y / 2 * 32 + x / 2)]);
    }
  }
  // The label of the first is an A: its bar is the fourth row.
  for (std::int64_t x = 0; x < 5; ++x) {
    EXPECT_EQ(red_at(4 + 64 + 4 + 3, 4 + x), 255);
  }
  EXPECT_EQ(red_at(4 + 64 + 4, 4), 32);
}

TEST(ContactSheet, RefusesWhatIsNoImage) {
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
  EXPECT_THAT(error_of([&] { write_contact_sheet(dataset, directory / "x.png", 4); }),
              HasSubstr("holds samples of 2; a contact sheet shows images"));
}

// The published pictures, where they are at hand: all are good, and as bright as is known of them.
TEST(PublishedCifar, ImportsAsPictures) {
  const char* data = std::getenv("STRATA_DATA_DIR");
  const std::filesystem::path archive =
      std::filesystem::path(data == nullptr ? "" : data) / "cifar10-images/cifar10-jpg.tar.xz";
  if (data == nullptr || !std::filesystem::exists(archive)) {
    GTEST_SKIP() << "STRATA_DATA_DIR does not name a directory with cifar10-images";
  }
  const TemporaryDirectory directory;
  const std::string command =
      "tar -xJf " + archive.string() + " -C " + directory.path().string() + " test";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const ImportReport report =
      import_dataset(test::image_options({directory / "test"}, directory / "out", "1.0"));
  EXPECT_EQ(report.train_samples, 10000);
  const Dataset dataset = Dataset::open(report.train);
  EXPECT_EQ(dataset.class_counts(), std::vector<std::int64_t>(10, 1000));
  const std::vector<double> means{126.0, 123.7, 114.9};
  for (std::size_t channel = 0; channel < 3; ++channel) {
    EXPECT_NEAR(dataset.info().mean[channel], means[channel], 0.5);
  }
}

}  // namespace
}  // namespace strata::io::contact_sheet_test
