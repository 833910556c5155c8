#include "strata/optim/outer_optimizer.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "strata/core/clock.hpp"
#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/grid/tree.hpp"
#include "strata/ops/parallel_for.hpp"
#include "strata/ops/reduce.hpp"
#include "strata/ops/update.hpp"

namespace strata::optim {
namespace {

/// out[i] = function(a[i], b[i]).
template <typename Function>
void combine(ops::Context& context, const ConstTensorView& a, const ConstTensorView& b,
             const TensorView& out, const Function& function) {
  constexpr std::int64_t kGrain = 1 << 14;
  if (context.device().is_planned()) {
    return;
  }
  with_floating(out.dtype(), [&]<typename T>(T) {
    const T* left = a.host<T>().data();
    const T* right = b.host<T>().data();
    T* into = out.host<T>().data();
    ops::parallel_for(context, out.count(), kGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        into[i] = function(left[i], right[i]);
      }
    });
  });
}

/// Where the pieces and the elements of each fragment lie.
struct Fragments {
  std::vector<OuterOptimizer::Piece> pieces;
  std::vector<grid::Range> piece_ranges;
  std::vector<grid::Range> element_ranges;
  std::int64_t elements = 0;
  std::int64_t largest = 0;
};

Fragments fragments_of(const OuterShare& share) {
  const std::vector<OwnedPiece> owned = share.owned.pieces();
  Fragments result;
  for (const grid::Range& of : share.fragments) {
    const auto first = std::ssize(result.pieces);
    const std::int64_t begin = result.elements;
    for (const OwnedPiece& piece : owned) {
      const std::int64_t layer = share.owned.layout.parameters[piece.parameter].spec.layer;
      if (of.begin <= layer && layer < of.end) {
        result.pieces.push_back({.owned = piece, .offset = result.elements});
        result.elements += (piece.range.count() + kBlock - 1) / kBlock * kBlock;
      }
    }
    result.piece_ranges.push_back({first, std::ssize(result.pieces)});
    result.element_ranges.push_back({begin, result.elements});
    result.largest = std::max(result.largest, result.elements - begin);
  }
  return result;
}

/// The elements that one rank sums: whole blocks.
grid::Range slice_of(std::int64_t elements, std::int64_t ranks, std::int64_t rank) {
  const grid::Range blocks = grid::even_part(elements / kBlock, ranks, rank);
  return {blocks.begin * kBlock, blocks.end * kBlock};
}

constexpr std::int64_t kMostMessageBytes = std::int64_t{1} << 30;

/// Adds the messages of so many bytes: MPI counts those of one in 32 bits.
template <typename Message>
void add_messages(std::vector<Message>& messages, std::byte* bytes, std::int64_t count,
                  std::int64_t peer) {
  for (std::int64_t at = 0; at < count; at += kMostMessageBytes) {
    const std::int64_t part = std::min(kMostMessageBytes, count - at);
    messages.push_back(
        {.payload = TensorView(bytes + at, Shape{part}, DType::kUint8), .peer = peer});
  }
}

}  // namespace

std::vector<nn::MemoryItem> OuterOptimizer::memory(std::int64_t ranks, const OuterShare& share) {
  const Fragments f = fragments_of(share);
  const std::int64_t element = size_bytes(share.dtype);
  const auto& [count, own] = share.islands;
  const std::int64_t states = (share.options.momentum != 0.0 ? 2 : 1) +
                              (share.options.exchange != ops::Packing::kFull ? own.count() + 1 : 0);
  const std::int64_t slice = slice_of(f.largest, ranks, 0).count();
  const auto packed = [&](std::int64_t elements) {
    return ops::packed_bytes(share.options.exchange, share.dtype, elements);
  };
  return {{"outer weights and momentum", states * f.elements * element},
          {"exchange of islands", (2 * f.largest + count * slice) * element +
                                      own.count() * packed(f.largest) + count * packed(slice) +
                                      packed(f.largest)}};
}

