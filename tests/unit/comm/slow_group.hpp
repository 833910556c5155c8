#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "strata/comm/progress_engine.hpp"
#include "strata/core/clock.hpp"

namespace strata::comm::test {

/// The first of two ranks, and the engine of its transport. A gather first waits for computation,
/// then for the message; both times are measured. It gathers no data.
class SlowGroup : public Communicator, public ProgressEngine {
 public:
  explicit SlowGroup(double computing) : Communicator(0, 2, "slow group"), computing_(computing) {}

  [[nodiscard]] double message_seconds() const { return message_seconds_; }
  [[nodiscard]] double computing_seconds() const override { return computing_seconds_; }

  void barrier() override {}
  void broadcast(TensorView /*payload*/, std::int64_t /*root*/) override {}
  void all_gather(ConstTensorView /*mine*/, TensorView /*all*/) override {
    computing_seconds_ += slept(computing_);
    constexpr double kMessage = 0.01;
    message_seconds_ += slept(kMessage);
  }
  void all_reduce(TensorView /*sum*/) override {}
  std::unique_ptr<Communicator> subgroup(std::span<const std::int64_t> /*members*/,
                                         std::string /*name*/) override {
    return nullptr;
  }

 private:
  /// Sleeps for so many seconds. Returns: the measured seconds.
  static double slept(double seconds) {
    const double begin = now_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return now_seconds() - begin;
  }

  std::unique_ptr<Request::Operation> begin_send(ConstTensorView /*payload*/, std::int64_t /*peer*/,
                                                 Tag /*tag*/) override {
    return nullptr;
  }
  std::unique_ptr<Request::Operation> begin_receive(TensorView /*payload*/, std::int64_t /*peer*/,
                                                    Tag /*tag*/) override {
    return nullptr;
  }
  std::unique_ptr<Request::Operation> begin_reduce_scatter(
      TensorView /*tensor*/, std::span<const grid::Range> /*slices*/) override {
    return nullptr;
  }

  double computing_;
  double computing_seconds_ = 0.0;
  double message_seconds_ = 0.0;
};

}  // namespace strata::comm::test
