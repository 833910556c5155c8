#include "strata/comm/lone_rank.hpp"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "strata/core/error.hpp"

namespace strata::comm {
namespace {

class LoneWindow final : public Window {
 public:
  explicit LoneWindow(std::int64_t words) : Window({}), memory_(static_cast<std::size_t>(words)) {
    set_own(memory_);
  }

  void get(std::int64_t /*rank*/, std::int64_t first, std::span<Word> into) override {
    read_own(first, into);
  }
  void put(std::int64_t /*rank*/, std::int64_t first, std::span<const Word> words) override {
    write_own(first, words);
  }
  Word fetch_add(std::int64_t /*rank*/, std::int64_t word, Word summand) override {
    return std::atomic_ref(memory_[static_cast<std::size_t>(word)]).fetch_add(summand);
  }
  void close() override {}

 private:
  std::vector<Word> memory_;
};

class Complete final : public Request::Operation {
 public:
  bool test() override { return true; }
};

}  // namespace

void LoneRank::all_gather(ConstTensorView mine, TensorView all) {
  require(all.bytes() == mine.bytes(), "{} bytes gathered from one rank with {}", all.bytes(),
          mine.bytes());
  std::copy_n(mine.raw(), mine.bytes(), all.raw());
}

std::unique_ptr<Window> LoneRank::make_window(std::int64_t words) {
  return std::make_unique<LoneWindow>(words);
}

std::unique_ptr<Communicator> LoneRank::subgroup(std::span<const std::int64_t> /*members*/,
                                                 std::string name) {
  auto group = std::make_unique<LoneRank>(std::move(name));
  group->set_activity(activity());
  group->set_timeout(timeout());
  return group;
}

std::unique_ptr<Request::Operation> LoneRank::begin_send(ConstTensorView /*payload*/,
                                                         std::int64_t /*peer*/, Tag /*tag*/) {
  return nullptr;
}

std::unique_ptr<Request::Operation> LoneRank::begin_receive(TensorView /*payload*/,
                                                            std::int64_t /*peer*/, Tag /*tag*/) {
  return nullptr;
}

std::unique_ptr<Request::Operation> LoneRank::begin_reduce_scatter(
    TensorView /*tensor*/, std::span<const grid::Range> /*slices*/) {
  return std::make_unique<Complete>();
}

}  // namespace strata::comm
