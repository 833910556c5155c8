#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "targets.hpp"

namespace strata::fuzz {
namespace {

namespace fs = std::filesystem;

using Use = std::function<void(const std::string&, const std::string&)>;

/// Calls `use` with the bytes of each file of the corpus and of each mutation of it: cut at every
/// length, and every byte replaced in turn. Files of more than `places` bytes are cut and changed
/// at evenly spread places.
void for_each_input(const fs::path& directory, std::size_t places, const Use& use) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
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

INSTANTIATE_TEST_SUITE_P(Fuzz, Replay, testing::ValuesIn(kTargets),
                         [](const auto& target) { return target.param.name; });

}  // namespace
}  // namespace strata::fuzz
