#include "strata/io/tensor_files.hpp"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "strata/core/error.hpp"

#include "error_of.hpp"

namespace strata::io::tensor_files_test {
namespace {

namespace fs = std::filesystem;

std::string refusal_of(const fs::path& path) {
  return test::error_of([&] { static_cast<void>(TensorFiles::open_safetensors(path)); },
                        ExitCode::kData);
}

class TensorFilesTest : public testing::Test {
 protected:
  TensorFilesTest()
      : directory_(fs::temp_directory_path() / ("strata-tensors-" + std::to_string(getpid()))) {
    fs::create_directories(directory_);
  }
  ~TensorFilesTest() override { fs::remove_all(directory_); }

  fs::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
    return directory_ / name;
  }

  static std::string with_header(const std::string& header, std::size_t buffer_bytes) {
    const std::uint64_t length = header.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return bytes + header + std::string(buffer_bytes, '\0');
  }

  fs::path directory_;
};

TEST_F(TensorFilesTest, BadHeadersAreRefused) {
  struct Case {
    std::string header;
    std::size_t buffer;
    const char* why;
  };
  const auto one = [](const std::string& entry) { return R"({"a": )" + entry + "}"; };
  const Case cases[] = {
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})") + "x", 8, "no JSON object"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "twice"},
      {one(R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})"), 8, "twice"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1})"), 8, "nothing else"},
      {one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"), 8, "unknown dtype F33"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), 8, "has 8 bytes, 12 were"},
      {one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), 8, "whole numbers from 0"},
      {one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), 8, "whole numbers from 0"},
      {one(R"({"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8]})"), 8,
       "64 bits"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), 8, "a begin and an end"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), 7, "truncated"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), 9, "1 bytes follow"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[1,9]})"), 9, "leave a hole"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "overlap"},
      {std::string(100, '['), 0, "no JSON object"}};
  for (const Case& bad : cases) {
    const fs::path path = write("bad.safetensors", with_header(bad.header, bad.buffer));
    EXPECT_THAT(refusal_of(path),
                testing::AllOf(testing::HasSubstr("bad.safetensors"), testing::HasSubstr(bad.why)))
        << bad.header;
  }
  const std::pair<std::string, const char*> files[] = {
      {"", "is empty"},
      {"1234567", "needs more than 8"},
      {std::string(8, '\xff') + "{}", "header claims 18446744073709551615"},
      {std::string("\x03\0\0\0\0\0\0\0{}", 10), "header claims 3"}};
  for (const auto& [bytes, why] : files) {
    const fs::path path = write("bad.safetensors", bytes);
    EXPECT_THAT(refusal_of(path), testing::HasSubstr(why));
  }
}

// Compared each with each, 100,000 names take many minutes.
TEST_F(TensorFilesTest, ManyNamesAreReadAndWritten) {
  constexpr int kNames = 100000;
  std::vector<TensorToStore> tensors;
  std::string index = R"({"weight_map":{)";
  for (int i = 0; i < kNames; ++i) {
    tensors.push_back({"t" + std::to_string(i), StoredType::kFloat32, Shape{0}});
    index += (i == 0 ? "\"" : ",\"") + tensors.back().name + R"(":"1.safetensors")";
  }
  TensorFileWriter::safetensors(directory_ / "1.safetensors", tensors).finish();
  const fs::path path = write("model.safetensors.index.json", index + "}}");
  EXPECT_EQ(TensorFiles::open_safetensors(path).tensors().size(), std::size_t{kNames});
}

TEST_F(TensorFilesTest, ShardsAreHeldToTheirIndex) {
  const auto shard = [&](const std::string& name, const std::string& tensor) {
    write(name, with_header(
                    R"({")" + tensor + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  };
  shard("1.safetensors", "a");
  shard("2.safetensors", "b");
  const auto error_with = [&](const std::string& index) {
    const fs::path path = write("model.safetensors.index.json", R"({"weight_map":)" + index + "}");
    return refusal_of(path);
  };
  EXPECT_THAT(error_with(R"({"a":"1.safetensors","b":"3.safetensors"})"),
              testing::HasSubstr("3.safetensors is missing"));
  EXPECT_THAT(error_with(R"({"a":"1.safetensors","c":"2.safetensors"})"),
              testing::HasSubstr("holds tensor b"));
  EXPECT_THAT(error_with(R"({"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"})"),
              testing::HasSubstr("no tensor c"));
  EXPECT_THAT(error_with(R"({"a":"../1.safetensors"})"), testing::HasSubstr("a file name"));
  EXPECT_THAT(error_with("{}"), testing::HasSubstr("no weight_map"));
}

}  // namespace
}  // namespace strata::io::tensor_files_test
