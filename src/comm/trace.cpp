#include "strata/comm/trace.hpp"

#include <stdexcept>

namespace strata::comm {

TracedMessages& TracedMessages::operator+=(const TracedMessages& other) {
  messages += other.messages;
  bytes += other.bytes;
  messages_between_nodes += other.messages_between_nodes;
  bytes_between_nodes += other.bytes_between_nodes;
  return *this;
}

TracedMessages sent(std::span<const TraceEvent> events, grid::Axis axis) {
  TracedMessages all{.axis = axis};
  for (const TraceEvent& event : events) {
    if (event.kind == TraceEvent::Kind::kStart && event.messages.axis == axis) {
      all += event.messages;
    }
  }
  return all;
}

/// Complete at the first test, which is the wait.
class PlannedGroup::Started final : public Request::Operation {
 public:
  Started(Trace& trace, std::size_t number, device::Stream* stream)
      : trace_(trace), number_(number), stream_(stream) {}

  bool test() override {
    trace_.wait(number_);
    return true;
  }
  bool follow(const std::function<void(device::Stream&)>& work) override {
    if (stream_ == nullptr) {
      return false;
    }
    trace_.follow(number_);
    work(*stream_);
    trace_.follow(0);
    return true;
  }

 private:
  Trace& trace_;
  std::size_t number_;
  device::Stream* stream_;
};

PlannedGroup::PlannedGroup(Trace& trace, const GroupSite& site)
    : Communicator(site.rank, site.ranks, "planned group"),
      trace_(trace),
      site_(site),
      stream_(device::Device::planned()) {
  set_axis(site.axis);
}

void PlannedGroup::add(TracedMessages& messages, std::int64_t peer, double bytes) const {
  const bool inside = peer / site_.in_node == rank() / site_.in_node;
  ++(inside ? messages.messages : messages.messages_between_nodes);
  (inside ? messages.bytes : messages.bytes_between_nodes) += bytes;
}

TracedMessages PlannedGroup::to_all(double bytes) const {
  TracedMessages messages{.axis = axis(), .ranks = size()};
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    if (peer != rank()) {
      add(messages, peer, bytes);
    }
  }
  return messages;
}

std::unique_ptr<Request::Operation> PlannedGroup::started(const TracedMessages& messages) {
  return std::make_unique<Started>(trace_, trace_.start(messages),
                                   site_.has_streams ? &stream_ : nullptr);
}

void PlannedGroup::blocking(const TracedMessages& messages) {
  static_cast<void>(started(messages)->test());
}

void PlannedGroup::broadcast(TensorView payload, std::int64_t root) {
  TracedMessages messages{.axis = axis(), .ranks = size()};
  add(messages, rank() == root ? (root + 1) % size() : root, static_cast<double>(payload.bytes()));
  blocking(messages);
}

void PlannedGroup::all_gather(ConstTensorView mine, TensorView /*all*/) {
  blocking(to_all(static_cast<double>(mine.bytes())));
}

void PlannedGroup::all_reduce(TensorView sum) {
  // A reduce-scatter and an all-gather.
  blocking(to_all(2.0 * static_cast<double>(sum.bytes()) / static_cast<double>(size())));
}

std::unique_ptr<Communicator> PlannedGroup::subgroup(std::span<const std::int64_t> /*members*/,
                                                     std::string /*name*/) {
  throw std::logic_error("a planned group is not divided");
}

std::unique_ptr<Request::Operation> PlannedGroup::begin_send(ConstTensorView payload,
                                                             std::int64_t peer, Tag /*tag*/) {
  TracedMessages messages{.axis = axis(), .ranks = size()};
  add(messages, peer, static_cast<double>(payload.bytes()));
  return started(messages);
}

std::unique_ptr<Request::Operation> PlannedGroup::begin_receive(TensorView /*payload*/,
                                                                std::int64_t /*peer*/,
                                                                Tag /*tag*/) {
  return started({.axis = axis(), .ranks = size()});
}

std::unique_ptr<Request::Operation> PlannedGroup::begin_reduce_scatter(
    TensorView tensor, std::span<const grid::Range> /*slices*/) {
  return started(to_all(static_cast<double>(tensor.bytes()) / static_cast<double>(size())));
}

std::unique_ptr<Request::Operation> PlannedGroup::begin_exchange(
    std::span<const Outgoing> sends, std::span<const Incoming> /*receives*/, Tag /*tag*/) {
  TracedMessages messages{.axis = axis(), .ranks = size()};
  for (const Outgoing& send : sends) {
    add(messages, send.peer, static_cast<double>(send.payload.bytes()));
  }
  return started(messages);
}

}  // namespace strata::comm
