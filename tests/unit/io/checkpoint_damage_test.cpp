#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include "strata/io/checkpoint.hpp"

#include "checkpoint_cases.hpp"
#include "hdf5/hdf5_file.hpp"

namespace strata::io::checkpoint_damage_test {
namespace {

namespace fs = std::filesystem;
using test::checkpoint_error;
using test::flip_bit;
using test::in_child;
using test::Model;
using test::TemporaryDirectory;
using test::write_checkpoint;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string open_error(const fs::path& directory) {
  return checkpoint_error([&] { (void)Checkpoint::open(directory); });
}

TEST(CheckpointDamage, FlippedBitIsFoundAndNamed) {
  const TemporaryDirectory scratch;
  const Model model;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 3);
  // Elements 16 to 18 of tensor 4 lie in the last of three parts.
  const std::string_view bytes(reinterpret_cast<const char*>(&model.floats[4][16]), 12);
  flip_bit(directory / "part-00002.h5", bytes);
  Checkpoint checkpoint = Checkpoint::open(directory);
  const auto is_named = AllOf(HasSubstr((directory / "part-00002.h5").string() + " is damaged"),
                              HasSubstr("elements 15 to 34 of tensor 'weights/dense1.weight'"));
  std::vector<float> read(35);
  const auto read_range = [&](std::int64_t begin, std::int64_t end) {
    const auto out = std::span(read).first(static_cast<std::size_t>(end - begin));
    checkpoint.read("weights/dense1.weight", Shape{7, 5}, {}, {begin, end},
                    TensorView(out, Shape{end - begin}));
  };
  // Before anything is verified, and of other elements of the slice too.
  EXPECT_NO_THROW(read_range(0, 15));
  EXPECT_THAT(checkpoint_error([&] { read_range(0, 35); }), is_named);
  EXPECT_THAT(checkpoint_error([&] { read_range(30, 35); }), is_named);
  EXPECT_NO_THROW(checkpoint.verify_part(0));
  EXPECT_NO_THROW(checkpoint.verify_part(1));
  EXPECT_THAT(checkpoint_error([&] { checkpoint.verify_part(2); }), is_named);
  checkpoint.set_verified();
  read_range(0, 35);
  EXPECT_NE(read, std::vector<float>(model.floats[4].begin(), model.floats[4].begin() + 35));
}

TEST(CheckpointDamage, FlippedBitOfTheMasterIsFound) {
  // Beyond 64 KiB HDF5 stores an attribute without a checksum of its own.
  for (const char* damaged : {"seventeen", "\"range\":["}) {
    const TemporaryDirectory scratch;
    const fs::path directory = write_checkpoint(
        scratch.path(), 1, 2, Model(), {{"config", std::string(100000, 'x') + "seventeen"}});
    flip_bit(directory / "master.h5", damaged);
    EXPECT_THAT(open_error(directory), HasSubstr("master.h5 is damaged")) << damaged;
  }
}

TEST(CheckpointDamage, ManifestDecidesWhetherItIsThere) {
  const TemporaryDirectory scratch;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 2);
  EXPECT_EQ(Checkpoint::open(directory).warning(), "");
  fs::rename(directory / "master.manifest", scratch.path() / "kept");
  EXPECT_THAT(open_error(directory), HasSubstr("master.manifest is missing"));
  fs::rename(scratch.path() / "kept", directory / "master.manifest");
  test::remove_manifest(directory / "master.h5");
  const Checkpoint earlier = Checkpoint::open(directory);
  earlier.verify_part(0);
  EXPECT_THAT(earlier.warning(), HasSubstr("master.h5 has no manifest"));
}

TEST(CheckpointDamage, RenamedDirectoryIsRefused) {
  const TemporaryDirectory scratch;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 1);
  fs::rename(directory, scratch.path() / "best");
  EXPECT_EQ(Checkpoint::open(scratch.path() / "best/").step(), 1);
  fs::rename(scratch.path() / "best", scratch.path() / "step-00000002");
  EXPECT_THAT(open_error(scratch.path() / "step-00000002/"),
              HasSubstr("step-00000002/ holds a checkpoint of step 1"));
}

