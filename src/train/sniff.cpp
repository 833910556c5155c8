#include "strata/train/sniff.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/comm/ordered_reduction.hpp"
#include "strata/comm/values.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/host_name.hpp"
#include "strata/core/random.hpp"
#include "strata/device/gpu_info.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/ops/instruction_set.hpp"
#include "strata/ops/loss.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/ops/row_norm.hpp"

namespace strata::train {
namespace {

/// What computes the problem: its kind decides over bits and size.
struct SniffProcessor {
  std::string kind;
  std::int64_t rows = 256;  ///< of products
  std::int64_t columns = 256;
};

SniffProcessor processor_of(const ops::Context& context) {
  SniffProcessor processor;
  if (context.device().kind() == device::DeviceKind::kCuda) {
    // A product has a tile of 128 x 128 for each multiprocessor.
    constexpr std::int64_t kTile = 128;
    constexpr std::int64_t kMostColumns = 8;
    const device::GpuInfo gpu = device::gpus()[static_cast<std::size_t>(context.device().index())];
    const std::int64_t columns = std::min(kMostColumns, gpu.multiprocessors);
    processor.rows = kTile * ((gpu.multiprocessors + columns - 1) / columns);
    processor.columns = kTile * columns;
    processor.kind = fmt::format("{} of {}", gpu.name, gpu.multiprocessors);
    for (const device::LibraryVersion& library : device::cuda_libraries()) {
      processor.kind += fmt::format(", {} {}", library.name, library.version);
    }
    return processor;
  }
  processor.kind = name_of(ops::native_instruction_set());
  // The first processor's entry: x86 has a model, Arm an implementer and a part.
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {
    if (line.starts_with("model") || line.starts_with("CPU")) {
      processor.kind += line;
    }
  }
  return processor;
}

/// Numbers from -0.5 to 0.5, the same on every rank.
void fill(const TensorView& tensor, std::uint64_t subject) {
  const RandomStream random(0, RandomPurpose::kSynthesise, subject);
  device::write_from_host(tensor, [&](std::int64_t first, const TensorView& piece) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(piece.count()));
    random.fill(static_cast<std::uint64_t>(first) / 4, 0, words);
    with_stored(piece.dtype(), [&]<typename T>(T) {
      std::ranges::transform(words, piece.host<T>().begin(), [](std::uint32_t word) {
        return static_cast<T>(static_cast<Compute<T>>(word >> 8U) * Compute<T>{0x1p-24} -
                              Compute<T>{0.5});
      });
    });
  });
}

std::uint64_t bits_of(const ConstTensorView& tensor, device::Stream& stream) {
  const device::HostView here(tensor, stream);
  return hash_of(std::span(here.view().raw(), static_cast<std::size_t>(tensor.bytes())));
}

bool has_known_results(SniffPart part) {
  return part == SniffPart::kReduction || part == SniffPart::kMessages;
}

/// Of known results, a wrong one in any group counts.
void take(SniffPart part, std::uint64_t bits, SniffResult& mine) {
  std::uint64_t& of_part = mine.bits[static_cast<std::size_t>(part)];
  of_part = std::max(of_part, bits);
}

/// The tensors of one rank, and the parts that they go through.
class SniffProblem {
 public:
  SniffProblem(const SniffSetup& setup, const SniffProcessor& processor)
      : setup_(setup), rows_(processor.rows), columns_(processor.columns) {
    fill(a_, 1);
    fill(b_, 2);
    fill(weight_, 3);
  }

  void run(SniffPart part, SniffResult& mine) {
    switch (part) {
      case SniffPart::kProducts:
        return products(mine);
      case SniffPart::kNorm:
        return norm(mine);
      case SniffPart::kReduction:
        for (const grid::Axis axis : {grid::Axis::kData, grid::Axis::kTensor}) {
          reduce(setup_.groups.along(axis), mine);
        }
        return;
      case SniffPart::kMessages:
        for (const comm::Route& route : setup_.routes) {
          pass(route, mine);
        }
    }
  }

