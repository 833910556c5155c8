#include "commands/output_file.hpp"

#include <filesystem>

#include <gmock/gmock.h>

#include "../io/data_files.hpp"
#include "error_of.hpp"

namespace strata::app::output_file_test {
namespace {

TEST(OutputFile, IsKnownInAdvanceToBeWritable) {
  const io::test::TemporaryDirectory directory;
  const auto refusal = [](const std::filesystem::path& file) {
    return strata::test::error_of([&] { require_writable(file.string()); }, ExitCode::kUsage);
  };
  EXPECT_THAT(refusal(directory.path()),
              testing::AllOf(testing::HasSubstr("cannot write " + directory.path().string()),
                             testing::HasSubstr("directory; choose another file")));
  EXPECT_THAT(refusal(directory / "none/confusion.csv"),
              testing::HasSubstr("none/confusion.csv: No such file or directory"));
  // What is there stays, and nothing comes into being.
  const std::filesystem::path file = directory / "confusion.csv";
  require_writable(file.string());
  EXPECT_FALSE(std::filesystem::exists(file));
  io::test::write_file(file, "of yesterday");
  require_writable(file.string());
  EXPECT_EQ(io::test::read_file(file), "of yesterday");
}

}  // namespace
}  // namespace strata::app::output_file_test
