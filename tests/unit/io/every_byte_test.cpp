#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "strata/io/checkpoint.hpp"
#include "strata/io/dataset.hpp"

#include "checkpoint_cases.hpp"
#include "text_files.hpp"

/// Bits flipped and lengths cut in every file of small checkpoints and data sets: all are found,
/// none crashes or hangs. STRATA_TEST_LONG=1 takes every bit of every byte and every length;
/// otherwise a sample is taken.
namespace strata::io::every_byte_test {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;

/// A set of files that one master describes.
struct Set {
  std::string name;
  /// Makes the set and returns its master.
  fs::path (*make)(const TemporaryDirectory& directory);
  /// Opens the set and verifies all of it; throws Error or returns false where it is damaged.
  bool (*is_good)(const fs::path& master);
};

bool dataset_is_good(const fs::path& master) {
  const Inspection inspection = inspect_dataset(master, Inspect::kVerify);
  return inspection.bad_shards == 0;
}

bool checkpoint_is_good(const fs::path& master) {
  const Checkpoint checkpoint = Checkpoint::open(master.parent_path());
  for (std::int64_t part = 0; part < checkpoint.part_count(); ++part) {
    checkpoint.verify_part(part);
  }
  return true;
}

void PrintTo(const Set& set, std::ostream* out) {
  *out << set.name;
}

const Set kSets[] = {
    {"checkpoint",
     [](const TemporaryDirectory& directory) {
       return test::write_checkpoint(directory.path(), 1, 2) / "master.h5";
     },
     &checkpoint_is_good},
    {"samples",
     [](const TemporaryDirectory& directory) {
       return test::import_images(directory, 12, "12",
                                  [](ImportOptions& options) { options.shard_bytes = 120; })
           .train;
     },
     &dataset_is_good},
    {"characters",
     [](const TemporaryDirectory& directory) {
       return import_dataset(test::text_options(directory, TokenizerKind::kChars,
                                                {"the theory of the thing"}, "23"))
           .train;
     },
     &dataset_is_good},
    {"pairs",
     [](const TemporaryDirectory& directory) {
       test::write_pairs(directory, test::small_pairs());
       return import_dataset(
                  test::text_options(directory, TokenizerKind::kGpt2, {"the theory"}, "1.0"))
           .train;
     },
     &dataset_is_good}};

class EveryByte : public ::testing::TestWithParam<Set> {
 protected:
  // Whether the damage is found, with an error or as a bad shard.
  bool is_found() const {
    try {
      return !GetParam().is_good(master_);
    } catch (const Error&) {
      return true;
    }
  }

  // Calls `damage` in a child process with each file of the set and its content, which it restores.
  void for_each_file(const std::function<void(const fs::path&, const std::string&)>& damage) {
    for (const auto& entry : fs::directory_iterator(master_.parent_path())) {
      constexpr unsigned kLimitSeconds = 600;
      const std::string good = test::read_file(entry.path());
      EXPECT_EQ(test::in_child([&] {
                  ::alarm(kLimitSeconds);
                  damage(entry.path(), good);
                }),
                0)
          << entry.path();
      test::write_file(entry.path(), good);
    }
    EXPECT_TRUE(GetParam().is_good(master_));
  }

  const TemporaryDirectory directory_;
  const fs::path master_ = GetParam().make(directory_);
  const bool all_ = std::getenv("STRATA_TEST_LONG") != nullptr;
};

TEST_P(EveryByte, FlippedIsFound) {
  for_each_file([&](const fs::path& path, const std::string& good) {
    std::size_t flips = 0;
    std::size_t found = 0;
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    const auto put = [&](std::size_t at, int byte) {
      file.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(byte)).flush();
    };
    for (std::size_t bit = 0; bit < 8 * good.size(); bit += all_ ? 1 : 97) {
      put(bit / 8, good[bit / 8] ^ (1 << bit % 8));
      ++flips;
      const bool seen = is_found();
      found += seen ? 1 : 0;
      EXPECT_TRUE(seen) << path.filename() << " byte " << bit / 8 << " bit " << bit % 8;
      put(bit / 8, good[bit / 8]);
    }
    std::printf("%s: %zu bytes, %zu of %zu flipped bits found\n", path.filename().c_str(),
                good.size(), found, flips);
    std::fflush(stdout);
  });
}

TEST_P(EveryByte, CutIsFound) {
  for_each_file([&](const fs::path& path, const std::string& good) {
    std::size_t cuts = 0;
    for (std::size_t length = good.size(); length > 0; ++cuts) {
      length -= std::min<std::size_t>(length, all_ ? 1 : 53);
      fs::resize_file(path, length);
      EXPECT_TRUE(is_found()) << path.filename() << " cut to " << length;
    }
    std::printf("%s: %zu lengths\n", path.filename().c_str(), cuts);
    std::fflush(stdout);
  });
}

INSTANTIATE_TEST_SUITE_P(Of, EveryByte, ::testing::ValuesIn(kSets),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace strata::io::every_byte_test