TEST(CheckpointDamage, DeeplyNestedMetadataAreRefused) {
  constexpr std::size_t kDeep = 100000;
  const TemporaryDirectory scratch;
  {
    hdf5::File file = hdf5::File::create(scratch.path() / "a.h5", ExitCode::kCheckpoint);
    file.set_text("metadata", std::string(kDeep, '[') + std::string(kDeep, ']'));
    file.finish();
  }
  const hdf5::File file = hdf5::File::open(scratch.path() / "a.h5", ExitCode::kCheckpoint);
  EXPECT_THAT(checkpoint_error([&] { (void)file.json("metadata"); }),
              HasSubstr("is nested too deep"));
}

TEST(CheckpointRecord, ClaimsAreChecked) {
  const auto record = [](const std::string& file, const std::string& shape,
                         const std::string& range) {
    return fmt::format(
        R"({{"file": "{}", "bytes": 1, "slices": [{{"tensor": "w", "shape": {}, "dtype": "float32",)"
        R"( "range": {}, "dataset": "slice-00000", "checksum": "0"}}]}})",
        file, shape, range);
  };
  const std::string good = record("part-00000.h5", "[4]", "[0, 4]");
  EXPECT_EQ(part_record_of(good).slices[0].range.end, 4);
  for (const std::string& bad :
       {record("../part-00000.h5", "[4]", "[0, 4]"), record("/etc/passwd", "[4]", "[0, 4]"),
        record("..", "[4]", "[0, 4]"), record("part-00000.h5", "[4]", "[0, 5]"),
        record("part-00000.h5", "[4]", "[3, 2]"), record("part-00000.h5", "[4]", "[-1, 2]"),
        record("part-00000.h5", "[-4]", "[0, 0]"),
        record("part-00000.h5", "[4294967296, 4294967296]", "[0, 0]")}) {
    EXPECT_THAT(checkpoint_error([&] { (void)part_record_of(bad); }), HasSubstr("a checkpoint"))
        << bad;
  }
}

TEST(CheckpointDamage, TruncatedPartIsRefused) {
  const TemporaryDirectory scratch;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 3);
  const fs::path part = directory / "part-00001.h5";
  const auto bytes = fs::file_size(part);
  fs::resize_file(part, bytes - 1);
  EXPECT_THAT(open_error(directory),
              AllOf(HasSubstr("part-00001.h5"),
                    HasSubstr(fmt::format("has {} bytes, {} were written", bytes - 1, bytes))));
}

TEST(CheckpointDamage, MissingPartIsRefused) {
  const TemporaryDirectory scratch;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 3);
  fs::remove(directory / "part-00002.h5");
  EXPECT_THAT(open_error(directory), HasSubstr("part-00002.h5 of the checkpoint"));
}

TEST(CheckpointDamage, PartThatGoesAfterOpeningIsRefused) {
  const TemporaryDirectory scratch;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 1);
  const Checkpoint checkpoint = Checkpoint::open(directory);
  fs::remove(directory / "part-00000.h5");
  std::vector<float> out(7);
  EXPECT_THAT(checkpoint_error([&] {
                checkpoint.read("weights/dense1.bias", Shape{7}, {}, {.begin = 0, .end = 7},
                                TensorView(std::span<float>(out), Shape{7}));
              }),
              HasSubstr("part-00000.h5 of the checkpoint"));
}

TEST(CheckpointDamage, PartOfAnotherCheckpointIsFound) {
  const TemporaryDirectory scratch;
  const fs::path one = write_checkpoint(scratch.path(), 1, 2);
  const fs::path two = write_checkpoint(scratch.path(), 2, 2, Model(0.25));
  fs::copy_file(one / "part-00001.h5", two / "part-00001.h5", fs::copy_options::overwrite_existing);
  const Checkpoint checkpoint = Checkpoint::open(two);
  EXPECT_THAT(checkpoint_error([&] { checkpoint.verify_part(1); }),
              HasSubstr("part-00001.h5 is damaged"));
}

TEST(CheckpointDamage, MissingOrForeignMasterIsRefused) {
  const TemporaryDirectory scratch;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 1);
  EXPECT_THAT(open_error(scratch.path() / "none"), HasSubstr("there is no checkpoint directory"));
  test::remove_manifest(directory / "master.h5");
  fs::remove(directory / "master.h5");
  EXPECT_THAT(open_error(directory), HasSubstr("has no master.h5"));
  fs::copy_file(directory / "part-00000.h5", directory / "master.h5");
  EXPECT_THAT(open_error(directory),
              HasSubstr("master.h5 is not the master file of a strata checkpoint"));
  std::ofstream(directory / "master.h5") << "text";
  EXPECT_THAT(open_error(directory), HasSubstr("master.h5 is not an HDF5 file"));
}