 private:
  void products(SniffResult& mine) {
    ops::Context& context = setup_.context;
    timed(SniffPart::kProducts, mine, c_, [&] {
      ops::matmul(context, a_, b_, c_);
      ops::matmul(context, c_, b_, da_, {.transpose_b = ops::Transpose::kYes});
      ops::matmul(context, a_, c_, db_, {.transpose_a = ops::Transpose::kYes});
    });
    const std::uint64_t bits[] = {bits_of(c_, context.stream()), bits_of(da_, context.stream()),
                                  bits_of(db_, context.stream())};
    take(SniffPart::kProducts, hash_of(std::as_bytes(std::span(bits))), mine);
  }

  void norm(SniffResult& mine) {
    ops::Context& context = setup_.context;
    constexpr double kEpsilon = 1e-5;
    timed(SniffPart::kNorm, mine, y_, [&] {
      ops::row_norm_forward(context, {}, a_, weight_, {}, kEpsilon, y_, mean_, rstd_);
      ops::cross_entropy(context, y_, labels_, rows_, 1.0, y_, sums_);
    });
    const std::uint64_t bits[] = {bits_of(y_, context.stream()), bits_of(mean_, context.stream()),
                                  bits_of(rstd_, context.stream())};
    take(SniffPart::kNorm, hash_of(std::as_bytes(std::span(bits))), mine);
  }

