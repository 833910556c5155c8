// Compares NCCL's communicator with MPI's; ranks may share a GPU. Skipped, with a line, without a
// GPU. Prints the findings of all ranks and exits with 1 if there are any.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "strata/comm/groups.hpp"
#include "strata/comm/mpi.hpp"
#include "strata/comm/nccl.hpp"
#include "strata/comm/ordered_reduction.hpp"
#include "strata/core/error.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/gpu_info.hpp"
#include "strata/ops/context.hpp"

#include "../unit/comm/comm_cases.hpp"

namespace strata::comm::test {
namespace {

/// The same ranks over both transports, and the GPU.
struct Ranks {
  Communicator& mpi;
  Communicator& nccl;
  ProgressEngine& engine;
  ops::Context& context;
  device::Device device;

  [[nodiscard]] std::int64_t rank() const { return mpi.rank(); }
  [[nodiscard]] std::int64_t size() const { return mpi.size(); }
};

/// Numbers on the GPU. Copies to and from it are in order of the compute stream.
template <typename T>
class OnGpu {
 public:
  OnGpu(Ranks& ranks, const std::vector<T>& values)
      : ranks_(ranks),
        count_(std::ssize(values)),
        memory_(ranks.device, count_ * static_cast<std::int64_t>(sizeof(T))) {
    set(values);
  }

  [[nodiscard]] TensorView view() const { return memory_.view(0, Shape{count_}, kDTypeOf<T>); }
  void set(std::vector<T> values) {
    device::copy_tensor(TensorView(std::span(values), Shape{count_}), view(),
                        ranks_.context.stream());
    ranks_.engine.drain();
  }
  [[nodiscard]] std::vector<T> values() const {
    // With timeout, for the copy below waits without.
    ranks_.engine.drain();
    std::vector<T> found(static_cast<std::size_t>(count_));
    device::copy_tensor(view(), TensorView(std::span(found), Shape{count_}),
                        ranks_.context.stream());
    ranks_.context.stream().synchronize();
    return found;
  }

 private:
  Ranks& ranks_;
  std::int64_t count_;
  device::Buffer memory_;
};

/// Small whole numbers, which every order of additions sums to the same bits.
template <typename T>
std::vector<T> numbers(std::int64_t rank, std::int64_t count) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<T>((rank + 1) * (i % 251) - 40));
  }
  return values;
}

template <typename T>
TensorView on_host(std::vector<T>& values) {
  return {std::span(values), Shape{std::ssize(values)}};
}

