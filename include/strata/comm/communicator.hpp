#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/comm/summation.hpp"
#include "strata/core/tensor.hpp"
#include "strata/grid/grid.hpp"

namespace strata::comm {

/// What a message is for; part of its match, so that unlike messages never meet.
enum class Tag : int { kSetup = 1, kActivation, kGradient, kReduce, kGather };

/// How long a rank waits for a peer before it gives the peer up.
struct Timeout {
  double seconds = 300.0;
};

/// A message in flight; the memory it reads or writes must stay until it is done. Destroying an
/// unfinished one is a logic error of the caller except while an exception unwinds.
class Request {
 public:
  /// One operation of a communicator's kind.
  class Operation {
   public:
    Operation() = default;
    virtual ~Operation() = default;
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;
    /// Makes progress; true once done.
    virtual bool test() = 0;
    /// What is still waited for, where one operation stands for several messages; else empty.
    [[nodiscard]] virtual std::string awaited() const { return {}; }
  };

  Request() = default;
  Request(std::unique_ptr<Operation> operation, std::string what, Timeout timeout)
      : operation_(std::move(operation)), what_(std::move(what)), timeout_(timeout) {}

  /// Makes progress; true once done, and for an empty request.
  bool test();
  /// Returns once done, at once for an empty request.
  /// Throws: Error(kPeer) where timeout runs out or the transport fails; the text names the
  /// operation and the peer.
  void wait();
  [[nodiscard]] bool pending() const { return operation_ != nullptr; }
  /// What wait() waits for, as in "receive from rank 1 of the data group (as its rank 0): gradient
  /// slice".
  [[nodiscard]] std::string awaited() const;
  /// Gives up the operation, for a request of another group; null for an empty request.
  [[nodiscard]] std::unique_ptr<Operation> release() { return std::move(operation_); }

 private:
  std::unique_ptr<Operation> operation_;
  std::string what_;
  Timeout timeout_;
};

/// A message of an exchange to another rank, and one from another.
struct Outgoing {
  ConstTensorView payload;
  std::int64_t peer = 0;
};
struct Incoming {
  TensorView payload;
  std::int64_t peer = 0;
};

/// One direction of messages of one tag between two ranks of a group.
struct Route {
  std::int64_t from = 0;
  std::int64_t to = 0;
  Tag tag = Tag::kActivation;

  friend bool operator==(const Route&, const Route&) = default;
};

/// A group of ranks that exchange messages. Every rank of the group makes the same collective calls
/// in the same order (design law 3). Payloads are tensors in host memory, for the MPI kind at most
/// 2 GiB a message; other kinds take device memory too.
///
/// A payload in device memory is read and written in the order of the kind's compute stream: after
/// the work that is on it at the call, and before the work that is put on it after wait(), or after
/// a test() that says done; the host waits for neither. A collective without a request is ordered
/// like one that is waited for at once. The payloads of one call are all on one device or all on
/// the host.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] std::int64_t rank() const { return rank_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// For messages to people, as in "data group".
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Timeout timeout() const { return timeout_; }
  void set_timeout(Timeout timeout) { timeout_ = timeout; }

  /// Begins a message to `peer`. Messages of one tag between two ranks arrive in the order of their
  /// sends.
  [[nodiscard]] Request send(ConstTensorView payload, std::int64_t peer, Tag tag);
  /// Begins to receive a message of exactly the payload's size.
  [[nodiscard]] Request receive(TensorView payload, std::int64_t peer, Tag tag);
  /// Begins several messages as one request: receives first, then sends, each in the order given.
  /// Pre: the ranks of the group that take part call it in one order (where there is nothing for a
  /// rank to send or receive, it may leave a call out), and send in it all that others receive.
  [[nodiscard]] Request exchange(std::span<const Outgoing> sends,
                                 std::span<const Incoming> receives, Tag tag);

  /// Makes ready what send() and receive() of device memory need; between host memory they need
  /// nothing. A rank waits for the receives of a route in the order in which it posts them.
  /// Communication: collective over the group; all ranks list the same routes in the same order.
  virtual void open_routes(std::span<const Route> /*routes*/) {}

  /// Makes ready what exchange() of device memory needs, and with Summation::kLibrary sums; else
  /// the first of them waits on the host for all ranks of the group. Between host memory they need
  /// nothing. Communication: collective over the group.
  virtual void connect(Summation /*sums*/) {}

  /// Returns when every rank of the group has called and its messages in device memory are done.
  virtual void barrier() = 0;
  /// Copies root's payload to every rank.
  virtual void broadcast(TensorView payload, std::int64_t root) = 0;
  /// Gathers equal payloads of all ranks, in rank order.
  /// Shapes: all.bytes() == size() * mine.bytes().
  virtual void all_gather(ConstTensorView mine, TensorView all) = 0;
  /// Adds the tensors of all ranks in place, float32 or float64, in whatever order the kind's
  /// library does: the bits of the sums depend on the number of ranks.
  virtual void all_reduce(TensorView sum) = 0;
  /// Begins to add the tensors of all ranks, float32 or float64; once done, elements slices[rank()]
  /// of each rank's tensor hold the sums, in the library's order, and its others are as they were.
  /// Takes memory of the own slice's size until it is done. Pre: slices lie one after the other and
  /// cover the tensor.
  [[nodiscard]] Request reduce_scatter(TensorView tensor, std::span<const grid::Range> slices);
  /// The communicator of `members` (ranks of this group, in order), of which this rank is one.
  /// Communication: collective over this group; the groups asked for in one call are disjoint.
  [[nodiscard]] virtual std::unique_ptr<Communicator> subgroup(
      std::span<const std::int64_t> members, std::string name) = 0;

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
  /// Message by message; a kind whose library takes them as one does so.
  virtual std::unique_ptr<Request::Operation> begin_exchange(std::span<const Outgoing> sends,
                                                             std::span<const Incoming> receives,
                                                             Tag tag);
  /// As in "get through the barrier with all ranks of the data group".
  [[nodiscard]] std::string describe_collective(std::string_view what) const;
  /// As in "receive from rank 1 of the data group (as its rank 0): gradient slice".
  [[nodiscard]] std::string describe(std::string_view verb, std::int64_t peer, Tag tag) const;

 private:
  std::int64_t rank_;
  std::int64_t size_;
  std::string name_;
  Timeout timeout_;
};

/// A tensor view over `elements` of host memory, to send or receive them.
template <typename T>
[[nodiscard]] auto payload_of(std::span<T> elements) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return BasicTensorView<Byte>(reinterpret_cast<Byte*>(elements.data()),
                               Shape{static_cast<std::int64_t>(elements.size() * sizeof(T))},
                               DType::kUint8);
}

}  // namespace strata::comm

namespace strata {
template <>
struct EnumNames<comm::Tag> {
  static constexpr std::array<std::pair<comm::Tag, std::string_view>, 5> kTable{
      {{comm::Tag::kSetup, "set-up message"},
       {comm::Tag::kActivation, "activation"},
       {comm::Tag::kGradient, "gradient"},
       {comm::Tag::kReduce, "gradient slice"},
       {comm::Tag::kGather, "weight slice"}}};
};
}  // namespace strata
