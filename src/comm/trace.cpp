#include "strata/comm/trace.hpp"

#include <stdexcept>

namespace strata::comm {

/// Complete at the first test, which is the wait.
class PlannedGroup::Started final : public Request::Operation {
 public:
  Started(Trace& trace, std::size_t event) : trace_(trace), event_(event) {}

  bool test() override {
    trace_.wait(event_);
    return true;
  }

 private:
  Trace& trace_;
  std::size_t event_;
};

PlannedGroup::PlannedGroup(Trace& trace, grid::Axis axis, std::int64_t rank, std::int64_t size)
    : Communicator(rank, size, "planned group"), trace_(trace) {
  set_axis(axis);
}

std::unique_ptr<Request::Operation> PlannedGroup::started(std::int64_t messages, double bytes) {
  return std::make_unique<Started>(
      trace_,
      trace_.start({.axis = axis(), .ranks = size(), .messages = messages, .bytes = bytes}));
}

void PlannedGroup::blocking(std::int64_t messages, double bytes) {
  static_cast<void>(started(messages, bytes)->test());
}

void PlannedGroup::broadcast(TensorView payload, std::int64_t /*root*/) {
  blocking(1, static_cast<double>(payload.bytes()));
}

void PlannedGroup::all_gather(ConstTensorView mine, TensorView /*all*/) {
  blocking(size() - 1, static_cast<double>((size() - 1) * mine.bytes()));
}

void PlannedGroup::all_reduce(TensorView sum) {
  const auto ranks = static_cast<double>(size());
  blocking(2 * (size() - 1), 2.0 * (ranks - 1.0) / ranks * static_cast<double>(sum.bytes()));
}

std::unique_ptr<Communicator> PlannedGroup::subgroup(std::span<const std::int64_t> /*members*/,
                                                     std::string /*name*/) {
  throw std::logic_error("a planned group is not divided");
}

std::unique_ptr<Request::Operation> PlannedGroup::begin_send(ConstTensorView payload,
                                                             std::int64_t /*peer*/, Tag /*tag*/) {
  return started(1, static_cast<double>(payload.bytes()));
}

std::unique_ptr<Request::Operation> PlannedGroup::begin_receive(TensorView /*payload*/,
                                                                std::int64_t /*peer*/,
                                                                Tag /*tag*/) {
  return started(0, 0.0);
}

std::unique_ptr<Request::Operation> PlannedGroup::begin_reduce_scatter(
    TensorView tensor, std::span<const grid::Range> slices) {
  const std::int64_t own = slices[static_cast<std::size_t>(rank())].count();
  return started(size() - 1,
                 static_cast<double>((tensor.count() - own) * size_bytes(tensor.dtype())));
}

std::unique_ptr<Request::Operation> PlannedGroup::begin_exchange(
    std::span<const Outgoing> sends, std::span<const Incoming> /*receives*/, Tag /*tag*/) {
  double bytes = 0.0;
  for (const Outgoing& send : sends) {
    bytes += static_cast<double>(send.payload.bytes());
  }
  return started(std::ssize(sends), bytes);
}

}  // namespace strata::comm