OuterOptimizer::OuterOptimizer(comm::Communicator& group, const OuterShare& share,
                               ops::Context context)
    : group_(group),
      context_(std::move(context)),
      options_(share.options),
      islands_(share.islands),
      dtype_(share.dtype) {
  require(group.size() == 1 || islands_.own.count() * group.size() == islands_.count,
          "{} islands on each of {} ranks, of {}", islands_.own.count(), group.size(),
          islands_.count);
  Fragments f = fragments_of(share);
  pieces_ = std::move(f.pieces);
  piece_ranges_ = std::move(f.piece_ranges);
  element_ranges_ = std::move(f.element_ranges);
  largest_ = f.largest;
  largest_slice_ = slice_of(largest_, group.size(), 0).count();
  for (const nn::PlacedParameter& placed : share.owned.layout.parameters) {
    averages_.push_back(placed.spec.rule == nn::ParameterRule::kAverage);
  }
  std::int64_t bytes = 0;
  for (const nn::MemoryItem& item : memory(group.size(), share)) {
    bytes += item.bytes;
  }
  memory_ = device::Buffer(context_.device(), bytes);
  std::int64_t offset_bytes = 0;
  const auto take = [&](std::int64_t elements, DType type) {
    const TensorView view = memory_.view(offset_bytes, Shape{elements}, type);
    offset_bytes += view.bytes();
    return view;
  };
  weights_ = take(f.elements, dtype_);
  if (has_momentum()) {
    momentum_ = take(f.elements, dtype_);
  }
  for (std::int64_t i = 0; rounds() && i < islands_.own.count() + 1; ++i) {
    errors_.push_back(take(f.elements, dtype_));
  }
  scratch_ = take(largest_, dtype_);
  rounded_ = take(largest_, dtype_);
  parts_ = take(islands_.count * largest_slice_, dtype_);
  sent_ = take(islands_.own.count() * packed(largest_), DType::kUint8);
  received_ = take(islands_.count * packed(largest_slice_), DType::kUint8);
  sums_ = take(packed(largest_), DType::kUint8);
  require(offset_bytes == bytes, "{} bytes of {} planned ones", offset_bytes, bytes);
}

std::span<const OuterOptimizer::Piece> OuterOptimizer::pieces(std::size_t fragment) const {
  const grid::Range& range = piece_ranges_[fragment];
  return std::span(pieces_).subspan(static_cast<std::size_t>(range.begin),
                                    static_cast<std::size_t>(range.count()));
}

std::vector<OuterOptimizer::Piece> OuterOptimizer::summed_pieces() const {
  std::vector<Piece> summed;
  for (std::size_t f = 0; f < element_ranges_.size(); ++f) {
    const grid::Range own = slice(f, group_.rank());
    const std::int64_t first = element_ranges_[f].begin;
    for (Piece piece : pieces(f)) {
      const std::int64_t begin = std::max(piece.offset, first + own.begin);
      const std::int64_t end = std::min(piece.offset + piece.owned.range.count(), first + own.end);
      if (begin < end) {
        const std::int64_t skipped = begin - piece.offset;
        piece.owned.range = {piece.owned.range.begin + skipped,
                             piece.owned.range.begin + skipped + end - begin};
        piece.offset = begin;
        summed.push_back(piece);
      }
    }
  }
  return summed;
}

grid::Range OuterOptimizer::slice(std::size_t fragment, std::int64_t rank) const {
  return slice_of(element_ranges_[fragment].count(), group_.size(), rank);
}

std::int64_t OuterOptimizer::packed(std::int64_t elements) const {
  return ops::packed_bytes(options_.exchange, dtype_, elements);
}

std::byte* OuterOptimizer::packed_difference(std::int64_t own_island, std::int64_t element) const {
  return sent_.raw() + own_island * packed(largest_) + packed(element);
}

void OuterOptimizer::pack(const TensorView& values, const TensorView& error, std::byte* into) {
  const std::span<std::byte> bytes(into, static_cast<std::size_t>(packed(values.count())));
  if (rounds()) {
    combine(context_, values, error, values, [](auto value, auto left) { return value + left; });
  }
  ops::pack(context_, values, options_.exchange, bytes);
  if (rounds()) {
    const TensorView stored = rounded_.flat_slice(0, values.count());
    ops::unpack(context_, bytes, options_.exchange, stored);
    combine(context_, values, stored, error, [](auto value, auto sent) { return value - sent; });
  }
}

void OuterOptimizer::add(std::size_t fragment, std::int64_t own_island, const ReadWeights& read) {
  require(phase_ == Phase::kIdle, "a difference while an exchange is under way");
  const grid::Range& elements = element_ranges_[fragment];
  const TensorView difference = scratch_.flat_slice(0, elements.count());
  std::fill_n(difference.raw(), difference.bytes(), std::byte{0});
  for (const Piece& piece : pieces(fragment)) {
    const TensorView of =
        difference.flat_slice(piece.offset - elements.begin, piece.owned.range.count());
    read(piece, of);
    combine(context_, weights(piece), of, of, [](auto outer, auto own) { return outer - own; });
  }
  pack(difference,
       rounds() ? errors_[static_cast<std::size_t>(own_island)].flat_slice(elements.begin,
                                                                           elements.count())
                : TensorView(),
       packed_difference(own_island, 0));
}

void OuterOptimizer::start(std::size_t fragment, std::vector<std::int64_t> present) {
  fragment_ = fragment;
  present_ = std::move(present);
  phase_ = Phase::kDifferences;
  const std::int64_t own = islands_.own.count();
  std::vector<comm::Outgoing> sends;
  std::vector<comm::Incoming> receives;
  const std::int64_t mine = packed(slice(fragment, group_.rank()).count());
  for (const std::int64_t island : present_) {
    const std::int64_t peer = group_.size() == 1 ? 0 : island / own;
    if (peer != group_.rank()) {
      add_messages(receives, received_.raw() + island * packed(largest_slice_), mine, peer);
      continue;
    }
    for (std::int64_t step = 1; step < group_.size(); ++step) {
      const std::int64_t to = (group_.rank() + step) % group_.size();
      const grid::Range theirs = slice(fragment, to);
      add_messages(sends, packed_difference(island - islands_.own.begin, theirs.begin),
                   packed(theirs.count()), to);
    }
  }
  messages_ = group_.exchange(sends, receives, comm::Tag::kReduce);
}

