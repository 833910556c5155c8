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
  std::int64_t messages = 0;  ///< that the rank sends to others on its node
  double bytes = 0.0;         ///< of those
  std::int64_t messages_between_nodes = 0;
  double bytes_between_nodes = 0.0;

  /// Adds messages of the same group.
  TracedMessages& operator+=(const TracedMessages& other);
};

/// What a rank does in a pass, in order.
struct TraceEvent {
  enum class Kind {
    kOperation,
    kStart,  ///< of messages; they may be under way beside operations
    kWait    ///< for messages that were started
  };
  Kind kind = Kind::kOperation;
  ops::OperationWork work;
  TracedMessages messages;
  std::size_t number = 0;  ///< of the messages that are started or waited for
  /// An operation that follows these messages on their stream, beside those of the compute stream.
  bool on_stream = false;
};

/// All messages that were started along an axis.
[[nodiscard]] TracedMessages sent(std::span<const TraceEvent> events, grid::Axis axis);

/// Records the operations of a planned context, and the messages of planned groups, without doing
/// them.
class Trace final : public ops::Observer {
 public:
  [[nodiscard]] bool begin(const ops::OperationWork& work) override {
    events_.push_back({.work = work, .number = follows_, .on_stream = follows_ != 0});
    return true;
  }
  /// Returns: the number of these messages, from 1.
  std::size_t start(const TracedMessages& messages) {
    events_.push_back(
        {.kind = TraceEvent::Kind::kStart, .messages = messages, .number = ++started_});
    return started_;
  }
  void wait(std::size_t number) {
    events_.push_back({.kind = TraceEvent::Kind::kWait, .number = number});
  }
  /// Operations follow messages on their stream until follow(0).
  void follow(std::size_t number) { follows_ = number; }
  /// The events since the last call.
  [[nodiscard]] std::vector<TraceEvent> take() { return std::exchange(events_, {}); }

 private:
  std::vector<TraceEvent> events_;
  std::size_t started_ = 0;
  std::size_t follows_ = 0;
};

/// Where a planned group's ranks are and how they send.
struct GroupSite {
  grid::Axis axis = grid::Axis::kData;
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
  std::int64_t in_node = 1;  ///< consecutive ranks that share a node
  /// Whether messages have a stream of their own.
  bool has_streams = false;
};

/// A group whose messages are recorded and complete at once; their contents are not touched.
class PlannedGroup final : public Communicator {
 public:
  /// The trace outlives the group.
  PlannedGroup(Trace& trace, const GroupSite& site);

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
  /// The messages of a collective that sends `bytes` to each other rank.
  [[nodiscard]] TracedMessages to_all(double bytes) const;
  [[nodiscard]] std::unique_ptr<Request::Operation> started(const TracedMessages& messages);
  void blocking(const TracedMessages& messages);
  void add(TracedMessages& messages, std::int64_t peer, double bytes) const;

  Trace& trace_;
  GroupSite site_;
  device::Stream stream_;
};

}  // namespace strata::comm
