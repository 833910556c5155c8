#include "strata/comm/agree.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace strata::comm {

void agree(Communicator& group, const std::function<void()>& step) {
  // One character of exit code, then the text; empty on success.
  std::string mine;
  try {
    step();
  } catch (const AgreedError&) {
    throw;  // all ranks throw it
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    mine = static_cast<char>(failure.code) + failure.message;
  }
  std::vector<std::string> all;
  try {
    all = group.all_gather_texts(mine);
  } catch (const std::exception&) {
    if (mine.empty()) {
      throw;
    }
    // The others do not come to hear of it, perhaps because of this failure: it is the one to tell.
    throw Error(static_cast<ExitCode>(mine.front()), mine.substr(1));
  }
  const auto first =
      std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
  if (first == all.end()) {
    return;
  }
  const bool everywhere =
      std::all_of(all.begin(), all.end(), [&](const std::string& text) { return text == *first; });
  const auto code = static_cast<ExitCode>(first->front());
  const std::string text = first->substr(1);
  throw AgreedError(code,
                    everywhere ? text : fmt::format("rank {}: {}", first - all.begin(), text));
}

void check_same_plan(Communicator& group, const std::vector<PlanItem>& items) {
  std::vector<std::uint64_t> mine;
  mine.reserve(items.size());
  for (const PlanItem& item : items) {
    mine.push_back(item.hash);
  }
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(payload_of(std::span(std::as_const(mine))), payload_of(std::span(all)));
  for (std::size_t i = 0; i < items.size(); ++i) {
    std::string others;
    for (std::size_t r = 1; r < static_cast<std::size_t>(group.size()); ++r) {
      if (all[r * items.size() + i] != all[i]) {
        others += fmt::format("{}{}", others.empty() ? "" : ", ", r);
      }
    }
    if (!others.empty()) {
      throw AgreedError(ExitCode::kUsage,
                        fmt::format("the ranks do not hold the same {}: rank {} of the {} differ "
                                    "from rank 0; start all ranks "
                                    "with the same executable, config file and options",
                                    items[i].name, others, group.name()));
    }
  }
}

}  // namespace strata::comm
