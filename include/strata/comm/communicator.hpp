#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/comm/activity.hpp"
#include "strata/comm/summation.hpp"
#include "strata/comm/window.hpp"
#include "strata/core/tensor.hpp"
#include "strata/device/stream.hpp"
#include "strata/grid/grid.hpp"

namespace strata::comm {

/// The purpose of a message. Sends match only receives with the same tag.
enum class Tag : int { kSetup, kActivation, kGradient, kReduce, kGather };

constexpr auto enum_names(Tag) {
  return names_in_order("set-up message", "activation", "gradient", "gradient slice",
                        "weight slice");
}

/// The tag of messages to one chunk of the receiving stage; `kind` itself for chunk 0.
[[nodiscard]] constexpr Tag tag_of(Tag kind, std::int64_t chunk) {
  return Tag{static_cast<int>(kind) + static_cast<int>(chunk * std::ssize(enum_names(kind)))};
}
[[nodiscard]] constexpr Tag kind_of(Tag tag) {
  return Tag{static_cast<int>(tag) % static_cast<int>(std::ssize(enum_names(tag)))};
}
[[nodiscard]] constexpr std::int64_t chunk_of(Tag tag) {
  return static_cast<int>(tag) / std::ssize(enum_names(tag));
}

/// The time limit of one communication operation.
struct Timeout {
  double seconds = 300.0;
};

/// A message in flight. Its buffers must stay valid until it completes; destroying it earlier is a
/// logic error, except during stack unwinding.
class Request {
 public:
  /// The transport's part of a request.
  class Operation {
   public:
    Operation() = default;
    virtual ~Operation() = default;
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;
    /// Makes progress; true once complete.
    virtual bool test() = 0;
    /// Request::follow().
    [[nodiscard]] virtual bool follow(const std::function<void(device::Stream&)>& /*work*/) {
      return false;
    }
    /// The pending message, where one operation stands for several messages; else empty.
    [[nodiscard]] virtual std::string awaited() const { return {}; }
  };

  Request() = default;
  /// `activity`: of this rank, or null.
  Request(std::unique_ptr<Operation> operation, std::string what, Timeout timeout,
          Activity* activity = nullptr)
      : operation_(std::move(operation)),
        what_(std::move(what)),
        timeout_(timeout),
        activity_(activity) {}

  /// Makes progress; true once complete, and for an empty request.
  bool test();
  /// Blocks until complete; returns immediately for an empty request.
  /// Throws: Error(kPeer) where the timeout expires or the transport fails; the text names the
  /// operation and the peer.
  void wait();
  /// Has `work` enqueue more on the stream that carries the message, after it; the request then
  /// completes with that work. Such requests of one group complete in the order of their start: to
  /// wait for the last is to wait for all, and the others may be destroyed. Returns false, and does
  /// not call `work`, where the message has no stream of its own.
  [[nodiscard]] bool follow(const std::function<void(device::Stream&)>& work) {
    return operation_ != nullptr && operation_->follow(work);
  }
  [[nodiscard]] bool pending() const { return operation_ != nullptr; }
  /// What wait() waits for, as in "receive from rank 1 of the data group (this rank is 0 there):
  /// gradient slice".
  [[nodiscard]] std::string awaited() const;
  /// Moves the operation out, into the request of another group; null for an empty request.
  [[nodiscard]] std::unique_ptr<Operation> release() { return std::move(operation_); }

 private:
  std::unique_ptr<Operation> operation_;
  std::string what_;
  Timeout timeout_;
  Activity* activity_ = nullptr;
};

/// One send and one receive of an exchange.
struct Outgoing {
  ConstTensorView payload;
  std::int64_t peer = 0;
};
struct Incoming {
  TensorView payload;
  std::int64_t peer = 0;
};

/// The messages of one tag from one rank of a group to another.
struct Route {
  std::int64_t from = 0;
  std::int64_t to = 0;
  Tag tag = Tag::kActivation;

  friend bool operator==(const Route&, const Route&) = default;
};

/// A group of ranks: messages and collectives. Every rank of the group makes the same collective
/// calls in the same order (design law 3). Payloads are tensors in host memory, with MPI at most
/// 2 GiB per message; other transports also take device memory.
///
/// A payload in device memory is read and written in the order of the compute stream: after the
/// work enqueued before the call, and before the work enqueued after wait() or a successful test().
/// The host waits for neither. A collective that returns no request is ordered as if waited for
/// immediately. The payloads of one call are all on one device or all on the host.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] std::int64_t rank() const { return rank_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// For error texts, as in "data group".
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Timeout timeout() const { return timeout_; }
  void set_timeout(Timeout timeout) { timeout_ = timeout; }
  /// The axis of the grid that the group lies along, under which its messages are accounted for.
  [[nodiscard]] grid::Axis axis() const { return axis_; }
  void set_axis(grid::Axis axis) { axis_ = axis; }
  /// What this rank does, for a watchdog; null where nobody watches.
  [[nodiscard]] Activity* activity() const { return activity_; }
  void set_activity(Activity* activity) { activity_ = activity; }
  void enter(Phase phase) {
    if (activity_ != nullptr) {
      activity_->enter(phase);
    }
  }

