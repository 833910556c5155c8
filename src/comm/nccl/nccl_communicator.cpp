#include "nccl/nccl_communicator.hpp"

#ifdef STRATA_HAVE_NCCL

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "strata/comm/agree.hpp"
#include "strata/comm/nccl.hpp"
#include "strata/core/error.hpp"
#include "strata/device/buffer.hpp"

namespace strata::comm {
namespace {

using Note = NcclEngine::Note;

ncclDataType_t nccl_type_of(const ConstTensorView& summand) {
  return with_floating(summand.dtype(), []<typename T>(T) {
    return std::is_same_v<T, float> ? ncclFloat32 : ncclFloat64;
  });
}

std::size_t count_of(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

Awaited awaited_of(Tag tag, grid::Axis axis) {
  const Tag kind = kind_of(tag);
  return kind == Tag::kActivation || kind == Tag::kGradient ? kNeighbourStage : Awaited(axis);
}

bool on_host(const ConstTensorView& payload) {
  return payload.memory_space() == MemorySpace::kHost;
}

/// An operation on a channel; complete once the compute stream has been made to wait for it.
class ChannelOperation final : public Request::Operation {
 public:
  ChannelOperation(NcclEngine& engine, NcclChannel& channel, device::Event done, Awaited awaited)
      : engine_(engine), channel_(channel), done_(std::move(done)), awaited_(awaited) {}

  bool test() override {
    engine_.wait(done_, awaited_);
    return true;
  }

  bool follow(const std::function<void(device::Stream&)>& work) override {
    done_ = channel_.enqueue(work);
    return true;
  }

 private:
  NcclEngine& engine_;
  NcclChannel& channel_;
  device::Event done_;
  Awaited awaited_;
};

}  // namespace

std::unique_ptr<NcclChannel> open_channel(NcclEngine& engine, Communicator& host,
                                          std::span<const std::int64_t> members, int blocks,
                                          std::string name) {
  const bool alone = members.size() < 2;
  ncclUniqueId own{};
  agree(host, [&] {
    if (!alone && members.front() == host.rank()) {
      own = engine.unique_id();
    }
  });
  // One id per set of members: that of its first rank.
  std::vector<ncclUniqueId> ids(count_of(host.size()));
  const auto bytes_of = [](std::span<ncclUniqueId> some) {
    return TensorView(std::as_writable_bytes(some).data(),
                      Shape{static_cast<std::int64_t>(some.size_bytes())}, DType::kUint8);
  };
  host.all_gather(bytes_of(std::span(&own, 1)), bytes_of(std::span(ids)));
  std::unique_ptr<NcclChannel> channel;
  agree(host, [&] {
    if (alone) {
      return;
    }
    const auto place = std::find(members.begin(), members.end(), host.rank()) - members.begin();
    require(place < std::ssize(members), "rank {} is not a member of the {}", host.rank(), name);
    const NcclHandle handle =
        engine.join(ids[count_of(members.front())], place, std::ssize(members), blocks,
                    "connect the GPUs of the " + name);
    channel = std::make_unique<NcclChannel>(engine, handle);
  });
  return channel;
}

/// A receive is issued when it is waited for, ordered after the work that was on the compute stream
/// when it was posted. Issued at once, it could wait for a message that this rank has yet to send,
/// and any call that synchronizes the whole GPU, such as freeing memory, would deadlock.
class RouteReceive final : public Request::Operation {
 public:
  RouteReceive(NcclEngine& engine, OpenRoute& route, Awaited awaited, const TensorView& payload,
               std::string what)
      : engine_(engine),
        route_(route),
        awaited_(awaited),
        payload_(payload),
        what_(std::move(what)),
        ready_(engine.mark_compute()) {
    route_.posted.push_back(this);
  }
  ~RouteReceive() override { std::erase(route_.posted, this); }
  RouteReceive(const RouteReceive&) = delete;
  RouteReceive& operator=(const RouteReceive&) = delete;

  bool test() override {
    while (!done_) {
      RouteReceive& oldest = *route_.posted.front();
      route_.posted.pop_front();
      oldest.begin();
    }
    engine_.wait(*done_, awaited_);
    return true;
  }

