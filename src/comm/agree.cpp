#include "strata/comm/agree.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "strata/core/hash.hpp"

namespace strata::comm {

std::vector<std::string> agree_texts(Communicator& group,
                                     const std::function<std::string()>& step) {
  // One character of exit code, then the text.
  std::string mine;
  try {
    mine = static_cast<char>(ExitCode::kDone) + step();
  } catch (const AgreedError&) {
    throw;  // all ranks throw it
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    mine = static_cast<char>(failure.code) + failure.message;
  }
  const auto failed = [](const std::string& text) {
    return static_cast<ExitCode>(text.front()) != ExitCode::kDone;
  };
  std::vector<std::string> all;
  try {
    all = group.all_gather_texts(mine);
  } catch (const std::exception&) {
    if (!failed(mine)) {
      throw;
    }
    // The others do not come to hear of it, perhaps because of this failure: it is the one to tell.
    throw Error(static_cast<ExitCode>(mine.front()), mine.substr(1));
  }
  const auto first = std::ranges::find_if(all, failed);
  if (first == all.end()) {
    for (std::string& text : all) {
      text.erase(0, 1);
    }
    return all;
  }
  const bool everywhere =
      std::all_of(all.begin(), all.end(), [&](const std::string& text) { return text == *first; });
  const auto code = static_cast<ExitCode>(first->front());
  const std::string text = first->substr(1);
  const std::string message =
      everywhere ? text : fmt::format("rank {}: {}", first - all.begin(), text);
  for (std::string& own : all) {
    own = failed(own) ? own.substr(1) : "";
  }
  throw AgreedError(code, message, std::move(all));
}

void agree(Communicator& group, const std::function<void()>& step) {
  static_cast<void>(agree_texts(group, [&] {
    step();
    return std::string();
  }));
}

void agree_on_parts(Communicator& group, const std::function<void()>& step) {
  agree(group, [&] {
    try {
      step();
    } catch (const AgreedError& error) {
      throw Error(error.code(), error.what());
    }
  });
}

std::string first_text(Communicator& group, const std::function<std::string()>& step) {
  for (const std::string& text : agree_texts(group, step)) {
    if (!text.empty()) {
      return text;
    }
  }
  return "";
}

void agree_plan(Communicator& group, const std::function<std::vector<PlanItem>()>& step) {
  std::vector<PlanItem> items;
  const std::vector<std::string> all = agree_texts(group, [&] {
    items = step();
    std::string hashes;
    for (const PlanItem& item : items) {
      hashes += hash_text(item.hash);
    }
    return hashes;
  });
  constexpr std::size_t kDigits = 16;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto hash_of_rank = [&](std::size_t rank) {
      return std::string_view(all[rank]).substr(i * kDigits, kDigits);
    };
    std::string others;
    for (std::size_t r = 1; r < static_cast<std::size_t>(group.size()); ++r) {
      if (hash_of_rank(r) != hash_of_rank(0)) {
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
