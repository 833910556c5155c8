#include "in_process.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>
#include <vector>

#include "strata/core/error.hpp"

namespace strata::comm {
namespace {

using Message = std::vector<std::byte>;
/// Group, sender and receiver (ranks of the group), tag.
using Address = std::tuple<std::uint64_t, std::int64_t, std::int64_t, int>;

/// The messages to one rank, which alone waits here.
class Mailbox {
 public:
  enum class Wait { kNo, kBriefly };

  void put(const Address& address, Message message) {
    const std::lock_guard lock(mutex_);
    Box& box = boxes_[address];
    box.messages.emplace(box.sent++, std::move(message));
    arrived_.notify_one();
  }

  /// The ticket of a receive posted now. Messages match receives in the order of posting.
  std::int64_t post_receive(const Address& address) {
    const std::lock_guard lock(mutex_);
    return boxes_[address].posted++;
  }

  /// A wait ends with any message to this rank, because the caller may wait for several.
  bool take(const Address& address, std::int64_t ticket, Wait wait, Message& message) {
    std::unique_lock lock(mutex_);
    Box& box = boxes_[address];
    if (wait == Wait::kBriefly && !box.messages.contains(ticket) && !closed_) {
      // Bounded, so that the caller can check its timeout.
      arrived_.wait_for(lock, std::chrono::milliseconds(1));
    }
    const auto found = box.messages.find(ticket);
    if (found == box.messages.end()) {
      if (closed_) {
        fail(ExitCode::kPeer, "another rank failed");
      }
      return false;
    }
    message = std::move(found->second);
    box.messages.erase(found);
    return true;
  }

  /// Ends every wait for a message that has not arrived.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    arrived_.notify_one();
  }

 private:
  struct Box {
    std::map<std::int64_t, Message> messages;
    std::int64_t sent = 0;
    std::int64_t posted = 0;
  };

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<Address, Box> boxes_;
  bool closed_ = false;
};

/// The mailboxes of all ranks of the world, and the first failure.
class Exchange {
 public:
  explicit Exchange(std::int64_t ranks) : mailboxes_(static_cast<std::size_t>(ranks)) {}

  Mailbox& of(std::int64_t rank) { return mailboxes_[static_cast<std::size_t>(rank)]; }

  void abort(std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      if (error_) {
        return;
      }
      error_ = std::move(error);
    }
    for (Mailbox& mailbox : mailboxes_) {
      mailbox.close();
    }
  }

  /// Pre: the ranks have ended.
  void rethrow() const {
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

 private:
  std::vector<Mailbox> mailboxes_;
  std::mutex mutex_;
  std::exception_ptr error_;
};

/// A send completes immediately: the message is a copy.
class DoneOperation final : public Request::Operation {
 public:
  bool test() override { return true; }
};

class ReceiveOperation final : public Request::Operation {
 public:
  ReceiveOperation(Mailbox& mailbox, const Address& address, TensorView payload)
      : mailbox_(mailbox),
        address_(address),
        ticket_(mailbox.post_receive(address_)),
        payload_(payload) {}

  bool test() override {
    // The first tests may come between computations, many tests in a row are a wait.
    constexpr int kPolls = 16;
    const bool waits = ++tests_ > kPolls;
    Message message;
    if (!mailbox_.take(address_, ticket_, waits ? Mailbox::Wait::kBriefly : Mailbox::Wait::kNo,
                       message)) {
      return false;
    }
    require(static_cast<std::int64_t>(message.size()) == payload_.bytes(),
            "a message of {} bytes where {} were expected", message.size(), payload_.bytes());
    std::copy(message.begin(), message.end(), payload_.raw());
    return true;
  }

 private:
  Mailbox& mailbox_;
  Address address_;
  std::int64_t ticket_;
  TensorView payload_;
  int tests_ = 0;
};

/// Sums the slices that the ranks have sent, in order of ranks.
class ReduceScatterOperation final : public Request::Operation {
 public:
  struct Part {
    std::unique_ptr<Request::Operation> receive;  ///< null for this rank's own part
    std::vector<std::byte> memory;
  };

  ReduceScatterOperation(TensorView sum, std::vector<Part> parts)
      : sum_(sum), parts_(std::move(parts)) {}

