#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "strata/comm/communicator.hpp"
#include "strata/comm/trace.hpp"

namespace strata::nn::test {

/// Passes everything on to another communicator and counts what this rank sends.
class CountingCommunicator final : public comm::Communicator {
 public:
  explicit CountingCommunicator(comm::Communicator& inner)
      : Communicator(inner.rank(), inner.size(), inner.name()), inner_(inner) {}

  void barrier() override { inner_.barrier(); }
  void broadcast(TensorView payload, std::int64_t root) override {
    inner_.broadcast(payload, root);
  }
  void all_gather(ConstTensorView mine, TensorView all) override {
    count(comm::Tag::kGather, size() - 1, mine.bytes());
    inner_.all_gather(mine, all);
  }
  void all_reduce(TensorView sum) override { inner_.all_reduce(sum); }
  std::unique_ptr<Communicator> subgroup(std::span<const std::int64_t> members,
                                         std::string name) override {
    return inner_.subgroup(members, std::move(name));
  }

  /// Called before this rank first looks whether a receive of this tag is complete.
  void observe_waits(comm::Tag tag, std::function<void()> observer) {
    observed_ = tag;
    observer_ = std::move(observer);
  }

  [[nodiscard]] comm::TracedMessages sent() const {
    comm::TracedMessages all;
    for (const auto& [tag, traffic] : sent_) {
      all += traffic;
    }
    return all;
  }
  [[nodiscard]] comm::TracedMessages sent(comm::Tag tag) const {
    const auto found = sent_.find(tag);
    return found == sent_.end() ? comm::TracedMessages() : found->second;
  }

 private:
  class Passed final : public comm::Request::Operation {
   public:
    explicit Passed(comm::Request request, std::function<void()> before = {})
        : request_(std::move(request)), before_(std::move(before)) {}
    bool test() override {
      if (const std::function<void()> before = std::exchange(before_, nullptr)) {
        before();
      }
      return request_.test();
    }

   private:
    comm::Request request_;
    std::function<void()> before_;
  };

  void count(comm::Tag tag, std::int64_t messages, std::int64_t bytes) {
    sent_[tag].messages += messages;
    sent_[tag].bytes += static_cast<double>(messages * bytes);
  }

  std::unique_ptr<comm::Request::Operation> begin_send(ConstTensorView payload, std::int64_t peer,
                                                       comm::Tag tag) override {
    count(tag, 1, payload.bytes());
    return std::make_unique<Passed>(inner_.send(payload, peer, tag));
  }
  std::unique_ptr<comm::Request::Operation> begin_receive(TensorView payload, std::int64_t peer,
                                                          comm::Tag tag) override {
    return std::make_unique<Passed>(inner_.receive(payload, peer, tag),
                                    tag == observed_ ? observer_ : nullptr);
  }
  std::unique_ptr<comm::Request::Operation> begin_reduce_scatter(
      TensorView tensor, std::span<const grid::Range> slices) override {
    return std::make_unique<Passed>(inner_.reduce_scatter(tensor, slices));
  }

  comm::Communicator& inner_;
  std::map<comm::Tag, comm::TracedMessages> sent_;
  comm::Tag observed_ = comm::Tag::kSetup;
  std::function<void()> observer_;
};

}  // namespace strata::nn::test