  /// Sums whole numbers, which no order of additions of up to 88,000 ranks rounds.
  void reduce(comm::Communicator& group, SniffResult& mine) {
    constexpr std::int64_t kSlice = 1024;
    constexpr std::int64_t kCycle = 127;
    constexpr std::int64_t kRankCycle = 64;
    const std::int64_t ranks = group.size();
    if (ranks == 1) {
      return;
    }
    std::vector<grid::Range> slices;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      slices.push_back({rank * kSlice, (rank + 1) * kSlice});
    }
    const auto number = [&](std::int64_t i) { return static_cast<float>(i % kCycle); };
    const TensorView sum = memory({ranks * kSlice}, DType::kFloat32);
    device::write_from_host(sum, [&](std::int64_t first, const TensorView& piece) {
      for (float& element : piece.host<float>()) {
        element = number(first++) + static_cast<float>(group.rank() % kRankCycle);
      }
    });
    const grid::SumTree tree(ranks);
    comm::OrderedReduction reduction(group, grid::Assignment::blocked(tree, ranks));
    const TensorView received = memory({reduction.receive_elements(kSlice)}, DType::kFloat32);
    timed(SniffPart::kReduction, mine, sum, [&] {
      if (setup_.sums == comm::Summation::kLibrary) {
        group.reduce_scatter(sum, slices).wait();
      } else {
        auto pending = reduction.start(std::span(&sum, 1), slices, received);
        const bool is_behind = reduction.fold_behind(setup_.context, pending);
        reduction.cross_nodes(setup_.context, pending);
        comm::OrderedReduction::wait(pending);
        if (!is_behind) {
          reduction.fold(setup_.context, pending);
        }
      }
      comm::begin_all_gather_slices(group, sum, slices).wait();
    });
    const device::HostView here(sum, setup_.context.stream());
    std::int64_t of_ranks = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      of_ranks += rank % kRankCycle;
    }
    std::int64_t i = 0;
    const bool right = std::ranges::all_of(here.view().host<float>(), [&](float element) {
      return element == static_cast<float>(ranks) * number(i++) + static_cast<float>(of_ranks);
    });
    take(SniffPart::kReduction, right ? 0 : 1, mine);
    memory_.resize(memory_.size() - 2);
  }

  /// Ranks take the routes in one order, so none waits for another in a circle.
  void pass(const comm::Route& route, SniffResult& mine) {
    comm::Communicator& group = setup_.groups.along(grid::Axis::kPipeline);
    if (route.from != group.rank() && route.to != group.rank()) {
      return;
    }
    constexpr std::uint64_t kSubjects = 16;
    const auto subject = kSubjects + static_cast<std::uint64_t>(route.from);
    const bool receives = route.to == group.rank();
    if (!receives) {
      fill(message_, subject);
    }
    timed(SniffPart::kMessages, mine, message_, [&] {
      (receives ? group.receive(message_, route.from, route.tag)
                : group.send(message_, route.to, route.tag))
          .wait();
    });
    if (receives) {
      fill(sent_, subject);
      device::Stream& stream = setup_.context.stream();
      const bool right = bits_of(message_, stream) == bits_of(sent_, stream);
      take(SniffPart::kMessages, right ? 0 : 1, mine);
      if (!right) {
        grid::Coordinates sender = setup_.groups.coordinates;
        sender.pipeline = route.from;
        mine.sender = setup_.groups.grid.rank_of(sender);
      }
    }
  }

  template <typename Work>
  void timed(SniffPart part, SniffResult& mine, const TensorView& result, const Work& work) {
    setup_.context.synchronize();
    const double begin = now_seconds();
    work();
    setup_.groups.engine->drain();
    setup_.context.synchronize();
    if (setup_.hook) {
      setup_.hook(part, result);
    }
    mine.seconds[static_cast<std::size_t>(part)] += now_seconds() - begin;
  }

  TensorView memory(const Shape& shape, DType dtype) {
    return memory_.emplace_back(setup_.context.device(), shape.count() * size_bytes(dtype))
        .view(0, shape, dtype);
  }

  const SniffSetup& setup_;
  std::vector<device::Buffer> memory_;
  DType sums_dtype_ = compute_dtype(setup_.dtype);
  std::int64_t rows_;
  std::int64_t columns_;
  static constexpr std::int64_t kInner = 256;
  TensorView a_ = memory({rows_, kInner}, setup_.dtype);
  TensorView b_ = memory({kInner, columns_}, setup_.dtype);
  TensorView c_ = memory({rows_, columns_}, setup_.dtype);
  TensorView da_ = memory({rows_, kInner}, setup_.dtype);
  TensorView db_ = memory({kInner, columns_}, setup_.dtype);
  TensorView weight_ = memory({kInner}, setup_.dtype);
  TensorView y_ = memory({rows_, kInner}, setup_.dtype);
  TensorView mean_ = memory({rows_}, sums_dtype_);
  TensorView rstd_ = memory({rows_}, sums_dtype_);
  TensorView labels_ = memory({rows_}, DType::kInt64);
  TensorView sums_ = memory({ops::kLossElements}, DType::kInt64);
  TensorView message_ = memory({4096}, DType::kFloat32);
  TensorView sent_ = memory({4096}, DType::kFloat32);
};

/// The lower one of two in the middle.
double median_of_ranks(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  return numbers[(numbers.size() - 1) / 2];
}

using Members = std::vector<std::size_t>;

/// Why a part of a rank is wrong; empty where it is not. `members`: the ranks of its kind.
std::string fault_of(std::span<const SniffResult> ranks, const Members& members, std::size_t rank,
                     SniffPart part) {
  const auto p = static_cast<std::size_t>(part);
  const std::string_view name = name_of(part);
  const SniffResult& mine = ranks[rank];
  if (mine.varies[p] != 0) {
    return fmt::format("{} gave other bits when computed again", name);
  }
  if (has_known_results(part)) {
    return mine.bits[p] == 0              ? ""
           : part == SniffPart::kMessages ? fmt::format(
                                                "a message of rank {} arrived with other "
                                                "bits than were sent",
                                                mine.sender)
                                          : "a sum of known numbers is wrong";
  }
  std::map<std::uint64_t, std::size_t> counts;
  for (const std::size_t member : members) {
    ++counts[ranks[member].bits[p]];
  }
  const auto most = std::ranges::max_element(counts, {}, [](const auto& of) { return of.second; });
  if (most->second == members.size() ||
      (2 * most->second > members.size() && most->first == mine.bits[p])) {
    return "";
  }
  return 2 * most->second > members.size()
             ? fmt::format("{} gave the bits {}, on {} of {} like ranks {}", name,
                           hash_text(mine.bits[p]), most->second, members.size(),
                           hash_text(most->first))
             : fmt::format("{} gave the bits {}, and no majority of {} like ranks agrees", name,
                           hash_text(mine.bits[p]), members.size());
}

}  // namespace

