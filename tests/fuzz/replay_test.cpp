#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <malloc.h>

#include "targets.hpp"

namespace {

/// Bytes that operator new has given out: now, and at most since a reader began.
std::atomic<std::size_t> live_bytes = 0;
std::atomic<std::size_t> peak_bytes = 0;

}  // namespace

void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  // A reader that asks for this much fails its test, and the machine lives on.
  constexpr std::size_t kMostBytes = std::size_t{1} << 30U;
  void* const memory = bytes < kMostBytes ? std::malloc(bytes) : nullptr;
  const std::size_t live = live_bytes += ::malloc_usable_size(memory);
  peak_bytes = std::max<std::size_t>(peak_bytes, live);
  return memory;
}

void* operator new(std::size_t bytes) {
  void* const memory = operator new(bytes, std::nothrow);
  return memory != nullptr ? memory : throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
  live_bytes -= ::malloc_usable_size(memory);
  std::free(memory);
}

void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  operator delete(memory);
}

namespace strata::fuzz {
namespace {

namespace fs = std::filesystem;

using Use = std::function<void(const std::string&, const std::string&)>;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Calls `use` with the bytes of each file of the corpus and of each mutation of it: cut at every
/// length, and every byte replaced in turn. Files of more than `places` bytes are cut and changed
/// at evenly spread places.
void for_each_input(const fs::path& directory, std::size_t places, const Use& use) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string bytes = read_file(entry.path());
    const std::string name = entry.path().filename().string();
    use(bytes, name);
    const std::size_t stride = bytes.size() / places + 1;
    for (std::size_t at = 0; at < bytes.size(); at += stride) {
      use(bytes.substr(0, at), name + " cut at " + std::to_string(at));
      for (const char value : {'\0', '\xff', '[', '"', '-', static_cast<char>(bytes[at] ^ 1),
                               static_cast<char>(bytes[at] ^ 0x80)}) {
        std::string changed = bytes;
        changed[at] = value;
        use(changed, name + " changed at " + std::to_string(at));
      }
    }
  }
}

/// Changes a file at random in one to four places: bits, bytes, whole numbers as bytes and as
/// digits, and pieces that go, come twice or often, or come from another file.
class Mutator {
 public:
  Mutator(std::vector<std::string> files, std::uint64_t seed)
      : files_(std::move(files)), random_(seed) {}

  std::string next() {
    std::string bytes = files_[below(files_.size())];
    for (std::size_t change = below(4) + 1; change > 0 && !bytes.empty(); --change) {
      mutate(bytes);
    }
    return bytes;
  }

 private:
  std::size_t below(std::size_t end) { return random_() % end; }

  void mutate(std::string& bytes) {
    static constexpr std::int64_t kNumbers[] = {
        0,       1,         -1,        127,       255,
        65535,   65536,     1LL << 31, 1LL << 40, std::numeric_limits<std::int64_t>::max(),
        1 << 30, 0xFFFFFFFF};
    static constexpr const char* kTexts[] = {
        "0",    "-1", "1e308", "2147483647", "4294967296", "9223372036854775807",
        "null", "[]", "{}",    "\"\"",       "true",       "18446744073709551616",
        "\xff", "\n", "NaN",   "../x",       "1.5",        "\\ud83d"};
    const std::size_t at = below(bytes.size());
    const std::size_t count = std::min(below(32) + 1, bytes.size() - at);
    switch (below(10)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1U << below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 2: {
        const std::int64_t number = kNumbers[below(std::size(kNumbers))];
        std::memcpy(&bytes[at], &number, std::min(bytes.size() - at, std::size_t{1} << below(4)));
        break;
      }
      case 3: {
        const std::size_t begin = std::min(bytes.find_first_of("0123456789", at), bytes.size());
        const std::size_t end =
            std::min(bytes.find_first_not_of("0123456789", begin), bytes.size());
        bytes.replace(begin, end - begin, kTexts[below(std::size(kTexts))]);
        break;
      }
      case 4:
        bytes.insert(at, kTexts[below(std::size(kTexts))]);
        break;
      case 5:
        bytes.erase(at, count);
        break;
      case 6:
        bytes.insert(below(bytes.size()), bytes.substr(at, count));
        break;
      case 7: {
        std::string many;
        for (std::size_t i = below(2048); i > 0; --i) {
          many.append(bytes, at, count);
        }
        bytes.insert(at, many);
        break;
      }
      case 8: {
        const std::string& other = files_[below(files_.size())];
        bytes.replace(at, count, other.substr(below(other.size()), count));
        break;
      }
      default:
        bytes.resize(at);
    }
  }

  std::vector<std::string> files_;
  std::mt19937_64 random_;
};

class Replay : public testing::TestWithParam<Target> {};

TEST_P(Replay, CorpusAndItsMutationsAreReadOrRefused) {
  int inputs = 0;
  for_each_input(fs::path(STRATA_FUZZ_CORPUS) / GetParam().name, GetParam().places,
                 [&](const std::string& bytes, const std::string& what) {
                   ++inputs;
                   EXPECT_NO_THROW(GetParam().run(std::as_bytes(std::span(bytes)))) << what;
                 });
  EXPECT_GT(inputs, 100);
}

// STRATA_FUZZ_FILES: how many of each kind; default: 50.
TEST_P(Replay, FilesChangedAtRandomAreReadOrRefusedInBoundedMemory) {
  constexpr std::size_t kAnyFile = std::size_t{2} << 20U;
  const char* const wanted = std::getenv("STRATA_FUZZ_FILES");
  const int count = wanted == nullptr ? 50 : std::atoi(wanted);
  std::vector<std::string> corpus;
  for (const auto& entry : fs::directory_iterator(fs::path(STRATA_FUZZ_CORPUS) / GetParam().name)) {
    corpus.push_back(read_file(entry.path()));
  }
  std::ranges::sort(corpus);
  for (int number = 0; number < count; ++number) {
    const std::string bytes = Mutator(corpus, static_cast<std::uint64_t>(number)).next();
    const std::size_t before = live_bytes;
    peak_bytes = before;
    EXPECT_NO_THROW(GetParam().run(std::as_bytes(std::span(bytes)))) << "file " << number;
    if (GetParam().memory_per_byte > 0) {
      EXPECT_LE(peak_bytes - before, kAnyFile + GetParam().memory_per_byte * bytes.size())
          << "file " << number << " of " << bytes.size() << " bytes";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Replay, testing::ValuesIn(STRATA_FUZZ_TARGETS),
                         [](const auto& target) { return target.param.name; });

}  // namespace
}  // namespace strata::fuzz