  bool test() override {
    for (; received_ < parts_.size(); ++received_) {
      const Part& part = parts_[received_];
      if (part.receive != nullptr && !part.receive->test()) {
        return false;
      }
    }
    with_floating(sum_.dtype(), [&]<typename T>(T) {
      const std::span<T> sum = sum_.host<T>();
      std::fill(sum.begin(), sum.end(), T{0});
      for (Part& part : parts_) {
        const TensorView view(part.memory.data(), sum_.shape(), sum_.dtype());
        const std::span<T> values = view.host<T>();
        for (std::size_t i = 0; i < sum.size(); ++i) {
          sum[i] += values[i];
        }
      }
    });
    return true;
  }

 private:
  TensorView sum_;
  std::vector<Part> parts_;
  std::size_t received_ = 0;
};

/// Words of threads of this process, at addresses that all know.
class InProcessWindow final : public Window {
 public:
  InProcessWindow(Communicator& group, std::int64_t words)
      : Window({}), group_(group), memory_(static_cast<std::size_t>(words)) {
    set_own(memory_);
    const auto mine = reinterpret_cast<std::uintptr_t>(memory_.data());
    addresses_.resize(static_cast<std::size_t>(group.size()));
    group.all_gather(payload_of(std::span(&mine, 1)), payload_of(std::span(addresses_)));
  }

  void get(std::int64_t rank, std::int64_t first, std::span<Word> into) override {
    copy_words(at(rank, first), into);
  }
  // Writes twice, as memcpy may, and others have time to see what was written first.
  void put(std::int64_t rank, std::int64_t first, std::span<const Word> words) override {
    for (const bool again : {false, true}) {
      Word* to = at(rank, first);
      for (const Word word : words) {
        std::atomic_ref(*to++).store(word, std::memory_order_release);
      }
      if (!again && words.size() == 1) {
        std::this_thread::sleep_for(std::chrono::microseconds(300));
      }
    }
  }
  Word fetch_add(std::int64_t rank, std::int64_t word, Word summand) override {
    return std::atomic_ref(*at(rank, word)).fetch_add(summand);
  }
  void close() override { group_.barrier(); }

 private:
  [[nodiscard]] Word* at(std::int64_t rank, std::int64_t word) const {
    return reinterpret_cast<Word*>(addresses_[static_cast<std::size_t>(rank)]) + word;
  }

  Communicator& group_;
  std::vector<Word> memory_;
  std::vector<std::uintptr_t> addresses_;
};

class InProcessCommunicator final : public Communicator {
 public:
  /// `members`: their ranks of the world.
  InProcessCommunicator(Exchange& exchange, std::uint64_t group, std::int64_t rank,
                        std::vector<std::int64_t> members, std::string name)
      : Communicator(rank, std::ssize(members), std::move(name)),
        exchange_(exchange),
        group_(group),
        members_(std::move(members)) {}

  void barrier() override {
    std::vector<std::byte> all(static_cast<std::size_t>(size()));
    const std::byte mine{};
    all_gather(payload_of(std::span(&mine, 1)), payload_of(std::span(all)));
  }

  void broadcast(TensorView payload, std::int64_t root) override {
    if (rank() != root) {
      receive(payload, root, Tag::kSetup).wait();
      return;
    }
    for (std::int64_t peer = 0; peer < size(); ++peer) {
      if (peer != root) {
        send(payload, peer, Tag::kSetup).wait();
      }
    }
  }

  void all_gather(ConstTensorView mine, TensorView all) override {
    require(all.bytes() == size() * mine.bytes(), "{} bytes gathered from {} ranks with {} each",
            all.bytes(), size(), mine.bytes());
    for (std::int64_t peer = 0; peer < size(); ++peer) {
      if (peer != rank()) {
        send(mine, peer, Tag::kSetup).wait();
      }
    }
    const TensorView bytes(all.raw(), Shape{all.bytes()}, DType::kUint8);
    for (std::int64_t peer = 0; peer < size(); ++peer) {
      const TensorView slot = bytes.flat_slice(peer * mine.bytes(), mine.bytes());
      if (peer == rank()) {
        std::memcpy(slot.raw(), mine.raw(), static_cast<std::size_t>(mine.bytes()));
      } else {
        receive(slot, peer, Tag::kSetup).wait();
      }
    }
  }

