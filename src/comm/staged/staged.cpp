#include "strata/comm/staged.hpp"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/pinned_buffer.hpp"

namespace strata::comm {
namespace {

/// Pinned memory of one message.
struct StagingBuffer {
  StagingBuffer(const device::Device& device, std::int64_t bytes)
      : memory(device, bytes), free(device, 1) {}

  device::PinnedBuffer memory;
  /// Recorded after the last read of the memory.
  device::Event free;
};

/// The engine of the host's transport, and the compute stream that staged messages wait for.
class StagingEngine final : public ProgressEngine {
 public:
  StagingEngine(ProgressEngine& host, device::Stream& stream) : host_(host), stream_(stream) {}

  void progress() override { host_.progress(); }
  [[nodiscard]] double computing_seconds() const override { return computing_seconds_; }

  [[nodiscard]] device::Stream& stream() { return stream_; }
  /// Counts a wait for work on the stream.
  template <typename Wait>
  void computing(const Wait& wait) {
    const double begin = now_seconds();
    wait();
    computing_seconds_ += now_seconds() - begin;
  }

 private:
  ProgressEngine& host_;
  device::Stream& stream_;
  double computing_seconds_ = 0.0;
};

/// The staging buffers of one group, reused from message to message.
class PinnedPool {
 public:
  explicit PinnedPool(StagingEngine& engine) : engine_(engine) {}

  [[nodiscard]] StagingEngine& engine() { return engine_; }
  [[nodiscard]] device::Stream& stream() { return engine_.stream(); }

  [[nodiscard]] std::unique_ptr<StagingBuffer> take(std::int64_t bytes) {
    // Message sizes vary; a buffer serves all sizes up to its power of two.
    const auto size = static_cast<std::int64_t>(
        std::bit_ceil(static_cast<std::uint64_t>(std::max(bytes, kSmallest))));
    const auto idle = std::find_if(idle_.begin(), idle_.end(),
                                   [&](const auto& c) { return c->memory.bytes() == size; });
    if (idle == idle_.end()) {
      return std::make_unique<StagingBuffer>(stream().device(), size);
    }
    std::unique_ptr<StagingBuffer> taken = std::move(*idle);
    idle_.erase(idle);
    if (taken->free.waits_due() > 0) {
      engine_.computing([&] { taken->free.wait_on_host(); });
    }
    return taken;
  }

  /// Waits for the work on the stream.
  void wait_for_computing() {
    engine_.computing([&] { stream().synchronize(); });
  }

  void give_back(std::unique_ptr<StagingBuffer> staging) { idle_.push_back(std::move(staging)); }

 private:
  static constexpr std::int64_t kSmallest = 4096;

  StagingEngine& engine_;
  // The longest idle first.
  std::vector<std::unique_ptr<StagingBuffer>> idle_;
};

/// The host copy of a GPU tensor, in a staging buffer that returns to the pool on destruction.
class StagedTensor {
 public:
  StagedTensor(PinnedPool& pool, const ConstTensorView& tensor)
      : pool_(pool),
        staging_(pool.take(tensor.bytes())),
        view_(staging_->memory.raw(), tensor.shape(), tensor.dtype()) {}
  ~StagedTensor() { pool_.give_back(std::move(staging_)); }
  StagedTensor(const StagedTensor&) = delete;
  StagedTensor& operator=(const StagedTensor&) = delete;

  [[nodiscard]] const TensorView& host() const { return view_; }
  /// Copies the tensor from the GPU after the work on the stream so far, and waits for the copy.
  void fetch(const ConstTensorView& tensor) {
    pool_.wait_for_computing();
    device::copy_tensor(tensor, view_, pool_.stream());
    pool_.stream().synchronize();
  }
  /// Enqueues the copy of `part` to the GPU.
  void deliver(const ConstTensorView& part, const TensorView& tensor) {
    device::copy_tensor(part, tensor, pool_.stream());
    staging_->free.record(pool_.stream());
  }

 private:
  PinnedPool& pool_;
  std::unique_ptr<StagingBuffer> staging_;
  TensorView view_;
};

class StagedSend final : public Request::Operation {
 public:
  StagedSend(PinnedPool& pool, Communicator& host, const ConstTensorView& payload,
             std::int64_t peer, Tag tag)
      : staging_(pool, payload) {
    staging_.fetch(payload);
    sent_ = host.send(staging_.host(), peer, tag);
  }

  bool test() override { return sent_.test(); }

 private:
  StagedTensor staging_;
  Request sent_;
};

/// A tensor that is received or summed in host memory; `part` is then copied to the GPU.
class StagedArrival final : public Request::Operation {
 public:
  StagedArrival(std::unique_ptr<StagedTensor> staging, Request arriving,
                const ConstTensorView& part, const TensorView& target)
      : staging_(std::move(staging)),
        arriving_(std::move(arriving)),
        part_(part),
        target_(target) {}

