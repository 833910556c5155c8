#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "strata/comm/communicator.hpp"

namespace strata::comm {

/// The only rank of its groups: a world without MPI, for host memory. Collectives copy or do
/// nothing, and there is no peer to send to.
class LoneRank final : public Communicator {
 public:
  explicit LoneRank(std::string name) : Communicator(0, 1, std::move(name)) {}

  void barrier() override {}
  void broadcast(TensorView /*payload*/, std::int64_t /*root*/) override {}
  void all_gather(ConstTensorView mine, TensorView all) override;
  void all_reduce(TensorView /*sum*/) override {}
  [[nodiscard]] std::unique_ptr<Window> make_window(std::int64_t words) override;
  [[nodiscard]] std::unique_ptr<Communicator> subgroup(std::span<const std::int64_t> members,
                                                       std::string name) override;

 private:
  std::unique_ptr<Request::Operation> begin_send(ConstTensorView payload, std::int64_t peer,
                                                 Tag tag) override;
  std::unique_ptr<Request::Operation> begin_receive(TensorView payload, std::int64_t peer,
                                                    Tag tag) override;
  std::unique_ptr<Request::Operation> begin_reduce_scatter(
      TensorView tensor, std::span<const grid::Range> slices) override;
};

}  // namespace strata::comm
