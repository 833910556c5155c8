#include "hdf5/hdf5_file.hpp"

#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "data_files.hpp"

namespace strata::io::hdf5 {
namespace {

using test::error_of;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::span<const std::byte> bytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

TEST(Hdf5File, AttributesReadBack) {
  const TemporaryDirectory directory;
  const std::string long_text(100000, 'x');
  const std::vector<std::int64_t> list{3, -1, 4};
  {
    File file = File::create(directory / "a.h5", ExitCode::kCheckpoint);
    file.set_text("name", "first");
    file.set_text("name", "Größe");
    file.set_text("empty", "");
    file.set_text("long", long_text);
    file.set_int64("integer", -5);
    file.set_uint64("hash", 0xFFFFFFFFFFFFFFFFU);
    file.set_int64s("list", list);
    file.set_text("json", R"({"a": [1, 2]})");
    file.finish();
  }
  const File file = File::open(directory / "a.h5", ExitCode::kCheckpoint);
  EXPECT_EQ(file.text("name"), "Größe");
  EXPECT_EQ(file.text("empty"), "");
  EXPECT_EQ(file.text("long"), long_text);
  EXPECT_EQ(file.int64("integer"), -5);
  EXPECT_EQ(file.uint64("hash"), 0xFFFFFFFFFFFFFFFFU);
  EXPECT_EQ(file.json("json").at("a").at(1), 2);
  EXPECT_FALSE(file.has_attribute("other"));
  EXPECT_THAT(error_of([&] { (void)file.int64("list"); }, ExitCode::kCheckpoint),
              HasSubstr("'list'"));
  EXPECT_THAT(error_of([&] { (void)file.json("name"); }, ExitCode::kCheckpoint),
              HasSubstr("is not JSON"));
  EXPECT_THAT(error_of([&] { (void)file.text("integer"); }, ExitCode::kCheckpoint),
              HasSubstr("not a fixed-length text"));
}

TEST(Hdf5File, BoxesReachTheirElements) {
  const TemporaryDirectory directory;
  const Shape shape{4, 5};
  std::vector<std::int64_t> all(20);
  std::iota(all.begin(), all.end(), 0);
  {
    File file = File::create(directory / "a.h5", ExitCode::kData);
    Dataset dataset = file.create_dataset("group/inner/x", element_type(DType::kInt64), shape);
    dataset.write(bytes(all));
    file.create_dataset("scalar", element_type(DType::kFloat64), Shape{})
        .write(bytes(std::vector<double>{2.5}));
    file.write_texts("texts", std::vector<std::string>{"a", "", "longer"});
    file.finish();
  }
  const File file = File::open(directory / "a.h5", ExitCode::kData);
  EXPECT_TRUE(file.has("group/inner/x"));
  EXPECT_THAT(file.read_texts("texts"), ElementsAre("a", "", "longer"));
  const Dataset dataset = file.open_dataset("group/inner/x");
  EXPECT_EQ(dataset.shape(), shape);
  EXPECT_EQ(dataset.dtype(), DType::kInt64);
  EXPECT_TRUE(dataset.holds(element_type(DType::kInt64)));
  EXPECT_FALSE(dataset.holds(uint64_type()));
  std::vector<std::int64_t> read(20);
  dataset.read(std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(read, all);
  std::vector<std::int64_t> part(9);
  dataset.read(grid::boxes_of(shape, {4, 13}), std::as_writable_bytes(std::span(part)));
  EXPECT_THAT(part, ElementsAre(4, 5, 6, 7, 8, 9, 10, 11, 12));
  double scalar = 0;
  file.open_dataset("scalar").read(std::as_writable_bytes(std::span(&scalar, 1)));
  EXPECT_EQ(scalar, 2.5);
}

TEST(Hdf5File, VirtualDataSetsShowPartsOfOtherFiles) {
  const TemporaryDirectory directory;
  for (const std::int64_t half : {0, 1}) {
    File file = File::create(directory / fmt::format("part-{}.h5", half), ExitCode::kData);
    file.create_dataset("x", element_type(DType::kFloat32), Shape{2, 2})
        .write(bytes(std::vector<float>(4, static_cast<float>(half + 1))));
    file.finish();
  }
  {
    File file = File::create(directory / "whole.h5", ExitCode::kData);
    std::vector<VirtualPart> parts;
    for (const std::int64_t half : {0, 1}) {
      parts.push_back({fmt::format("part-{}.h5", half),
                       "x",
                       Shape{2, 2},
                       {{0, 0}, {2, 2}},
                       {{0, 2 * half}, {2, 2}}});
    }
    file.create_virtual("x", element_type(DType::kFloat32), Shape{2, 4}, parts);
    file.finish();
  }
  const File file = File::open(directory / "whole.h5", ExitCode::kData);
  const Dataset dataset = file.open_dataset("x");
  std::vector<float> values(8);
  dataset.read(std::as_writable_bytes(std::span(values)));
  EXPECT_THAT(values, ElementsAre(1, 1, 2, 2, 1, 1, 2, 2));
  EXPECT_THAT(error_of([&] { (void)dataset.file_offset(); }), HasSubstr("not stored in one piece"));
}

TEST(Hdf5File, FailuresPrintNothingAndCarryTheirCode) {
  const TemporaryDirectory directory;
  ::testing::internal::CaptureStderr();
  std::thread([&] {
    EXPECT_THAT(
        error_of([&] { (void)File::create(directory / "no/such.h5", ExitCode::kCheckpoint); },
                 ExitCode::kCheckpoint),
        AllOf(HasSubstr("cannot create"), HasSubstr("No such file or directory")));
  }).join();
  File file = File::create(directory / "a.h5", ExitCode::kData);
  EXPECT_FALSE(file.has("x"));
  EXPECT_FALSE(file.has("x/y"));
  EXPECT_THAT(error_of([&] { (void)file.open_dataset("x/y"); }), HasSubstr("no data set 'x/y'"));
  EXPECT_THAT(error_of([&] { (void)file.int64("none"); }), HasSubstr("attribute 'none'"));
  file.create_dataset("x", element_type(DType::kUint8), Shape{1});
  EXPECT_THAT(error_of([&] { file.create_dataset("x", element_type(DType::kUint8), Shape{1}); }),
              HasSubstr("cannot make the data set 'x'"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace strata::io::hdf5
