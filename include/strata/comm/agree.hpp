#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/core/error.hpp"

namespace strata::comm {

/// An error that all ranks of a group throw together: one of them reports it, and all exit in
/// order.
class AgreedError : public Error {
 public:
  /// `by_rank`: what each rank failed with, in rank order, empty where it did not.
  AgreedError(ExitCode code, std::string_view message, std::vector<std::string> by_rank = {})
      : Error(code, message), by_rank_(std::move(by_rank)) {}

  [[nodiscard]] const std::vector<std::string>& by_rank() const { return by_rank_; }

 private:
  std::vector<std::string> by_rank_;
};

/// Runs one step of set-up on every rank. Where it throws on any rank, all ranks throw the error of
/// the lowest such rank; the text starts with that rank's number unless all ranks failed with the
/// same text. Communication: one all-gather of texts.
void agree(Communicator& group, const std::function<void()>& step);
/// The same of a step that is collective over parts of the group: what all ranks of a part throw
/// becomes the group's.
void agree_on_parts(Communicator& group, const std::function<void()>& step);
/// The same; returns what the step returns, of all ranks, in rank order.
[[nodiscard]] std::vector<std::string> agree_texts(Communicator& group,
                                                   const std::function<std::string()>& step);
/// The same; returns the first of these texts that is not empty, else an empty one.
[[nodiscard]] std::string first_text(Communicator& group, const std::function<std::string()>& step);

/// A part of the plan that must be equal on all ranks.
struct PlanItem {
  std::string name;
  std::uint64_t hash = 0;
};

/// As agree(), and checks that all ranks made the same plan (config, grid, schedule, buckets).
/// Pre: all ranks list the same names.
/// Throws: AgreedError(kUsage) that names the part and the ranks that differ from rank 0.
void agree_plan(Communicator& group, const std::function<std::vector<PlanItem>()>& step);

}  // namespace strata::comm