 private:
  void begin() {
    done_ = route_.channel->issue(
        ready_, what_, [&](const Note& note, ncclComm_t handle, cudaStream_t stream) {
          note(engine_.functions().recv(payload_.raw(), count_of(payload_.bytes()), ncclUint8, 0,
                                        handle, stream));
        });
  }

  NcclEngine& engine_;
  OpenRoute& route_;
  Awaited awaited_;
  TensorView payload_;
  std::string what_;
  device::Event ready_;
  std::optional<device::Event> done_;
};

NcclCommunicator::NcclCommunicator(std::unique_ptr<Communicator> host, NcclEngine& engine)
    : Communicator(host->rank(), host->size(), host->name()),
      engine_(engine),
      host_(std::move(host)) {
  set_timeout(host_->timeout());
  set_activity(host_->activity());
}

Communicator& NcclCommunicator::host() {
  host_->set_timeout(timeout());
  return *host_;
}

NcclChannel* NcclCommunicator::channel() {
  if (channel_ == nullptr && size() > 1) {
    std::vector<std::int64_t> everyone(count_of(size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    channel_ = open_channel(engine_, host(), everyone, engine_.group_blocks(), name());
  }
  return channel_.get();
}

OpenRoute& NcclCommunicator::route_of(const Route& route) {
  const auto found = std::find_if(routes_.begin(), routes_.end(),
                                  [&](const auto& open) { return open->route == route; });
  require(found != routes_.end(), "no open route from rank {} to rank {} of the {} for {}s",
          route.from, route.to, name(), name_of(kind_of(route.tag)));
  return **found;
}

template <typename Calls>
std::unique_ptr<Request::Operation> NcclCommunicator::on_channel(NcclChannel& channel,
                                                                 std::string what, Awaited awaited,
                                                                 const Calls& calls) {
  device::Event ready = engine_.mark_compute();
  device::Event done = channel.issue(ready, std::move(what), calls);
  return std::make_unique<ChannelOperation>(engine_, channel, std::move(done), awaited);
}

template <typename Calls>
void NcclCommunicator::collective(std::string_view what, const Calls& calls) {
  if (size() > 1) {
    on_channel(*channel(), describe_collective(what), axis(), calls)->test();
  }
}

void NcclCommunicator::barrier() {
  engine_.drain_within(timeout());
  host().barrier();
}

void NcclCommunicator::broadcast(TensorView payload, std::int64_t root) {
  if (on_host(payload)) {
    host().broadcast(payload, root);
    return;
  }
  collective("broadcast", [&](const Note& note, ncclComm_t handle, cudaStream_t stream) {
    note(functions().broadcast(payload.raw(), payload.raw(), count_of(payload.bytes()), ncclUint8,
                               static_cast<int>(root), handle, stream));
  });
}

void NcclCommunicator::all_gather(ConstTensorView mine, TensorView all) {
  require(mine.memory_space() == all.memory_space(), "an all-gather from {} to {} memory",
          name_of(mine.memory_space()), name_of(all.memory_space()));
  if (on_host(mine)) {
    host().all_gather(mine, all);
    return;
  }
  require(all.bytes() == size() * mine.bytes(), "{} bytes gathered from {} ranks with {} each",
          all.bytes(), size(), mine.bytes());
  if (size() == 1 && mine.raw() != all.raw()) {
    const Shape bytes{mine.bytes()};
    device::copy_tensor(ConstTensorView(mine.raw(), bytes, DType::kUint8, mine.memory_space()),
                        TensorView(all.raw(), bytes, DType::kUint8, all.memory_space()),
                        engine_.compute());
  }
  collective("all-gather", [&](const Note& note, ncclComm_t handle, cudaStream_t stream) {
    note(functions().all_gather(mine.raw(), all.raw(), count_of(mine.bytes()), ncclUint8, handle,
                                stream));
  });
}

void NcclCommunicator::all_reduce(TensorView sum) {
  if (on_host(sum)) {
    host().all_reduce(sum);
    return;
  }
  collective("all-reduce", [&](const Note& note, ncclComm_t handle, cudaStream_t stream) {
    note(functions().all_reduce(sum.raw(), sum.raw(), count_of(sum.count()), nccl_type_of(sum),
                                ncclSum, handle, stream));
  });
}

std::unique_ptr<Request::Operation> NcclCommunicator::begin_send(ConstTensorView payload,
                                                                 std::int64_t peer, Tag tag) {
  if (on_host(payload)) {
    return host().send(payload, peer, tag).release();
  }
  OpenRoute& route = route_of({.from = rank(), .to = peer, .tag = tag});
  return on_channel(*route.channel, describe("send to", peer, tag), awaited_of(tag, axis()),
                    [&](const Note& note, ncclComm_t handle, cudaStream_t stream) {
                      note(functions().send(payload.raw(), count_of(payload.bytes()), ncclUint8, 1,
                                            handle, stream));
                    });
}

std::unique_ptr<Request::Operation> NcclCommunicator::begin_receive(TensorView payload,
                                                                    std::int64_t peer, Tag tag) {
  if (on_host(payload)) {
    return host().receive(payload, peer, tag).release();
  }
  return std::make_unique<RouteReceive>(engine_, route_of({.from = peer, .to = rank(), .tag = tag}),
                                        awaited_of(tag, axis()), payload,
                                        describe("receive from", peer, tag));
}

std::unique_ptr<Request::Operation> NcclCommunicator::begin_exchange(
    std::span<const Outgoing> sends, std::span<const Incoming> receives, Tag tag) {
  const auto outside = [](const auto& message) { return !on_host(message.payload); };
  const auto inside = [](const auto& message) { return on_host(message.payload); };
  if (std::none_of(sends.begin(), sends.end(), outside) &&
      std::none_of(receives.begin(), receives.end(), outside)) {
    return host().exchange(sends, receives, tag).release();
  }
  require(std::none_of(sends.begin(), sends.end(), inside) &&
              std::none_of(receives.begin(), receives.end(), inside),
          "an exchange mixes host and device memory");
  return on_channel(
      *channel(), describe_collective(fmt::format("exchange of {}s", name_of(tag))), axis(),
      [&](const Note& note, ncclComm_t handle, cudaStream_t stream) {
        for (const Incoming& message : receives) {
          note(functions().recv(message.payload.raw(), count_of(message.payload.bytes()), ncclUint8,
                                static_cast<int>(message.peer), handle, stream));
        }
        for (const Outgoing& message : sends) {
          note(functions().send(message.payload.raw(), count_of(message.payload.bytes()), ncclUint8,
                                static_cast<int>(message.peer), handle, stream));
        }
      });
}

std::unique_ptr<Request::Operation> NcclCommunicator::begin_reduce_scatter(
    TensorView tensor, std::span<const grid::Range> slices) {
  if (on_host(tensor)) {
    return host().reduce_scatter(tensor, slices).release();
  }
  if (size() == 1) {
    return nullptr;  // the sums of one rank are its own
  }
  const auto slice_of = [&](std::int64_t r) {
    const grid::Range& slice = slices[static_cast<std::size_t>(r)];
    return tensor.flat_slice(slice.begin, slice.count());
  };
  const TensorView own = slice_of(rank());
  const bool even = std::all_of(slices.begin(), slices.end(), [&](const grid::Range& slice) {
    return slice.count() == own.count();
  });
  const auto calls = [&](const Note& note, ncclComm_t handle, cudaStream_t stream) {
    if (even) {
      note(functions().reduce_scatter(tensor.raw(), own.raw(), count_of(own.count()),
                                      nccl_type_of(tensor), ncclSum, handle, stream));
      return;
    }
    for (std::int64_t r = 0; r < size(); ++r) {
      const TensorView slice = slice_of(r);
      if (slice.count() > 0) {
        note(functions().reduce(slice.raw(), r == rank() ? slice.raw() : nullptr,
                                count_of(slice.count()), nccl_type_of(tensor), ncclSum,
                                static_cast<int>(r), handle, stream));
      }
    }
  };
  return on_channel(*channel(), describe_collective("reduce-scatter"), axis(), calls);
}

std::unique_ptr<Communicator> NcclCommunicator::subgroup(std::span<const std::int64_t> members,
                                                         std::string name) {
  return std::make_unique<NcclCommunicator>(host().subgroup(members, std::move(name)), engine_);
}

void NcclCommunicator::open_routes(std::span<const Route> routes) {
  std::vector<int> routes_of(static_cast<std::size_t>(size()));
  for (const Route& route : routes) {
    for (const std::int64_t end : {route.from, route.to}) {
      ++routes_of.at(static_cast<std::size_t>(end));
    }
  }
  const int most = std::max(1, *std::ranges::max_element(routes_of));
  const int blocks = std::max(1, static_cast<int>(kAllRoutesBlocks) / most);
  // Consecutive routes without a common rank are opened together.
  std::size_t begin = 0;
  while (begin < routes.size()) {
    std::vector<bool> taken(static_cast<std::size_t>(size()), false);
    std::size_t end = begin;
    for (; end < routes.size(); ++end) {
      const auto from = static_cast<std::size_t>(routes[end].from);
      const auto to = static_cast<std::size_t>(routes[end].to);
      require(from < taken.size() && to < taken.size() && from != to,
              "a route from rank {} to rank {} of {}", from, to, size());
      if (taken[from] || taken[to]) {
        break;
      }
      taken[from] = true;
      taken[to] = true;
    }
    open_round(routes.subspan(begin, end - begin), blocks);
    begin = end;
  }
}

void NcclCommunicator::open_round(std::span<const Route> routes, int blocks) {
  const auto own = std::find_if(routes.begin(), routes.end(), [&](const Route& route) {
    return route.from == rank() || route.to == rank();
  });
  std::vector<std::int64_t> ends;
  if (own != routes.end()) {
    ends = {own->from, own->to};
  }
  std::unique_ptr<NcclChannel> channel = open_channel(
      engine_, host(), ends, blocks,
      own == routes.end() ? name()
                          : fmt::format("{}, ranks {} and {}", name(), own->from, own->to));
  agree(host(), [&] {
    if (channel == nullptr) {
      return;
    }
    auto& open = *routes_.emplace_back(std::make_unique<OpenRoute>());
    open.route = *own;
    open.channel = std::move(channel);
    // NCCL connects two ranks at their first message, which blocks the host; better here than in a
    // step.
    const device::Buffer memory(engine_.device(), 1);
    const TensorView payload = memory.view(0, Shape{1}, DType::kUint8);
    const Tag tag = own->tag;
    const bool sends = own->from == rank();
    Request(sends ? begin_send(payload, own->to, tag) : begin_receive(payload, own->from, tag),
            describe("connect to", sends ? own->to : own->from, tag), timeout())
        .wait();
    engine_.drain_within(timeout());
  });
}

void NcclCommunicator::connect(Summation sums) {
  if (channel() == nullptr) {
    return;
  }
  agree(host(), [&] {
    // NCCL connects ranks at their first exchange, and again for each collective and each
    // algorithm, which depends on the size.
    constexpr std::int64_t kLarge = std::int64_t{1} << 20;
    const device::Buffer memory(engine_.device(), kLarge * size_bytes(DType::kFloat32));
    for (const std::int64_t elements : {std::int64_t{1}, kLarge / size()}) {
      const TensorView whole = memory.view(0, Shape{size() * elements}, DType::kFloat32);
      const auto part = [&](std::int64_t r) { return whole.flat_slice(r * elements, elements); };
      std::vector<grid::Range> slices;
      std::vector<Outgoing> sends;
      std::vector<Incoming> receives;
      for (std::int64_t r = 0; r < size(); ++r) {
        slices.push_back({r * elements, (r + 1) * elements});
        if (r != rank()) {
          sends.push_back({.payload = part(rank()), .peer = r});
          receives.push_back({.payload = part(r), .peer = r});
        }
      }
      exchange(sends, receives, Tag::kSetup).wait();
      all_gather(part(rank()), whole);
      if (sums == Summation::kLibrary) {
        all_reduce(whole);
        reduce_scatter(whole, slices).wait();
      }
    }
    engine_.drain_within(timeout());
  });
}

}  // namespace strata::comm

#endif
