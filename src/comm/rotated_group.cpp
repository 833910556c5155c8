#include "strata/comm/rotated_group.hpp"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/device/buffer.hpp"

namespace strata::comm {

RotatedGroup::RotatedGroup(Communicator& group, std::int64_t shift, device::Stream& stream)
    : Communicator((group.rank() + shift) % group.size(), group.size(),
                   fmt::format("{} rotated by {}", group.name(), shift % group.size())),
      group_(group),
      shift_(shift % group.size()),
      stream_(stream) {
  set_timeout(group.timeout());
  set_activity(group.activity());
}

void RotatedGroup::all_gather(ConstTensorView mine, TensorView all) {
  require(all.bytes() == size() * mine.bytes(), "{} bytes gathered from {} ranks with {} each",
          all.bytes(), size(), mine.bytes());
  const Shape bytes{mine.bytes()};
  const ConstTensorView own(mine.raw(), bytes, DType::kUint8, mine.memory_space());
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for (std::int64_t r = 0; r < size(); ++r) {
    const TensorView row(all.raw() + r * mine.bytes(), bytes, DType::kUint8, all.memory_space());
    if (r != rank()) {
      sends.push_back({.payload = own, .peer = r});
      receives.push_back({.payload = row, .peer = r});
    } else if (row.raw() != own.raw()) {
      device::copy_tensor(own, row, stream_);
    }
  }
  exchange(sends, receives, Tag::kGather).wait();
}

std::unique_ptr<Communicator> RotatedGroup::subgroup(std::span<const std::int64_t> members,
                                                     std::string name) {
  std::vector<std::int64_t> mapped;
  for (const std::int64_t member : members) {
    mapped.push_back(in_group(member));
  }
  return group_.subgroup(mapped, std::move(name));
}

std::unique_ptr<Request::Operation> RotatedGroup::begin_exchange(std::span<const Outgoing> sends,
                                                                 std::span<const Incoming> receives,
                                                                 Tag tag) {
  std::vector<Outgoing> mapped_sends(sends.begin(), sends.end());
  std::vector<Incoming> mapped_receives(receives.begin(), receives.end());
  for (Outgoing& message : mapped_sends) {
    message.peer = in_group(message.peer);
  }
  for (Incoming& message : mapped_receives) {
    message.peer = in_group(message.peer);
  }
  return group_.exchange(mapped_sends, mapped_receives, tag).release();
}

std::unique_ptr<Request::Operation> RotatedGroup::begin_reduce_scatter(
    TensorView /*tensor*/, std::span<const grid::Range> /*slices*/) {
  require(false, "a reduce-scatter over the {}", name());
  return nullptr;
}

}  // namespace strata::comm