std::vector<SniffResult> sniff(const SniffSetup& setup) {
  constexpr int kRepeats = 3;
  const SniffProcessor processor = processor_of(setup.context);
  SniffResult mine{.kind = hash_of(processor.kind)};
  mine.seconds.fill(std::numeric_limits<double>::infinity());
  SniffProblem problem(setup, processor);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (const auto& [part, name] : enum_table<SniffPart>()) {
      const auto p = static_cast<std::size_t>(part);
      if (has_known_results(part)) {
        setup.groups.world->barrier();
      }
      SniffResult now{.sender = mine.sender};
      problem.run(part, now);
      mine.sender = now.sender;
      mine.seconds[p] = std::min(mine.seconds[p], now.seconds[p]);
      if (repeat == 0 || has_known_results(part)) {
        take(part, now.bits[p], mine);
      } else if (now.bits[p] != mine.bits[p]) {
        mine.varies[p] = 1;
      }
    }
  }
  return comm::gathered(*setup.groups.world, mine);
}

SniffFindings findings_of(std::span<const SniffResult> ranks) {
  constexpr double kFactor = 3.0;
  // Ranks that share cores wait for each other's messages for some of their turns.
  constexpr double kComputeSeconds = 5e-3;
  constexpr double kMessageSeconds = 20e-3;
  std::map<std::uint64_t, Members> kinds;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    kinds[ranks[rank].kind].push_back(rank);
  }
  SniffFindings found;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Members& members = kinds.at(ranks[rank].kind);
    std::string fault;
    std::string delay;
    for (std::size_t p = 0; p < kSniffParts; ++p) {  // GCC 14 loses the end of a table's range
      const auto part = static_cast<SniffPart>(p);
      fault = fault.empty() ? fault_of(ranks, members, rank, part) : fault;
      std::vector<double> seconds;
      std::ranges::transform(members, std::back_inserter(seconds),
                             [&](std::size_t member) { return ranks[member].seconds[p]; });
      const double median = median_of_ranks(seconds);
      const double own = ranks[rank].seconds[p];
      const double least = has_known_results(part) ? kMessageSeconds : kComputeSeconds;
      if (delay.empty() && own > kFactor * median && own - median > least) {
        delay =
            fmt::format("{} take {:.3g} ms, {:.1f} times the median of {} like ranks, {:.3g} ms",
                        name_of(part), 1e3 * own, own / median, members.size(), 1e3 * median);
      }
    }
    if (!fault.empty()) {
      found.wrong.push_back({static_cast<std::int64_t>(rank), fault});
    }
    if (!delay.empty()) {
      found.slow.push_back({static_cast<std::int64_t>(rank), delay});
    }
  }
  return found;
}

std::string text_of(comm::Communicator& world, const device::Device& device,
                    std::span<const SniffFinding> findings) {
  const std::vector<std::string> places =
      world.all_gather_texts(fmt::format("{} ({})", host_name(), device.text()));
  std::vector<std::string> texts;
  for (const SniffFinding& finding : findings) {
    texts.push_back(fmt::format("rank {} on {}: {}", finding.rank,
                                places[static_cast<std::size_t>(finding.rank)], finding.what));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace strata::train