  bool test() override {
    if (!arriving_.test()) {
      return false;
    }
    staging_->deliver(part_, target_);
    return true;
  }

 private:
  std::unique_ptr<StagedTensor> staging_;
  Request arriving_;
  ConstTensorView part_;
  TensorView target_;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> host, StagingEngine& engine)
      : Communicator(host->rank(), host->size(), host->name()),
        host_(std::move(host)),
        pool_(engine) {
    set_timeout(host_->timeout());
    set_activity(host_->activity());
  }

  void barrier() override {
    pool_.stream().synchronize();
    host().barrier();
  }

  void broadcast(TensorView payload, std::int64_t root) override {
    if (payload.memory_space() == MemorySpace::kHost) {
      host().broadcast(payload, root);
      return;
    }
    StagedTensor staging(pool_, payload);
    if (rank() == root) {
      staging.fetch(payload);
    }
    host().broadcast(staging.host(), root);
    if (rank() != root) {
      staging.deliver(staging.host(), payload);
    }
  }

  void all_gather(ConstTensorView mine, TensorView all) override {
    if (all.memory_space() == MemorySpace::kHost) {
      host().all_gather(mine, all);
      return;
    }
    StagedTensor own(pool_, mine);
    own.fetch(mine);
    StagedTensor gathered(pool_, all);
    host().all_gather(own.host(), gathered.host());
    gathered.deliver(gathered.host(), all);
  }

  void all_reduce(TensorView sum) override {
    if (sum.memory_space() == MemorySpace::kHost) {
      host().all_reduce(sum);
      return;
    }
    StagedTensor staging(pool_, sum);
    staging.fetch(sum);
    host().all_reduce(staging.host());
    staging.deliver(staging.host(), sum);
  }

  std::unique_ptr<Window> make_window(std::int64_t words) override {
    return host().make_window(words);
  }

  std::unique_ptr<Communicator> subgroup(std::span<const std::int64_t> members,
                                         std::string name) override {
    return std::make_unique<StagedCommunicator>(host().subgroup(members, std::move(name)),
                                                pool_.engine());
  }

 protected:
  std::unique_ptr<Request::Operation> begin_send(ConstTensorView payload, std::int64_t peer,
                                                 Tag tag) override {
    if (payload.memory_space() == MemorySpace::kHost) {
      return host().send(payload, peer, tag).release();
    }
    return std::make_unique<StagedSend>(pool_, host(), payload, peer, tag);
  }

  std::unique_ptr<Request::Operation> begin_receive(TensorView payload, std::int64_t peer,
                                                    Tag tag) override {
    if (payload.memory_space() == MemorySpace::kHost) {
      return host().receive(payload, peer, tag).release();
    }
    auto staging = std::make_unique<StagedTensor>(pool_, payload);
    const TensorView arriving = staging->host();
    Request request = host().receive(arriving, peer, tag);
    return std::make_unique<StagedArrival>(std::move(staging), std::move(request), arriving,
                                           payload);
  }

  std::unique_ptr<Request::Operation> begin_reduce_scatter(
      TensorView tensor, std::span<const grid::Range> slices) override {
    if (tensor.memory_space() == MemorySpace::kHost) {
      return host().reduce_scatter(tensor, slices).release();
    }
    auto staging = std::make_unique<StagedTensor>(pool_, tensor);
    staging->fetch(tensor);
    const TensorView pinned = staging->host();
    Request request = host().reduce_scatter(pinned, slices);
    const grid::Range& own = slices[static_cast<std::size_t>(rank())];
    return std::make_unique<StagedArrival>(std::move(staging), std::move(request),
                                           pinned.flat_slice(own.begin, own.count()),
                                           tensor.flat_slice(own.begin, own.count()));
  }

 private:
  /// With this group's timeout.
  [[nodiscard]] Communicator& host() {
    host_->set_timeout(timeout());
    return *host_;
  }

  std::unique_ptr<Communicator> host_;
  PinnedPool pool_;
};

}  // namespace

DeviceWorld staged(std::unique_ptr<Communicator> host, ProgressEngine& host_engine,
                   device::Stream& stream) {
  require(stream.device().kind() == device::DeviceKind::kCuda, "staging for {}, which is not a GPU",
          stream.device().text());
  auto engine = std::make_unique<StagingEngine>(host_engine, stream);
  auto ranks = std::make_unique<StagedCommunicator>(std::move(host), *engine);
  return {.engine = std::move(engine), .ranks = std::move(ranks)};
}

}  // namespace strata::comm