constexpr std::int64_t kCounts[] = {1, 7, 1000, 300'001};

void collectives_are_mpis(Ranks& ranks, Findings& findings) {
  for (const std::int64_t count : kCounts) {
    const std::vector<float> mine = numbers<float>(ranks.rank(), count);
    std::vector<float> expected(static_cast<std::size_t>(count * ranks.size()));
    std::vector<float> sent = mine;
    ranks.mpi.all_gather(on_host(sent), on_host(expected));
    const OnGpu<float> part(ranks, mine);
    const OnGpu<float> all(ranks, std::vector<float>(expected.size()));
    ranks.nccl.all_gather(part.view(), all.view());
    findings.require_that(all.values() == expected, fmt::format("all-gather of {}", count));
    for (std::int64_t root = 0; root < ranks.size(); ++root) {
      const OnGpu<float> payload(ranks, mine);
      ranks.nccl.broadcast(payload.view(), root);
      findings.require_that(payload.values() == numbers<float>(root, count),
                            fmt::format("broadcast of {} from {}", count, root));
    }
    std::vector<double> sum = numbers<double>(ranks.rank(), count);
    const OnGpu<double> device_sum(ranks, sum);
    ranks.mpi.all_reduce(on_host(sum));
    ranks.nccl.all_reduce(device_sum.view());
    findings.require_that(device_sum.values() == sum, fmt::format("all-reduce of {}", count));
  }
}

std::vector<grid::Range> slices_of(std::int64_t count, std::int64_t ranks, bool even) {
  std::vector<grid::Range> slices;
  for (std::int64_t r = 0; r < ranks; ++r) {
    slices.push_back(grid::even_part(count, ranks, r));
  }
  if (!even) {
    // The first rank has none, the last its share too.
    for (grid::Range& slice : slices) {
      slice.end = slice.begin;
    }
    for (std::size_t r = 1; r < slices.size(); ++r) {
      slices[r].begin = slices[r - 1].end;
      slices[r].end = r + 1 == slices.size() ? count : slices[r].begin + count / (2 * ranks);
    }
    slices[0] = {0, 0};
  }
  return slices;
}

void reduce_scatter_is_mpis(Ranks& ranks, Findings& findings) {
  for (const bool even : {true, false}) {
    const std::int64_t count = 4096 * ranks.size() + (even ? 0 : 37);
    const std::vector<grid::Range> slices = slices_of(count, ranks.size(), even);
    std::vector<float> expected = numbers<float>(ranks.rank(), count);
    const OnGpu<float> first(ranks, expected);
    const OnGpu<float> second(ranks, expected);
    ranks.mpi.reduce_scatter(on_host(expected), slices).wait();
    Request one = ranks.nccl.reduce_scatter(first.view(), slices);
    Request two = ranks.nccl.reduce_scatter(second.view(), slices);
    two.wait();
    one.wait();
    findings.require_that(first.values() == expected && second.values() == expected,
                          even ? "reduce-scatter of equal slices" : "of unequal slices");
  }
}

void ordered_sums_have_the_cpus_bits(Ranks& ranks, Findings& findings) {
  constexpr std::int64_t kNodeRanks = 2;
  const std::int64_t count = 10'007;
  const std::vector<grid::Range> slices = slices_of(count, ranks.size(), false);
  const auto tree = grid::Assignment::blocked(grid::SumTree(2 * ranks.size()), ranks.size());
  OrderedReduction on_cpu(ranks.mpi, tree);
  OrderedReduction on_gpu(ranks.nccl, tree);
  OrderedReduction in_nodes(ranks.nccl, tree, kNodeRanks);
  std::vector<float> mine = numbers<float>(ranks.rank(), count);
  for (float& value : mine) {
    value = 1.0F / (value + 0.5F);  // of which each order of additions gives other bits
  }
  const OnGpu<float> device_sum(ranks, mine);
  const OnGpu<float> nodes_sum(ranks, mine);
  const std::int64_t largest = std::ranges::max(slices, {}, &grid::Range::count).count();
  const std::int64_t received =
      std::max(on_cpu.receive_elements(largest), in_nodes.receive_elements(largest));
  std::vector<float> memory(static_cast<std::size_t>(received));
  const OnGpu<float> device_memory(ranks, memory);
  ops::Context cpu(1);
  const auto reduce = [&](OrderedReduction& reduction, Communicator& group, ops::Context& context,
                          const TensorView& sum, const TensorView& receive_memory,
                          std::int64_t node_ranks = 1) {
    OrderedReduction::Pending pending = reduction.start(std::span(&sum, 1), slices, receive_memory);
    reduction.cross_nodes(context, pending);
    OrderedReduction::wait(pending);
    reduction.fold(context, pending);
    SliceGather(group, sum, slices, node_ranks).wait();
  };
  reduce(on_cpu, ranks.mpi, cpu, on_host(mine), on_host(memory));
  reduce(on_gpu, ranks.nccl, ranks.context, device_sum.view(), device_memory.view());
  reduce(in_nodes, ranks.nccl, ranks.context, nodes_sum.view(), device_memory.view(), kNodeRanks);
  findings.require_that(device_sum.values() == mine, "sums of other bits than the CPU's");
  findings.require_that(nodes_sum.values() == mine, "sums of other bits in two levels");
}

/// The routes between stages of one chunk each.
std::vector<Route> routes_of(std::int64_t stages) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(stages));
  std::iota(numbers.begin(), numbers.end(), 0);
  return pipeline_routes(numbers);
}

