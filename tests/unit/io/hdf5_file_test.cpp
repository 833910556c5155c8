#include "hdf5/hdf5_file.hpp"

#include <chrono>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "strata/core/memory.hpp"

#include "data_files.hpp"

namespace strata::io::hdf5::hdf5_file_test {
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

// Sanitizers need address space.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Hdf5File, AFailureForWantOfMemoryIsNoDamage) {
  const TemporaryDirectory directory;
  {
    File file = File::create(directory / "a.h5", ExitCode::kData);
    file.set_text("name", std::string(4096, 'x'));
    file.finish();
  }
  std::filesystem::resize_file(directory / "a.h5", 1024);
  const auto open = [&] { static_cast<void>(File::open(directory / "a.h5", ExitCode::kData)); };
  EXPECT_THAT(error_of(open, ExitCode::kData), HasSubstr("a.h5"));
  rlimit before{};
  ::getrlimit(RLIMIT_AS, &before);
  const rlimit little{.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  std::string text;
  ::setrlimit(RLIMIT_AS, &little);
  try {
    open();
  } catch (const std::exception& error) {
    text = dynamic_cast<const OutOfMemory*>(&error) != nullptr ? error.what() : "";
  }
  ::setrlimit(RLIMIT_AS, &before);
  EXPECT_THAT(text, HasSubstr("a.h5"));
}
#endif

// Its set-up may have run out of memory that is free again.
TEST(Hdf5File, AFailureOfAPropertyListIsWantOfMemory) {
  int value = 0;
  const hid_t list = H5Pcreate(H5P_FILE_ACCESS);
  const herr_t status = H5Pget(list, "none", &value);
  try {
    check(status, {"a.h5", ExitCode::kData}, "cannot set up");
    FAIL() << "no error";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("skip list")));
  }
  H5Pclose(list);
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

// What a file may hold that leads out of it: HDF5 would follow all of these.
TEST(Hdf5File, NothingLeadsToOtherFiles) {
  const TemporaryDirectory directory;
  {
    File file = File::create(directory / "part.h5", ExitCode::kData);
    file.create_dataset("x", element_type(DType::kUint8), Shape{2});
    file.finish();
  }
  {
    File file = File::create(directory / "whole.h5", ExitCode::kData);
    const Shape shape{2};
    const std::vector<VirtualPart> parts{{"part.h5", "x", shape, {{0}, {2}}, {{0}, {2}}}};
    file.create_virtual("virtual", element_type(DType::kUint8), shape, parts);
    ASSERT_GE(H5Lcreate_external("part.h5", "/x", file.id(), "link", H5P_DEFAULT, H5P_DEFAULT), 0);
    ASSERT_GE(H5Lcreate_soft("/virtual", file.id(), "soft", H5P_DEFAULT, H5P_DEFAULT), 0);
    const hid_t layout = H5Pcreate(H5P_DATASET_CREATE);
    ASSERT_GE(H5Pset_external(layout, "part.h5", 0, 2), 0);
    const hsize_t extent = 2;
    const hid_t space = H5Screate_simple(1, &extent, nullptr);
    const hid_t stored =
        H5Dcreate2(file.id(), "external", H5T_STD_U8LE, space, H5P_DEFAULT, layout, H5P_DEFAULT);
    ASSERT_GE(H5Dclose(stored), 0);
    H5Sclose(space);
    H5Pclose(layout);
    file.finish();
  }
  const File file = File::open(directory / "whole.h5", ExitCode::kData);
  for (const char* name : {"virtual", "external"}) {
    EXPECT_THAT(error_of([&] { (void)file.open_dataset(name); }),
                HasSubstr("is not stored in one piece in the file itself"));
  }
  for (const char* name : {"link", "soft"}) {
    EXPECT_THAT(error_of([&] { (void)file.open_dataset(name); }),
                HasSubstr("a link to somewhere else"));
  }
}

// HDF5 takes a data set of 16 EiB - 1 in a small file where its space is never allocated.
TEST(Hdf5File, NoDataSetIsLargerThanItsFile) {
  const TemporaryDirectory directory;
  const std::vector<std::vector<hsize_t>> shapes{{1ULL << 40U}, {1ULL << 33U, 1ULL << 33U}};
  for (const std::vector<hsize_t>& shape : shapes) {
    const std::filesystem::path path = directory / "a.h5";
    const hid_t created = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
    const hid_t dataset =
        H5Dcreate2(created, "x", H5T_STD_U8LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    ASSERT_GE(H5Dclose(dataset), 0);
    H5Sclose(space);
    H5Fclose(created);
    const File file = File::open(path, ExitCode::kData);
    EXPECT_THAT(error_of([&] { (void)file.open_dataset("x"); }),
                HasSubstr("claims more bytes than the file has"));
  }
}

TEST(Hdf5File, EqualContentsAreEqualBytesAtAnyTime) {
  const TemporaryDirectory directory;
  const auto write = [&](const char* name) {
    File file = File::create(directory / name, ExitCode::kData);
    file.set_format("strata-test", 1);
    file.write_texts("shards/file", std::vector<std::string>{"train-00000.h5"});
    const grid::Box box{.start = {0}, .count = {4}};
    const VirtualPart part{"train-00000.h5", "inputs", Shape{4}, box, box};
    file.create_virtual("a/b/inputs", uint64_type(), Shape{4}, std::span(&part, 1));
    file.finish();
    return test::read_file(directory / name);
  };
  const std::string first = write("first.h5");
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // HDF5's times are whole seconds
  EXPECT_EQ(first, write("second.h5"));
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
}  // namespace strata::io::hdf5::hdf5_file_test