// A part of 4 MiB more than there is room for fails, says what it needs and leaves the earlier
// checkpoint as it was; with room again, writing works.
void expect_full_disk_is_met(const fs::path& root, const std::function<void()>& fill,
                             const std::function<void()>& clear) {
  const fs::path good = write_checkpoint(root, 1, 2);
  const std::vector<float> large(1 << 20, 1.5F);
  const std::array<TensorSlice, 1> slices{
      {{.name = "weights/large",
        .global_shape = Shape{1 << 20},
        .range = {.begin = 0, .end = 1 << 20},
        .data = ConstTensorView(std::span<const float>(large), Shape{1 << 20})}}};
  const fs::path partial = begin_checkpoint(root, 2);
  fill();
  EXPECT_THAT(checkpoint_error([&] { (void)write_part(partial, 0, slices); }),
              AllOf(HasSubstr("part-00000.h5: "),
                    AnyOf(HasSubstr("No space left on device"), HasSubstr("File too large")),
                    HasSubstr("; the file needs 4211712 bytes"), HasSubstr("(4.0"),
                    HasSubstr("the last good checkpoint is kept")));
  EXPECT_FALSE(fs::exists(partial / "part-00000.h5"));
  const std::vector<CheckpointEntry> left = list_checkpoints(root);
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].directory, good);
  const Checkpoint checkpoint = Checkpoint::open(good);
  checkpoint.verify_part(0);
  checkpoint.verify_part(1);
  clear();
  const std::vector<PartRecord> records{write_part(begin_checkpoint(root, 2), 0, slices)};
  commit_checkpoint(root, 2, records, {});
  EXPECT_EQ(list_checkpoints(root).size(), 2U);
}

TEST(CheckpointDiskFull, FileSizeLimitIsReported) {
  const TemporaryDirectory scratch;
  EXPECT_EQ(in_child([&] {
              std::signal(SIGXFSZ, SIG_IGN);
              rlimit limit{};
              ::getrlimit(RLIMIT_FSIZE, &limit);
              const rlim_t usual = limit.rlim_cur;
              const auto set = [&](rlim_t bytes) {
                limit.rlim_cur = bytes;
                ::setrlimit(RLIMIT_FSIZE, &limit);
              };
              expect_full_disk_is_met(
                  scratch.path(), [&] { set(1 << 20); }, [&] { set(usual); });
            }),
            0);
}

// A file system of `bytes` at `directory`, gone with its holder.
class SmallFileSystem {
 public:
  SmallFileSystem(const fs::path& directory, const std::string& bytes) : directory_(directory) {
    fs::create_directories(directory);
    mounted_ = ::mount("tmpfs", directory.c_str(), "tmpfs", 0, ("size=" + bytes).c_str()) == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) {
      ::umount2(directory_.c_str(), MNT_DETACH);
    }
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;

  [[nodiscard]] bool mounted() const { return mounted_; }

 private:
  fs::path directory_;
  bool mounted_ = false;
};

// Fills what is left of a file system but for `spare` bytes.
void fill_up(const fs::path& file, std::uintmax_t spare) {
  std::ofstream out(file, std::ios::binary);
  const std::uintmax_t free = fs::space(file.parent_path()).available;
  const std::string block(static_cast<std::size_t>(free - std::min(free, spare)), 'x');
  out << block;
}

class FullFileSystem : public ::testing::TestWithParam<std::uintmax_t> {};

TEST_P(FullFileSystem, IsReported) {
  const TemporaryDirectory scratch;
  const fs::path root = scratch.path() / "small";
  const SmallFileSystem small(root, "8m");
  if (!small.mounted()) {
    GTEST_SKIP() << "mounting a file system takes root: " << std::strerror(errno);
  }
  expect_full_disk_is_met(
      root, [&] { fill_up(root / "filler", GetParam()); }, [&] { fs::remove(root / "filler"); });
}

INSTANTIATE_TEST_SUITE_P(SpareBytes, FullFileSystem,
                         ::testing::Values(0, 4096, 65536, 3 << 20, (4 << 20) - 4096));

}  // namespace
}  // namespace strata::io::checkpoint_damage_test