  /// Starts a send to `peer`. Messages of one tag between two ranks arrive in the order sent.
  [[nodiscard]] Request send(ConstTensorView payload, std::int64_t peer, Tag tag);
  /// Posts a receive of exactly the payload's size.
  [[nodiscard]] Request receive(TensorView payload, std::int64_t peer, Tag tag);
  /// Starts several messages as one request: receives first, then sends, each in the given order.
  /// Pre: the participating ranks call it in the same order, and every receive has a matching send
  /// in the same call. A rank with nothing to send or receive may skip the call.
  [[nodiscard]] Request exchange(std::span<const Outgoing> sends,
                                 std::span<const Incoming> receives, Tag tag);

  /// Sets up send() and receive() of device memory; host memory needs no setup. A rank waits for
  /// the receives of a route in the order in which it posts them.
  /// Communication: collective over the group; all ranks list the same routes in the same order.
  virtual void open_routes(std::span<const Route> /*routes*/) {}

  /// Connects the ranks for exchange() of device memory and, with Summation::kLibrary, for sums;
  /// without it the first such call blocks the host until all ranks of the group have made it. Host
  /// memory needs no setup. Communication: collective over the group.
  virtual void connect(Summation /*sums*/) {}

  /// Returns once every rank of the group has entered and has completed its messages in device
  /// memory.
  virtual void barrier() = 0;
  /// Copies root's payload to every rank.
  virtual void broadcast(TensorView payload, std::int64_t root) = 0;
  /// Gathers equal payloads of all ranks, in rank order.
  /// Shapes: all.bytes() == size() * mine.bytes().
  virtual void all_gather(ConstTensorView mine, TensorView all) = 0;
  /// Sums the tensors of all ranks in place, float32 or float64, in the library's order: the bits
  /// of the sums depend on the number of ranks.
  virtual void all_reduce(TensorView sum) = 0;
  /// Starts a sum of the tensors of all ranks, float32 or float64, in the library's order. On
  /// completion, elements slices[rank()] of each rank's tensor hold the sums and the others are
  /// unchanged. Allocates a buffer of this rank's slice until then. Pre: slices are consecutive and
  /// cover the tensor.
  [[nodiscard]] Request reduce_scatter(TensorView tensor, std::span<const grid::Range> slices);
  /// The communicator of `members` (ranks of this group, in order), of which this rank is one.
  /// Communication: collective over this group; the groups of one call are disjoint.
  [[nodiscard]] virtual std::unique_ptr<Communicator> subgroup(
      std::span<const std::int64_t> members, std::string name) = 0;

  /// Memory of so many words on each rank, zeros at first, that all ranks of the group reach.
  /// Communication: collective over the group, as is Window::close(). Throws: std::logic_error
  /// where the transport has none.
  [[nodiscard]] virtual std::unique_ptr<Window> make_window(std::int64_t words);

  /// Gathers texts of any length, in rank order.
  [[nodiscard]] std::vector<std::string> all_gather_texts(const std::string& mine);

 protected:
  Communicator(std::int64_t rank, std::int64_t size, std::string name)
      : rank_(rank), size_(size), name_(std::move(name)) {}

  virtual std::unique_ptr<Request::Operation> begin_send(ConstTensorView payload, std::int64_t peer,
                                                         Tag tag) = 0;
  virtual std::unique_ptr<Request::Operation> begin_receive(TensorView payload, std::int64_t peer,
                                                            Tag tag) = 0;
  virtual std::unique_ptr<Request::Operation> begin_reduce_scatter(
      TensorView tensor, std::span<const grid::Range> slices) = 0;
  /// The default starts message by message; NCCL overrides it with one group call.
  virtual std::unique_ptr<Request::Operation> begin_exchange(std::span<const Outgoing> sends,
                                                             std::span<const Incoming> receives,
                                                             Tag tag);
  /// As in "complete the barrier with all ranks of the data group".
  [[nodiscard]] std::string describe_collective(std::string_view what) const;
  /// As in "receive from rank 1 of the data group (this rank is 0 there): gradient slice".
  [[nodiscard]] std::string describe(std::string_view verb, std::int64_t peer, Tag tag) const;

 private:
  /// Throws std::logic_error unless `peer` is another rank; `what` is "to" or "from".
  void require_peer(std::string_view what, std::int64_t peer) const;

  std::int64_t rank_;
  std::int64_t size_;
  std::string name_;
  Timeout timeout_;
  grid::Axis axis_ = grid::Axis::kData;
  Activity* activity_ = nullptr;
};

/// A tensor view of host memory, to send or receive.
template <typename T>
[[nodiscard]] auto payload_of(std::span<T> elements) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return BasicTensorView<Byte>(reinterpret_cast<Byte*>(elements.data()),
                               Shape{static_cast<std::int64_t>(elements.size() * sizeof(T))},
                               DType::kUint8);
}

}  // namespace strata::comm
