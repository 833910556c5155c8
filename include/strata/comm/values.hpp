#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "strata/comm/agree.hpp"

namespace strata::comm {

/// Equal numbers of values of all ranks, in rank order. Communication: an all-gather.
template <typename T>
[[nodiscard]] std::vector<T> gathered_rows(Communicator& group, std::span<const T> mine) {
  std::vector<T> all(mine.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(payload_of(mine), payload_of(std::span(all)));
  return all;
}
/// One value of each rank.
template <typename T>
[[nodiscard]] std::vector<T> gathered(Communicator& group, const T& mine) {
  return gathered_rows(group, std::span(&mine, 1));
}

/// The value of rank `root`. Communication: a broadcast.
template <typename T>
[[nodiscard]] T broadcast_from(Communicator& group, T mine, std::int64_t root = 0) {
  group.broadcast(payload_of(std::span(&mine, 1)), root);
  return mine;
}

/// As agree(), of a step that rank 0 alone runs. Returns: on all ranks what the step returns, a
/// text, a value without pointers or nothing. Communication: as agree(), and a broadcast of a
/// value.
template <typename Step>
auto agree_on_first(Communicator& group, const Step& step) {
  using Result = std::invoke_result_t<Step>;
  if constexpr (std::is_same_v<Result, std::string>) {
    return agree_texts(group, [&] { return group.rank() == 0 ? step() : std::string(); }).front();
  } else if constexpr (std::is_void_v<Result>) {
    agree(group, [&] {
      if (group.rank() == 0) {
        step();
      }
    });
  } else {
    static_assert(std::is_trivially_copyable_v<Result>);
    Result result{};
    agree(group, [&] {
      if (group.rank() == 0) {
        result = step();
      }
    });
    return broadcast_from(group, result);
  }
}

}  // namespace strata::comm
