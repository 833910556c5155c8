#pragma once

#ifdef STRATA_HAVE_NCCL

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nccl/nccl_engine.hpp"

namespace strata::comm {

class RouteReceive;

/// A route from or to this rank: a communicator of two ranks, the sender first.
struct OpenRoute {
  Route route;
  std::unique_ptr<NcclChannel> channel;
  /// Receives that are posted but not yet issued, the oldest first.
  std::deque<RouteReceive*> posted;
};

/// The NCCL communicator of `members`, ranks of `host` in order; null where they are fewer than
/// two. `name` is for errors. Communication: collective over `host`; the members of one call are
/// disjoint.
[[nodiscard]] std::unique_ptr<NcclChannel> open_channel(NcclEngine& engine, Communicator& host,
                                                        std::span<const std::int64_t> members,
                                                        int blocks, std::string name);

/// One group of ranks, over NCCL and the host's transport (strata/comm/nccl.hpp).
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, NcclEngine& engine);

  void open_routes(std::span<const Route> routes) override;
  void connect(Summation sums) override;
  void barrier() override;
  void broadcast(TensorView payload, std::int64_t root) override;
  void all_gather(ConstTensorView mine, TensorView all) override;
  void all_reduce(TensorView sum) override;
  std::unique_ptr<Window> make_window(std::int64_t words) override {
    return host_->make_window(words);
  }
  std::unique_ptr<Communicator> subgroup(std::span<const std::int64_t> members,
                                         std::string name) override;

 protected:
  std::unique_ptr<Request::Operation> begin_send(ConstTensorView payload, std::int64_t peer,
                                                 Tag tag) override;
  std::unique_ptr<Request::Operation> begin_receive(TensorView payload, std::int64_t peer,
                                                    Tag tag) override;
  std::unique_ptr<Request::Operation> begin_exchange(std::span<const Outgoing> sends,
                                                     std::span<const Incoming> receives,
                                                     Tag tag) override;
  std::unique_ptr<Request::Operation> begin_reduce_scatter(
      TensorView tensor, std::span<const grid::Range> slices) override;

 private:
  [[nodiscard]] const NcclLibrary& functions() const { return engine_.functions(); }
  /// With this group's timeout.
  [[nodiscard]] Communicator& host();
  [[nodiscard]] OpenRoute& route_of(const Route& route);
  /// Of collectives; null in a group of one. Opened at the first call: many groups have none.
  /// Communication: collective over the group, at the first call.
  [[nodiscard]] NcclChannel* channel();
  /// Issues calls on a channel, after the work enqueued on the compute stream so far.
  template <typename Calls>
  [[nodiscard]] std::unique_ptr<Request::Operation> on_channel(NcclChannel& channel,
                                                               std::string what, Awaited awaited,
                                                               const Calls& calls);
  /// Issues a collective in the order of the compute stream.
  template <typename Calls>
  void collective(std::string_view what, const Calls& calls);
  /// Opens routes that have no rank in common.
  void open_round(std::span<const Route> routes, int blocks);

  NcclEngine& engine_;
  std::unique_ptr<Communicator> host_;
  std::unique_ptr<NcclChannel> channel_;
  std::vector<std::unique_ptr<OpenRoute>> routes_;
};

}  // namespace strata::comm

#endif