void OuterOptimizer::fold(std::span<const TensorView> parts) {
  ops::fold(context_, parts, grid::reduction_steps(grid::SumTree(std::ssize(parts))));
}

void OuterOptimizer::average(std::span<const std::int64_t> present, const ReadDifference& read) {
  require(group_.size() == 1 && element_ranges_.size() == 1, "an average of {} fragments",
          element_ranges_.size());
  std::vector<TensorView> parts;
  for (std::size_t at = 0; at < present.size(); ++at) {
    parts.push_back(parts_.flat_slice(static_cast<std::int64_t>(at) * largest_slice_, largest_));
    for (const Piece& piece : pieces_) {
      read(at, piece, part(parts.back(), piece));
    }
  }
  fold(parts);
  update(0, parts.front(), std::ssize(parts));
}

void OuterOptimizer::sum() {
  const grid::Range own = slice(fragment_, group_.rank());
  const std::int64_t count = packed(own.count());
  std::vector<TensorView> parts;
  for (const std::int64_t island : present_) {
    const bool here = islands_.own.begin <= island && island < islands_.own.end;
    const std::byte* const from = here ? packed_difference(island - islands_.own.begin, own.begin)
                                       : received_.raw() + island * packed(largest_slice_);
    parts.push_back(parts_.flat_slice(std::ssize(parts) * largest_slice_, own.count()));
    ops::unpack(context_, {from, static_cast<std::size_t>(count)}, options_.exchange, parts.back());
  }
  fold(parts);
  pack(parts.front(),
       rounds()
           ? errors_.back().flat_slice(element_ranges_[fragment_].begin + own.begin, own.count())
           : TensorView(),
       sums_.raw() + packed(own.begin));
  std::vector<comm::Outgoing> sends;
  std::vector<comm::Incoming> receives;
  for (std::int64_t step = 1; step < group_.size(); ++step) {
    const std::int64_t from = (group_.rank() + group_.size() - step) % group_.size();
    const grid::Range theirs = slice(fragment_, from);
    add_messages(receives, sums_.raw() + packed(theirs.begin), packed(theirs.count()), from);
    add_messages(sends, sums_.raw() + packed(own.begin), packed(own.count()),
                 (group_.rank() + step) % group_.size());
  }
  messages_ = group_.exchange(sends, receives, comm::Tag::kGather);
  phase_ = Phase::kSums;
}

void OuterOptimizer::advance() {
  if (messages_.test() && phase_ == Phase::kDifferences) {
    sum();
  }
}

void OuterOptimizer::wait(comm::Request& messages) {
  const double begin = now_seconds();
  messages.wait();
  exposed_seconds_ += now_seconds() - begin;
}

void OuterOptimizer::finish() {
  require(is_under_way(), "no exchange of islands is under way");
  if (phase_ == Phase::kDifferences) {
    wait(messages_);
    sum();
  }
  wait(messages_);
  phase_ = Phase::kIdle;
  const TensorView all = scratch_.flat_slice(0, element_ranges_[fragment_].count());
  ops::unpack(context_, {sums_.raw(), static_cast<std::size_t>(packed(all.count()))},
              options_.exchange, all);
  update(fragment_, all, std::ssize(present_));
}

void OuterOptimizer::merge(const Piece& piece, std::int64_t first, const ConstTensorView& own,
                           double mix, const TensorView& into) {
  const double kept = averages_[piece.owned.parameter] ? 0.0 : mix;
  const ConstTensorView outer = weights(piece).flat_slice(first, into.count());
  combine(context_, own, outer, into, [kept]<typename T>(T before, T after) {
    const auto share = static_cast<T>(kept);
    return share == T{0} ? after : share * before + (T{1} - share) * after;
  });
}

void OuterOptimizer::update(std::size_t fragment, const ConstTensorView& sum,
                            std::int64_t islands) {
  const double mean = 1.0 / static_cast<double>(islands);
  for (const Piece& piece : pieces(fragment)) {
    const ConstTensorView of =
        sum.flat_slice(piece.offset - element_ranges_[fragment].begin, piece.owned.range.count());
    if (averages_[piece.owned.parameter]) {
      ops::sgd_update(context_, weights(piece), of, {},
                      {.learning_rate = 1.0, .gradient_scale = mean});
      continue;
    }
    ops::sgd_update(context_, weights(piece), of, has_momentum() ? momentum(piece) : TensorView(),
                    {.learning_rate = options_.rate,
                     .momentum = options_.momentum,
                     .nesterov = has_momentum() ? Switch::kOn : Switch::kOff,
                     .gradient_scale = mean});
  }
}

}  // namespace strata::optim
