#include "files/manifest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "strata/core/hash.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/dataset.hpp"

#include "data_files.hpp"

namespace strata::io::manifest_test {
namespace {

using test::error_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::HasSubstr;

TEST(Manifest, CoversWhatIsOutsideThePayload) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "a.h5";
  const std::string bytes = "header--PAYLOADgapMORE!tail";
  write_file(path, bytes);
  const ManifestEntry entry =
      manifest_entry_of(path, {{18, 23}, {8, 12}, {12, 15}}, ExitCode::kData);
  EXPECT_EQ(entry.bytes, 27);
  EXPECT_EQ(entry.checksum, hash_of(std::string_view("header--gaptail")));
  EXPECT_EQ(entry.payload, (std::vector<grid::Range>{{8, 15}, {18, 23}}));

  Manifest({entry}).write(directory / "a.manifest", ExitCode::kData);
  const Manifest manifest = Manifest::read(path, ExitCode::kData).value();
  const auto check = [&] { manifest.check(path, ExitCode::kData, "advice"); };
  check();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string bad = bytes;
    bad[i] = '.';
    write_file(path, bad);
    if ((i >= 8 && i < 15) || (i >= 18 && i < 23) || bytes[i] == '.') {
      check();
    } else {
      EXPECT_THAT(error_of(check), HasSubstr("its header does not match")) << i;
    }
  }
  write_file(path, bytes + "x");
  EXPECT_THAT(error_of(check), HasSubstr("has 28 bytes, 27 were written; advice"));
  write_file(directory / "b.h5", bytes);
  EXPECT_THAT(error_of([&] { manifest.check(directory / "b.h5", ExitCode::kData, ""); }),
              HasSubstr("is not in the manifest"));
}

TEST(Manifest, RefusesLinesThatNoWriterWrites) {
  const TemporaryDirectory directory;
  const auto read = [&](const std::string& line) {
    const std::string body = "strata-manifest 1\n" + line;
    write_file(directory / "a.manifest", body + "checksum " + hash_text(hash_of(body)) + "\n");
    return Manifest::read(directory / "a.h5", ExitCode::kData).has_value();
  };
  const std::string hash = " 0123456789abcdef";
  EXPECT_TRUE(read("a.h5 9" + hash + " 1-2 4-9\n"));
  for (const std::string& line : std::vector<std::string>{
           "../a.h5 9" + hash + "\n", "/a.h5 9" + hash + "\n", ".. 9" + hash + "\n",
           "a.h5 -9" + hash + "\n", "a.h5 99999999999999999999" + hash + "\n", "a.h5 9\n",
           "a.h5 9 0123\n", "a.h5 9" + hash + " 4-2\n", "a.h5 9" + hash + " 4-10\n",
           "a.h5 9" + hash + " 4-6 5-7\n", "a.h5 9" + hash + " -1-4\n", "a.h5 9" + hash + " 4\n",
           "a.h5 9" + hash, "\n"}) {
    EXPECT_THAT(error_of([&] { (void)read(line); }), HasSubstr("is damaged or of a later version"))
        << line;
  }
}

// A reader of a FIFO would wait for a writer.
TEST(Manifest, SpecialFilesAreRefused) {
  const TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "step-00000001");
  for (const char* name : {"train.h5", "a.manifest", "step-00000001/master.h5"}) {
    ASSERT_EQ(::mkfifo((directory / name).c_str(), 0600), 0);
  }
  const std::string words = "is not a regular file";
  EXPECT_THAT(error_of([&] { (void)Dataset::open(directory / "train.h5"); }), HasSubstr(words));
  EXPECT_THAT(error_of([&] { (void)Manifest::read(directory / "a.h5", ExitCode::kData); }),
              HasSubstr(words));
  EXPECT_THAT(
      error_of([&] { (void)Checkpoint::open(directory / "step-00000001"); }, ExitCode::kCheckpoint),
      HasSubstr(words));
}

}  // namespace
}  // namespace strata::io::manifest_test