  void all_reduce(TensorView sum) override {
    std::vector<std::byte> memory(static_cast<std::size_t>(size() * sum.bytes()));
    const TensorView all(memory.data(), Shape{size() * sum.count()}, sum.dtype());
    all_gather(sum, all);
    with_floating(sum.dtype(), [&]<typename T>(T) {
      const std::span<T> sums = sum.host<T>();
      const std::span<const T> values = all.host<T>();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i] = values[i];
        for (std::size_t at = i + sums.size(); at < values.size(); at += sums.size()) {
          sums[i] += values[at];
        }
      }
    });
  }

  std::unique_ptr<Window> make_window(std::int64_t words) override {
    return std::make_unique<InProcessWindow>(*this, words);
  }

  std::unique_ptr<Communicator> subgroup(std::span<const std::int64_t> members,
                                         std::string name) override {
    const std::int64_t index = std::ranges::find(members, rank()) - members.begin();
    std::vector<std::int64_t> of_world;
    for (const std::int64_t member : members) {
      of_world.push_back(members_[static_cast<std::size_t>(member)]);
    }
    // All members have made the same number of calls, so they agree on an id that no other group
    // has.
    ++subgroups_;
    const std::uint64_t id =
        (group_ * 64 + subgroups_) * 4096 + static_cast<std::uint64_t>(members.front()) + 1;
    auto group = std::make_unique<InProcessCommunicator>(exchange_, id, index, std::move(of_world),
                                                         std::move(name));
    group->set_timeout(timeout());
    return group;
  }

 protected:
  std::unique_ptr<Request::Operation> begin_send(ConstTensorView payload, std::int64_t peer,
                                                 Tag tag) override {
    mailbox_of(peer).put({group_, rank(), peer, static_cast<int>(tag)},
                         Message(payload.raw(), payload.raw() + payload.bytes()));
    return std::make_unique<DoneOperation>();
  }

  std::unique_ptr<Request::Operation> begin_receive(TensorView payload, std::int64_t peer,
                                                    Tag tag) override {
    return std::make_unique<ReceiveOperation>(
        mailbox_of(rank()), Address{group_, peer, rank(), static_cast<int>(tag)}, payload);
  }

  std::unique_ptr<Request::Operation> begin_reduce_scatter(
      TensorView tensor, std::span<const grid::Range> slices) override {
    const auto slice_of = [&](std::int64_t r) {
      const grid::Range& slice = slices[static_cast<std::size_t>(r)];
      return tensor.flat_slice(slice.begin, slice.count());
    };
    const TensorView own = slice_of(rank());
    std::vector<ReduceScatterOperation::Part> parts;
    for (std::int64_t peer = 0; peer < size(); ++peer) {
      auto& part = parts.emplace_back();
      part.memory.resize(static_cast<std::size_t>(own.bytes()));
      if (peer == rank()) {
        part.memory.assign(own.raw(), own.raw() + own.bytes());
        continue;
      }
      begin_send(slice_of(peer), peer, Tag::kReduce)->test();
      part.receive = begin_receive(TensorView(part.memory.data(), own.shape(), own.dtype()), peer,
                                   Tag::kReduce);
    }
    return std::make_unique<ReduceScatterOperation>(own, std::move(parts));
  }

 private:
  [[nodiscard]] Mailbox& mailbox_of(std::int64_t member) const {
    return exchange_.of(members_[static_cast<std::size_t>(member)]);
  }

  Exchange& exchange_;
  std::uint64_t group_;
  std::vector<std::int64_t> members_;
  std::uint64_t subgroups_ = 0;
};

}  // namespace

void run_in_process_ranks(std::int64_t ranks,
                          const std::function<void(Communicator& world)>& body) {
  Exchange exchange(ranks);
  std::vector<std::int64_t> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&exchange, &body, &members, rank] {
      try {
        InProcessCommunicator world(exchange, 0, rank, members, "world");
        world.set_timeout({.seconds = 60.0});
        body(world);
      } catch (...) {
        exchange.abort(std::current_exception());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  exchange.rethrow();
}

}  // namespace strata::comm