/// Neighbours send both ways at once, several messages ahead of the receives' waits, over memory
/// that is written again as soon as the send is waited for.
void routes_carry_messages_in_order(Ranks& ranks, Findings& findings) {
  constexpr std::int64_t kMessages = 6;
  constexpr std::int64_t kCount = 100'000;
  const auto message = [](std::int64_t from, std::int64_t number) {
    return std::vector<float>(kCount, static_cast<float>(100 * from + number));
  };
  const Groups groups =
      make_groups(ranks.nccl, ranks.engine, {.pipeline = ranks.size()}, routes_of(ranks.size()));
  Communicator& line = groups.along(grid::Axis::kPipeline);
  struct Direction {
    std::int64_t to;
    std::int64_t from;
    Tag tag;
  };
  const std::int64_t before = ranks.rank() - 1;
  const std::int64_t after = ranks.rank() + 1;
  const std::vector<Direction> directions{{after, before, Tag::kActivation},
                                          {before, after, Tag::kGradient}};
  const auto is_rank = [&](std::int64_t r) { return r >= 0 && r < ranks.size(); };
  std::vector<OnGpu<float>> received;
  std::vector<std::int64_t> senders;
  std::vector<Request> receives;
  received.reserve(directions.size() * kMessages);
  for (const Direction& direction : directions) {
    for (std::int64_t n = 0; is_rank(direction.from) && n < kMessages; ++n) {
      received.emplace_back(ranks, message(0, -1));
      senders.push_back(direction.from);
      receives.push_back(line.receive(received.back().view(), direction.from, direction.tag));
    }
  }
  const OnGpu<float> scratch(ranks, message(ranks.rank(), 0));
  const OnGpu<float> other(ranks, message(ranks.rank(), 99));
  for (std::int64_t n = 0; n < kMessages; ++n) {
    for (const Direction& direction : directions) {
      if (is_rank(direction.to)) {
        std::vector<float> values = message(ranks.rank(), n);
        device::copy_tensor(on_host(values), scratch.view(), ranks.context.stream());
        line.send(scratch.view(), direction.to, direction.tag).wait();
        // Later work on the stream overwrites what was sent.
        device::copy_tensor(other.view(), scratch.view(), ranks.context.stream());
      }
    }
    // As late as they can come without holding up the neighbours' sends.
    for (std::size_t d = 0; d * kMessages < receives.size(); ++d) {
      receives[d * kMessages + static_cast<std::size_t>(n)].wait();
    }
  }
  for (std::size_t i = 0; i < received.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i) % kMessages;
    findings.require_that(received[i].values() == message(senders[i], number),
                          fmt::format("message {} from rank {}", number, senders[i]));
  }
  line.barrier();
}

void groups_work_at_once(Ranks& ranks, Findings& findings) {
  if (ranks.size() % 2 != 0) {
    return;
  }
  const Groups groups = make_groups(ranks.nccl, ranks.engine,
                                    {.data = ranks.size() / 2, .pipeline = 2}, routes_of(2));
  groups.along(grid::Axis::kData).connect(Summation::kLibrary);
  groups.along(grid::Axis::kPipeline).connect(Summation::kInvariant);
  std::vector<float> in_data = numbers<float>(ranks.rank(), 1000);
  std::vector<float> in_pipeline = in_data;
  const OnGpu<float> data(ranks, in_data);
  const OnGpu<float> pipeline(ranks, in_pipeline);
  const Groups on_host_groups =
      make_groups(ranks.mpi, ranks.engine, {.data = ranks.size() / 2, .pipeline = 2}, routes_of(2));
  on_host_groups.along(grid::Axis::kData).all_reduce(on_host(in_data));
  on_host_groups.along(grid::Axis::kPipeline).all_reduce(on_host(in_pipeline));
  groups.along(grid::Axis::kData).all_reduce(data.view());
  groups.along(grid::Axis::kPipeline).all_reduce(pipeline.view());
  findings.require_that(data.values() == in_data, "sums of the data group");
  findings.require_that(pipeline.values() == in_pipeline, "sums of the pipeline group");
  groups.world->barrier();
}

