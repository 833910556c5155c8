#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/ops/observer.hpp"

namespace strata::comm {

/// Messages of one collective or exchange of a group, from the rank that traces.
struct TracedMessages {
  grid::Axis axis = grid::Axis::kData;
  std::int64_t ranks = 1;     ///< of the group
  std::int64_t messages = 0;  ///< that the rank sends
  double bytes = 0.0;         ///< that it sends
};

/// What a rank does in a pass, in order.
struct TraceEvent {
  enum class Kind {
    kOperation,
    kStart,  ///< of messages; they may be under way beside operations
    kWait    ///< for the messages that event `started` started
  };
  Kind kind = Kind::kOperation;
  ops::OperationWork work;
  TracedMessages messages;
  std::size_t started = 0;
};

/// Records the operations of a planned context, and the messages of planned groups, without doing
/// them.
class Trace final : public ops::Observer {
 public:
  [[nodiscard]] bool begin(const ops::OperationWork& work) override {
    events_.push_back({.work = work});
    return true;
  }
  /// Returns: the event of these messages.
  std::size_t start(const TracedMessages& messages) {
    events_.push_back({.kind = TraceEvent::Kind::kStart, .messages = messages});
    return events_.size() - 1;
  }
  void wait(std::size_t started) {
    events_.push_back({.kind = TraceEvent::Kind::kWait, .started = started});
  }
  /// The events since the last call.
  [[nodiscard]] std::vector<TraceEvent> take() { return std::exchange(events_, {}); }

 private:
  std::vector<TraceEvent> events_;
};

/// A group whose messages are recorded and complete at once; their contents are not touched.
class PlannedGroup final : public Communicator {
 public:
  /// The trace outlives the group.
  PlannedGroup(Trace& trace, grid::Axis axis, std::int64_t rank, std::int64_t size);

  void barrier() override {}
  void broadcast(TensorView payload, std::int64_t root) override;
  void all_gather(ConstTensorView mine, TensorView all) override;
  void all_reduce(TensorView sum) override;
  /// Throws: std::logic_error, as make_window() does.
  [[nodiscard]] std::unique_ptr<Communicator> subgroup(std::span<const std::int64_t> members,
                                                       std::string name) override;

 protected:
  std::unique_ptr<Request::Operation> begin_send(ConstTensorView payload, std::int64_t peer,
                                                 Tag tag) override;
  std::unique_ptr<Request::Operation> begin_receive(TensorView payload, std::int64_t peer,
                                                    Tag tag) override;
  std::unique_ptr<Request::Operation> begin_reduce_scatter(
      TensorView tensor, std::span<const grid::Range> slices) override;
  std::unique_ptr<Request::Operation> begin_exchange(std::span<const Outgoing> sends,
                                                     std::span<const Incoming> receives,
                                                     Tag tag) override;

 private:
  class Started;
  [[nodiscard]] std::unique_ptr<Request::Operation> started(std::int64_t messages, double bytes);
  void blocking(std::int64_t messages, double bytes);

  Trace& trace_;
};

}  // namespace strata::comm
