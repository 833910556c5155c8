#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "strata/comm/communicator.hpp"
#include "strata/device/stream.hpp"

namespace strata::comm {

/// The ranks of a group under other numbers: rank r of the group is rank (r + shift) mod size here.
/// Sends the group's messages; opens no connections of its own.
class RotatedGroup final : public Communicator {
 public:
  /// `stream`: the compute stream of payloads in device memory. Pre: shift >= 0; no message of the
  /// group is in flight; `group` and `stream` outlive the object.
  RotatedGroup(Communicator& group, std::int64_t shift, device::Stream& stream);

  void barrier() override { group_.barrier(); }
  void broadcast(TensorView payload, std::int64_t root) override {
    group_.broadcast(payload, in_group(root));
  }
  void all_gather(ConstTensorView mine, TensorView all) override;
  void all_reduce(TensorView sum) override { group_.all_reduce(sum); }
  std::unique_ptr<Communicator> subgroup(std::span<const std::int64_t> members,
                                         std::string name) override;

 private:
  std::unique_ptr<Request::Operation> begin_send(ConstTensorView payload, std::int64_t peer,
                                                 Tag tag) override {
    return group_.send(payload, in_group(peer), tag).release();
  }
  std::unique_ptr<Request::Operation> begin_receive(TensorView payload, std::int64_t peer,
                                                    Tag tag) override {
    return group_.receive(payload, in_group(peer), tag).release();
  }
  std::unique_ptr<Request::Operation> begin_exchange(std::span<const Outgoing> sends,
                                                     std::span<const Incoming> receives,
                                                     Tag tag) override;
  /// Throws: std::logic_error, because the slices would not be consecutive in the group.
  std::unique_ptr<Request::Operation> begin_reduce_scatter(
      TensorView tensor, std::span<const grid::Range> slices) override;

  [[nodiscard]] std::int64_t in_group(std::int64_t rank) const {
    return (rank + size() - shift_) % size();
  }

  Communicator& group_;
  std::int64_t shift_;
  device::Stream& stream_;
};

}  // namespace strata::comm
