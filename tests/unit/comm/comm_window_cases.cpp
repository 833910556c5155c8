#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <fmt/ranges.h>

#include "comm_cases.hpp"

namespace strata::comm::test {
namespace {

// MPICH lays the windows of a node's ranks one after the other: after an odd number of words the
// next one begins at an odd multiple of 8 bytes.
void words_of_a_window_are_those_of_its_rank(Communicator& world, Findings& findings) {
  using Word = Window::Word;
  const auto words_of = [](std::int64_t rank) {
    std::vector<Word> words;
    for (std::int64_t i = 0; i < 2 * rank + 3; ++i) {
      words.push_back(static_cast<Word>(1000 * rank + i));
    }
    return words;
  };
  std::vector<Word> own = words_of(world.rank());
  const std::unique_ptr<Window> window = world.make_window(std::ssize(own));
  window->write_own(0, own);
  world.barrier();
  for (std::int64_t rank = 0; rank < world.size(); ++rank) {
    const std::vector<Word> expected = words_of(rank);
    std::vector<Word> found(expected.size());
    window->get(rank, 0, found);
    findings.require_equal(found, expected, fmt::format("get from rank {}", rank));
  }
  world.barrier();
  const std::int64_t next = (world.rank() + 1) % world.size();
  window->store(next, 1, 7);
  findings.require_equal(window->fetch_add(next, 2, 50), words_of(next)[2], "fetch_add");
  world.barrier();
  own[1] = 7;
  own[2] += 50;
  std::vector<Word> found(own.size());
  window->read_own(0, found);
  findings.require_equal(found, own, "after a store and a sum of another rank");
  window->close();
}

}  // namespace

std::vector<CommCase> comm_and_window_cases() {
  std::vector<CommCase> cases = comm_cases();
  cases.push_back(
      {"words_of_a_window_are_those_of_its_rank", words_of_a_window_are_those_of_its_rank});
  return cases;
}

}  // namespace strata::comm::test
