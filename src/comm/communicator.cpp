#include "strata/comm/communicator.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"

namespace strata::comm {
namespace {

/// Several messages; complete when all are.
class Messages final : public Request::Operation {
 public:
  explicit Messages(std::vector<Request> requests) : requests_(std::move(requests)) {}

  bool test() override {
    while (done_ < requests_.size() && requests_[done_].test()) {
      ++done_;
    }
    return done_ == requests_.size();
  }

  [[nodiscard]] std::string awaited() const override {
    return done_ == requests_.size() ? "" : requests_[done_].awaited();
  }

 private:
  std::vector<Request> requests_;
  std::size_t done_ = 0;
};

}  // namespace

bool Request::test() {
  if (operation_ == nullptr || operation_->test()) {
    operation_.reset();
    return true;
  }
  return false;
}

std::string Request::awaited() const {
  const std::string text = operation_ == nullptr ? "" : operation_->awaited();
  return text.empty() ? what_ : text;
}

namespace {

/// Gives the core to other processes between two tests of a message. Where a yield shows that a
/// process computes on this core, sleeps instead for a while: a process that yields to another
/// waits for a whole time slice, a process that wakes up gets the core soon. Sleeps longer in a
/// long wait, because many ranks that test often leave little of a core. `now`: the time, `waited`:
/// so long already; returns the time.
double give_way(Activity* activity, double now, double waited) {
  constexpr double kSliceSeconds = 1e-3;
  constexpr double kSleepingSeconds = 0.1;
  constexpr double kPartOfWait = 1.0 / 32.0;
  constexpr double kMostSeconds = 5e-3;
  if (activity != nullptr && now < activity->sleep_until_seconds) {
    const double seconds =
        std::max(activity->sleep_seconds, std::min(kMostSeconds, kPartOfWait * waited));
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return now_seconds();
  }
  std::this_thread::yield();
  const double after = now_seconds();
  if (activity != nullptr && after - now > kSliceSeconds) {
    activity->sleep_until_seconds = after + kSleepingSeconds;
  }
  return after;
}

}  // namespace

void Request::wait() {
  // A short spin catches messages that are about to arrive.
  constexpr int kSpins = 64;
  constexpr double kLongSeconds = 0.2;
  for (int i = 0; i < kSpins; ++i) {
    if (test()) {
      return;
    }
  }
  // A process that did not run for this long, such as one that was stopped, does not count the
  // time.
  constexpr double kGapSeconds = 1.0;
  double start = now_seconds();
  std::optional<WaitMark> noted;
  for (double now = start; !test();) {
    const double before = std::exchange(now, give_way(activity_, now, now - start));
    if (now - before > kGapSeconds) {
      start += now - before;
    }
    if (now - start > kLongSeconds && !noted) {
      noted.emplace(activity_, WaitKind::kMessage, awaited());
    }
    if (now - start > timeout_.seconds) {
      throw TimeoutError(
          ExitCode::kPeer,
          fmt::format("timed out after {:.0f} s waiting to {}; that rank or its node hangs or is "
                      "gone. Submit the job again with --run.resume=auto; run.timeout sets the "
                      "limit",
                      timeout_.seconds, awaited()));
    }
  }
}

std::string Communicator::describe(std::string_view verb, std::int64_t peer, Tag tag) const {
  const std::int64_t chunk = chunk_of(tag);
  return fmt::format("{} rank {} of the {} (this rank is {} there): {}{}", verb, peer, name_, rank_,
                     name_of(kind_of(tag)), chunk == 0 ? "" : fmt::format(" for chunk {}", chunk));
}

void Communicator::require_peer(std::string_view what, std::int64_t peer) const {
  require(peer >= 0 && peer < size_ && peer != rank_, "a message {} rank {} of {}", what, peer,
          size_);
}

Request Communicator::send(ConstTensorView payload, std::int64_t peer, Tag tag) {
  require_peer("to", peer);
  return {begin_send(payload, peer, tag), describe("send to", peer, tag), timeout_, activity_};
}

Request Communicator::receive(TensorView payload, std::int64_t peer, Tag tag) {
  require_peer("from", peer);
  return {begin_receive(payload, peer, tag), describe("receive from", peer, tag), timeout_,
          activity_};
}

Request Communicator::exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                               Tag tag) {
  if (sends.empty() && receives.empty()) {
    return {};
  }
  for (const Outgoing& message : sends) {
    require_peer("to", message.peer);
  }
  for (const Incoming& message : receives) {
    require_peer("from", message.peer);
  }
  return {begin_exchange(sends, receives, tag),
          describe_collective(fmt::format("exchange of {}s", name_of(kind_of(tag)))), timeout_,
          activity_};
}

std::unique_ptr<Request::Operation> Communicator::begin_exchange(std::span<const Outgoing> sends,
                                                                 std::span<const Incoming> receives,
                                                                 Tag tag) {
  std::vector<Request> requests;
  requests.reserve(sends.size() + receives.size());
  for (const Incoming& message : receives) {
    requests.push_back(receive(message.payload, message.peer, tag));
  }
  for (const Outgoing& message : sends) {
    requests.push_back(send(message.payload, message.peer, tag));
  }
  return std::make_unique<Messages>(std::move(requests));
}

std::string Communicator::describe_collective(std::string_view what) const {
  return fmt::format("complete the {} with all ranks of the {}", what, name_);
}

Request Communicator::reduce_scatter(TensorView tensor, std::span<const grid::Range> slices) {
  require(static_cast<std::int64_t>(slices.size()) == size_, "{} slices for {} ranks",
          slices.size(), size_);
  std::int64_t end = 0;
  for (const grid::Range& slice : slices) {
    require(slice.begin == end && slice.end >= slice.begin,
            "a slice [{}, {}) where the one before it ends at {}", slice.begin, slice.end, end);
    end = slice.end;
  }
  require(end == tensor.count(), "slices of {} elements for a tensor of {}", end, tensor.count());
  return {begin_reduce_scatter(tensor, slices), describe_collective("reduce-scatter"), timeout_,
          activity_};
}

std::unique_ptr<Window> Communicator::make_window(std::int64_t /*words*/) {
  require(false, "a window of the {}", name());
  return nullptr;
}

std::vector<std::string> Communicator::all_gather_texts(const std::string& mine) {
  // Most texts are short, and are there at once.
  struct Head {
    std::int64_t length = 0;
    std::array<char, 120> text{};
  };
  Head head{.length = std::ssize(mine)};
  std::ranges::copy(mine.substr(0, head.text.size()), head.text.begin());
  std::vector<Head> heads(static_cast<std::size_t>(size_));
  all_gather(payload_of(std::span(&std::as_const(head), 1)), payload_of(std::span(heads)));
  const auto longest =
      static_cast<std::size_t>(std::ranges::max_element(heads, {}, &Head::length)->length);
  std::string all;
  if (longest > head.text.size()) {
    std::string padded = mine;
    padded.resize(longest, '\0');
    all.resize(longest * heads.size());
    all_gather(payload_of(std::span(std::as_const(padded))), payload_of(std::span(all)));
  }
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < heads.size(); ++r) {
    const char* const text = all.empty() ? heads[r].text.data() : all.data() + r * longest;
    texts.emplace_back(text, static_cast<std::size_t>(heads[r].length));
  }
  return texts;
}

}  // namespace strata::comm
