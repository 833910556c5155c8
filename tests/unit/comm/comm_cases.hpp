#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include "strata/comm/communicator.hpp"

/// Cases that every kind of communicator must pass, on any number of ranks.
namespace strata::comm::test {

/// What one rank found wrong.
class Findings {
 public:
  void require_that(bool holds, const std::string& what) {
    if (!holds) {
      texts_.push_back(what);
    }
  }

  template <typename A, typename B>
  void require_equal(const A& found, const B& expected, const std::string& what) {
    if (!(found == expected)) {
      texts_.push_back(fmt::format("{}: {} where {} was expected", what, found, expected));
    }
  }

  [[nodiscard]] const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};

struct CommCase {
  std::string name;
  void (*body)(Communicator& world, Findings& findings);
};

/// The cases about sums over ranks.
void sums_have_the_same_bits_on_every_number_of_ranks(Communicator& world, Findings& findings);
void the_library_sums(Communicator& world, Findings& findings);

[[nodiscard]] const std::vector<CommCase>& comm_cases();
/// The same, and those of communicators that make windows.
[[nodiscard]] std::vector<CommCase> comm_and_window_cases();

/// Runs a case on this rank and tells every rank what all of them found wrong, one line each.
/// Communication: collective over the world.
[[nodiscard]] std::string run_case(const CommCase& comm_case, Communicator& world);

}  // namespace strata::comm::test
