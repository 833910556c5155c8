#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strata/comm/communicator.hpp"

namespace strata::comm {

/// A network link that a rank emulates between itself and ranks of other islands: a rate in
/// each direction and a delay of each message. All messages of the rank share it: each direction
/// carries one message after the other.
class EmulatedLink {
 public:
  /// `bytes_per_second`: of each direction; 0: without limit. Pre: both are at least 0.
  EmulatedLink(double bytes_per_second, double delay_seconds);

  /// Puts a message on the link at time `now` of now_seconds() and counts what it sends. Returns
  /// the time at which the link has carried both directions.
  double carry(std::int64_t sent_bytes, std::int64_t received_bytes, double now);

  [[nodiscard]] std::int64_t sent_bytes() const { return sent_bytes_; }
  /// The most bytes that the rank handed to the link within any one second.
  [[nodiscard]] std::int64_t peak_bytes() const { return peak_bytes_; }

 private:
  struct Handed {
    double when = 0.0;
    std::int64_t bytes = 0;
  };

  double seconds_per_byte_;
  double delay_seconds_;
  double sends_until_ = 0.0;
  double receives_until_ = 0.0;
  std::int64_t sent_bytes_ = 0;
  std::deque<Handed> last_second_;
  std::int64_t bytes_in_last_second_ = 0;
  std::int64_t peak_bytes_ = 0;
};

/// The ranks of a group, some of which are across an emulated link. A request completes when its
/// messages have arrived and the link would have carried them, counted from its start on this rank.
/// Payloads are in host memory.
class PacedGroup final : public Communicator {
 public:
  /// `across`: of each rank of the group, whether the link is between it and this rank. `link`
  /// outlives the object. Pre: across.size() == group->size(); no message of the group is in
  /// flight.
  PacedGroup(std::unique_ptr<Communicator> group, EmulatedLink& link, std::vector<bool> across);

  void open_routes(std::span<const Route> routes) override { group_->open_routes(routes); }
  void connect(Summation sums) override { group_->connect(sums); }
  void barrier() override;
  void broadcast(TensorView payload, std::int64_t root) override;
  void all_gather(ConstTensorView mine, TensorView all) override;
  void all_reduce(TensorView sum) override;
  std::unique_ptr<Communicator> subgroup(std::span<const std::int64_t> members,
                                         std::string name) override;

 private:
  class Paced;

  std::unique_ptr<Request::Operation> begin_send(ConstTensorView payload, std::int64_t peer,
                                                 Tag tag) override;
  std::unique_ptr<Request::Operation> begin_receive(TensorView payload, std::int64_t peer,
                                                    Tag tag) override;
  std::unique_ptr<Request::Operation> begin_exchange(std::span<const Outgoing> sends,
                                                     std::span<const Incoming> receives,
                                                     Tag tag) override;
  /// Counted as an exchange of the slices, each rank sending every other rank its own.
  std::unique_ptr<Request::Operation> begin_reduce_scatter(
      TensorView tensor, std::span<const grid::Range> slices) override;

  [[nodiscard]] bool is_across(std::int64_t rank) const {
    return across_[static_cast<std::size_t>(rank)];
  }
  /// The operation of `request`, which completes when the link has carried its bytes; without any
  /// peer across, `request`'s own.
  std::unique_ptr<Request::Operation> paced(Request request, bool crosses, std::int64_t sent_bytes,
                                            std::int64_t received_bytes);
  /// Runs a collective and waits until the link has carried it.
  template <typename Collective>
  void pace(std::string_view what, std::int64_t sent_bytes, std::int64_t received_bytes,
            const Collective& collective);

  std::unique_ptr<Communicator> group_;
  EmulatedLink& link_;
  std::vector<bool> across_;
  std::int64_t peers_across_ = 0;
};

}  // namespace strata::comm