/// The last case: it aborts NCCL's communicators.
void a_lost_message_ends_the_wait(Ranks& ranks, Findings& findings) {
  constexpr double kTimeoutSeconds = 3.0;
  const std::int64_t last = ranks.size() - 1;
  if (ranks.rank() != last) {
    ranks.nccl.set_timeout({.seconds = kTimeoutSeconds});
    const OnGpu<float> values(ranks, numbers<float>(ranks.rank(), 1000));
    std::string text;
    const auto begin = std::chrono::steady_clock::now();
    try {
      ranks.nccl.all_reduce(values.view());
      ranks.nccl.barrier();
    } catch (const Error& error) {
      findings.require_that(error.code() == ExitCode::kPeer, "exit code of a timeout");
      text = error.what();
    }
    const double waited =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    findings.require_that(text.find("waiting to complete the all-reduce") != std::string::npos,
                          "the error says \"" + text + "\"");
    findings.require_that(waited < kTimeoutSeconds + 30.0, fmt::format("{} s", waited));
  }
  ranks.mpi.barrier();
}

struct Case {
  const char* name;
  void (*body)(Ranks& ranks, Findings& findings);
};

constexpr Case kCases[] = {
    {"collectives_are_mpis", collectives_are_mpis},
    {"reduce_scatter_is_mpis", reduce_scatter_is_mpis},
    {"ordered_sums_have_the_cpus_bits", ordered_sums_have_the_cpus_bits},
    {"routes_carry_messages_in_order", routes_carry_messages_in_order},
    {"groups_work_at_once", groups_work_at_once},
    {"a_lost_message_ends_the_wait", a_lost_message_ends_the_wait},
};

int run_all(MpiSession& session) {
  Communicator& world = session.world();
  const std::int64_t gpus = device::cuda_device_count();
  if (gpus == 0 || !nccl_absence().empty()) {
    if (world.rank() == 0) {
      fmt::print("[  SKIPPED ] Nccl ({}) (0 ms)\n", gpus == 0 ? "no GPU" : nccl_absence());
    }
    return 0;
  }
  const device::GpuChoice choice =
      device::choose_gpu(session.rank_on_node(), session.ranks_on_node(), gpus);
  if (gpus < session.ranks_on_node()) {
    // NCCL takes ranks for those of different nodes and lets them share a GPU.
    ::setenv("NCCL_HOSTID", fmt::format("strata-{}", world.rank()).c_str(), 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  }
  const device::Device gpu = device::Device::cuda(choice.index);
  ops::Context context = ops::Context::cuda(gpu);
  std::vector<std::int64_t> everyone(static_cast<std::size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const DeviceWorld device_world = nccl(world.subgroup(everyone, "world"), session.engine(), gpu,
                                        context.stream(), Summation::kLibrary);
  Ranks ranks{world, *device_world.ranks, *device_world.engine, context, gpu};
  int failures = 0;
  for (const Case& one : kCases) {
    Findings findings;
    const auto begin = std::chrono::steady_clock::now();
    one.body(ranks, findings);
    const auto taken = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - begin);
    std::string report;
    for (const std::string& text :
         world.all_gather_texts(fmt::format("{}", fmt::join(findings.texts(), "; ")))) {
      report += text.empty() ? "" : text + "\n";
    }
    failures += report.empty() ? 0 : 1;
    if (world.rank() == 0) {
      fmt::print("{}{} Nccl.{} ({} ms)\n", report, report.empty() ? "[       OK ]" : "[  FAILED  ]",
                 one.name, taken.count());
    }
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace strata::comm::test

int main(int argc, char** argv) {
  strata::comm::request_hardware_queues();
  strata::comm::MpiSession mpi(&argc, &argv);
  int status = 0;
  try {
    mpi.world().set_timeout({.seconds = 60.0});
    status = strata::comm::test::run_all(mpi);
  } catch (const std::exception& error) {
    fmt::print("[  FAILED  ] Nccl, rank {}: {} (0 ms)\n", mpi.world().rank(), error.what());
    std::fflush(stdout);
    strata::comm::MpiSession::abort(1);
  }
  mpi.finalize();
  return status;
}
