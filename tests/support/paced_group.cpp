#include "paced_group.hpp"

#include <algorithm>

#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"

namespace strata::comm {

EmulatedLink::EmulatedLink(double bytes_per_second, double delay_seconds)
    : seconds_per_byte_(bytes_per_second > 0.0 ? 1.0 / bytes_per_second : 0.0),
      delay_seconds_(delay_seconds) {
  require(bytes_per_second >= 0.0 && delay_seconds >= 0.0, "a link of {} B/s and {} s",
          bytes_per_second, delay_seconds);
}

double EmulatedLink::carry(std::int64_t sent_bytes, std::int64_t received_bytes, double now) {
  constexpr double kPeakSeconds = 1.0;
  sent_bytes_ += sent_bytes;
  if (sent_bytes > 0) {
    last_second_.push_back({.when = now, .bytes = sent_bytes});
    bytes_in_last_second_ += sent_bytes;
    while (last_second_.front().when <= now - kPeakSeconds) {
      bytes_in_last_second_ -= last_second_.front().bytes;
      last_second_.pop_front();
    }
    peak_bytes_ = std::max(peak_bytes_, bytes_in_last_second_);
  }
  const auto occupy = [&](double& until, std::int64_t bytes) {
    if (bytes > 0) {
      until = std::max(until, now) + static_cast<double>(bytes) * seconds_per_byte_;
    }
    return bytes > 0 ? until : now;
  };
  return std::max(occupy(sends_until_, sent_bytes), occupy(receives_until_, received_bytes)) +
         delay_seconds_;
}

/// Completes with the operation, and not before the link has carried it.
class PacedGroup::Paced final : public Request::Operation {
 public:
  Paced(std::unique_ptr<Request::Operation> operation, double arrives)
      : operation_(std::move(operation)), arrives_(arrives) {}

  bool test() override {
    if (operation_ != nullptr && operation_->test()) {
      operation_.reset();
    }
    return operation_ == nullptr && now_seconds() >= arrives_;
  }
  [[nodiscard]] std::string awaited() const override {
    return operation_ == nullptr ? "" : operation_->awaited();
  }

 private:
  std::unique_ptr<Request::Operation> operation_;
  double arrives_;
};

PacedGroup::PacedGroup(std::unique_ptr<Communicator> group, EmulatedLink& link,
                       std::vector<bool> across)
    : Communicator(group->rank(), group->size(), group->name()),
      group_(std::move(group)),
      link_(link),
      across_(std::move(across)),
      peers_across_(std::count(across_.begin(), across_.end(), true)) {
  require(std::ssize(across_) == size(), "{} entries for {} ranks", across_.size(), size());
  require(!is_across(rank()), "a link between rank {} and itself", rank());
  set_timeout(group_->timeout());
  set_axis(group_->axis());
  set_activity(group_->activity());
}

template <typename Collective>
void PacedGroup::pace(std::string_view what, std::int64_t sent_bytes, std::int64_t received_bytes,
                      const Collective& collective) {
  const double start = now_seconds();
  collective();
  if (peers_across_ > 0) {
    Request(std::make_unique<Paced>(nullptr, link_.carry(sent_bytes, received_bytes, start)),
            describe_collective(what), timeout(), activity())
        .wait();
  }
}

void PacedGroup::barrier() {
  pace("barrier", 0, 0, [&] { group_->barrier(); });
}

void PacedGroup::broadcast(TensorView payload, std::int64_t root) {
  const bool sends = root == rank();
  pace("broadcast", sends ? peers_across_ * payload.bytes() : 0,
       is_across(root) ? payload.bytes() : 0, [&] { group_->broadcast(payload, root); });
}

void PacedGroup::all_gather(ConstTensorView mine, TensorView all) {
  const std::int64_t bytes = peers_across_ * mine.bytes();
  pace("all-gather", bytes, bytes, [&] { group_->all_gather(mine, all); });
}

void PacedGroup::all_reduce(TensorView sum) {
  // As a reduce-scatter and an all-gather move them.
  const std::int64_t bytes = 2 * peers_across_ * sum.bytes() / size();
  pace("all-reduce", bytes, bytes, [&] { group_->all_reduce(sum); });
}

std::unique_ptr<Communicator> PacedGroup::subgroup(std::span<const std::int64_t> members,
                                                   std::string name) {
  std::vector<bool> across;
  for (const std::int64_t member : members) {
    across.push_back(is_across(member));
  }
  return std::make_unique<PacedGroup>(group_->subgroup(members, std::move(name)), link_,
                                      std::move(across));
}

std::unique_ptr<Request::Operation> PacedGroup::paced(Request request, bool crosses,
                                                      std::int64_t sent_bytes,
                                                      std::int64_t received_bytes) {
  if (!crosses) {
    return request.release();
  }
  return std::make_unique<Paced>(request.release(),
                                 link_.carry(sent_bytes, received_bytes, now_seconds()));
}

std::unique_ptr<Request::Operation> PacedGroup::begin_send(ConstTensorView payload,
                                                           std::int64_t peer, Tag tag) {
  return paced(group_->send(payload, peer, tag), is_across(peer), payload.bytes(), 0);
}

std::unique_ptr<Request::Operation> PacedGroup::begin_receive(TensorView payload, std::int64_t peer,
                                                              Tag tag) {
  return paced(group_->receive(payload, peer, tag), is_across(peer), 0, payload.bytes());
}

std::unique_ptr<Request::Operation> PacedGroup::begin_exchange(std::span<const Outgoing> sends,
                                                               std::span<const Incoming> receives,
                                                               Tag tag) {
  bool crosses = false;
  const auto bytes_across = [&](const auto& messages) {
    std::int64_t bytes = 0;
    for (const auto& message : messages) {
      if (is_across(message.peer)) {
        crosses = true;
        bytes += message.payload.bytes();
      }
    }
    return bytes;
  };
  const std::int64_t sent = bytes_across(sends);
  const std::int64_t received = bytes_across(receives);
  return paced(group_->exchange(sends, receives, tag), crosses, sent, received);
}

std::unique_ptr<Request::Operation> PacedGroup::begin_reduce_scatter(
    TensorView tensor, std::span<const grid::Range> slices) {
  const std::int64_t element = tensor.bytes() / std::max<std::int64_t>(1, tensor.count());
  std::int64_t sent = 0;
  for (std::int64_t r = 0; r < size(); ++r) {
    if (is_across(r)) {
      sent += slices[static_cast<std::size_t>(r)].count() * element;
    }
  }
  return paced(group_->reduce_scatter(tensor, slices), peers_across_ > 0, sent,
               peers_across_ * slices[static_cast<std::size_t>(rank())].count() * element);
}

}  // namespace strata::comm
