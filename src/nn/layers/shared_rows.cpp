#include "layers/shared_rows.hpp"

#include <algorithm>

#include "strata/core/error.hpp"
#include "strata/grid/tree.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/reduce.hpp"

#include "layers/shard_parts.hpp"

namespace strata::nn {

void SharedRows::add(std::size_t parameter, const ParameterSpec& copies, std::int64_t shared,
                     std::int64_t unit) {
  if (group_ == 1 || shared == 0) {
    return;
  }
  const Rows rows{.parameter = parameter,
                  .elements = copies.shape.count() / copies.shape[0],
                  .own = copies.unit - shared,
                  .shared = shared,
                  .unit = unit,
                  .first_stored = stored_block_,
                  .first_copy = copy_block_};
  // Each begins where a slice in an arena may.
  constexpr std::int64_t kBlock = ParameterLayout::kBlock;
  const auto padded = [](std::int64_t elements) {
    return (elements + kBlock - 1) / kBlock * kBlock;
  };
  stored_block_ += padded(slice(rows, 0).count());
  copy_block_ += padded(copies.unit * rows.elements);
  rows_.push_back(rows);
}

void SharedRows::to_stored(std::vector<ParameterSpec>& parameters) const {
  for (const Rows& rows : rows_) {
    ParameterSpec& spec = parameters[rows.parameter];
    spec.shape =
        spec.shape.rank() == 1 ? Shape{stored_rows(rows)} : Shape{stored_rows(rows), rows.elements};
    spec.unit = rows.unit;
  }
}

std::vector<TensorSpec> SharedRows::workspace(const PassShape& pass) const {
  const auto blocks = [&](std::int64_t shards, std::int64_t elements) {
    return TensorSpec{{rows_.empty() ? 0 : shards, elements}, pass.dtype};
  };
  const std::int64_t own = pass.shards.own.count();
  const bool gathers = own < pass.shards.count;
  const ShardParts<TensorSpec> gradients = shard_parts(pass, copy_block_);
  return slot_list<Workspace, TensorSpec>(
      {{Workspace::kStoredAllShards, blocks(gathers ? pass.shards.count : 0, stored_block_)},
       {Workspace::kStoredOwnShards, blocks(gathers ? own : 0, stored_block_)},
       {Workspace::kCopies, blocks(own, copy_block_)},
       {Workspace::kGradientsAllShards, gradients.all_shards},
       {Workspace::kGradientsOwnShards,
        gathers ? gradients.own_shards
                : TensorSpec{{0, copy_block_}, gradients.own_shards.dtype}}});
}

std::vector<SharedRows::Run> SharedRows::runs(const Rows& rows) const {
  std::vector<Run> runs;
  std::int64_t at = 0;
  const auto add = [&](std::int64_t count, const grid::Range& shards, std::int64_t first_row) {
    if (count > 0) {
      runs.push_back({{at, at + count * rows.elements}, shards, first_row * rows.elements});
      at = runs.back().stored.end;
    }
  };
  for (std::int64_t head = 0; head < heads_; ++head) {
    const grid::Range shards{head * group_, (head + 1) * group_};
    for (std::int64_t s = shards.begin; s < shards.end; ++s) {
      add(rows.own, {s, s + 1}, 0);
    }
    add(rows.shared, shards, rows.own);
  }
  return runs;
}

grid::Range SharedRows::slice(const Rows& rows, std::int64_t shard) const {
  const grid::Range part = shard_part(stored_rows(rows), rows.unit, shards_, shard);
  return {part.begin * rows.elements, part.end * rows.elements};
}

SharedRows::Overlap SharedRows::overlap(const Rows& rows, const Run& run,
                                        std::int64_t shard) const {
  const grid::Range part = slice(rows, shard);
  const std::int64_t begin = std::max(part.begin, run.stored.begin);
  return {.in_run = begin - run.stored.begin,
          .in_slice = begin - part.begin,
          .count = std::max<std::int64_t>(0, std::min(part.end, run.stored.end) - begin)};
}

void SharedRows::make_copies(const LayerPass& pass, const TensorSlots& workspace) const {
  const grid::Range& own = pass.shards.own();
  const bool gathers = pass.shards.ranks() > 1;
  const auto stored = [&](const Rows& rows, std::int64_t local) {
    const TensorView& weights = pass.weights[rows.parameter][static_cast<std::size_t>(local)];
    return weights.flat_slice(0, weights.count());
  };
  const TensorView& all = workspace.at(Workspace::kStoredAllShards);
  if (gathers) {
    const TensorView& mine = workspace.at(Workspace::kStoredOwnShards);
    for (const Rows& rows : rows_) {
      for (std::int64_t i = 0; i < own.count(); ++i) {
        const TensorView weights = stored(rows, i);
        ops::copy(pass.context, weights,
                  mine.flat_slice(i * stored_block_ + rows.first_stored, weights.count()));
      }
    }
    pass.shards.all_gather_parts(mine, all);
  }
  const TensorView& copies = workspace.at(Workspace::kCopies);
  for (const Rows& rows : rows_) {
    for (const Run& run : runs(rows)) {
      const std::int64_t begin = std::max(own.begin, run.shards.begin);
      const std::int64_t end = std::min(own.end, run.shards.end);
      for (std::int64_t t = 0; t < shards_ && begin < end; ++t) {
        const Overlap part = overlap(rows, run, t);
        if (part.count == 0) {
          continue;
        }
        const TensorView from =
            gathers
                ? all.flat_slice(t * stored_block_ + rows.first_stored + part.in_slice, part.count)
                : stored(rows, t).flat_slice(part.in_slice, part.count);
        for (std::int64_t s = begin; s < end; ++s) {
          ops::copy(pass.context, from,
                    copies.flat_slice((s - own.begin) * copy_block_ + rows.first_copy +
                                          run.first_copied + part.in_run,
                                      part.count));
        }
      }
    }
  }
}

ParameterViews SharedRows::copies_in(const LayerPass& pass, const Rows& rows,
                                     const TensorView& blocks) const {
  const std::int64_t count = rows.own + rows.shared;
  const bool is_vector = pass.weights[rows.parameter].front().shape().rank() == 1;
  ParameterViews views;
  for (std::int64_t i = 0; i < pass.shards.own().count(); ++i) {
    views.push_back(blocks.flat_slice(i * copy_block_ + rows.first_copy, count * rows.elements)
                        .reshaped(is_vector ? Shape{count} : Shape{count, rows.elements}));
  }
  return views;
}

void SharedRows::with_copies(const LayerPass& given, const TensorSlots& workspace,
                             const std::function<void(const LayerPass&)>& body, Reads reads) const {
  if (rows_.empty()) {
    body(given);
    return;
  }
  require(given.shards.shards() == shards_, "{} shards in a layer for {}", given.shards.shards(),
          shards_);
  if (reads == Reads::kWeights) {
    make_copies(given, workspace);
  }
  std::vector<ParameterViews> weights(given.weights.begin(), given.weights.end());
  LayerPass pass = given;
  const TensorView& gradients = workspace.at(
      given.shards.ranks() > 1 ? Workspace::kGradientsOwnShards : Workspace::kGradientsAllShards);
  // Of this microbatch alone, whether it is added to others or not.
  if (!pass.weight_gradients.empty() && pass.accumulate == ops::Accumulate::kAdd) {
    ops::fill_zero(pass.context, gradients);
  }
  for (const Rows& rows : rows_) {
    weights[rows.parameter] = copies_in(given, rows, workspace.at(Workspace::kCopies));
    if (!pass.weight_gradients.empty() && !pass.weight_gradients[rows.parameter].front().empty()) {
      pass.weight_gradients[rows.parameter] = copies_in(given, rows, gradients);
    }
  }
  pass.weights = weights;
  body(pass);
}

void SharedRows::add_gradients(const LayerPass& given, const TensorSlots& workspace) const {
  const bool wanted = std::ranges::any_of(rows_, [&](const Rows& rows) {
    return !given.weight_gradients[rows.parameter].front().empty();
  });
  if (!wanted) {
    return;
  }
  const TensorView& all = workspace.at(Workspace::kGradientsAllShards);
  if (given.shards.ranks() > 1) {
    given.shards.all_gather_parts(workspace.at(Workspace::kGradientsOwnShards), all);
  }
  const std::vector<ReductionStep> steps = grid::reduction_steps(grid::SumTree(group_));
  const grid::Range& own = given.shards.own();
  for (const Rows& rows : rows_) {
    const ParameterViews& gradients = given.weight_gradients[rows.parameter];
    if (gradients.front().empty()) {
      continue;
    }
    for (const Run& run : runs(rows)) {
      std::vector<TensorView> copies;
      for (std::int64_t s = run.shards.begin; s < run.shards.end; ++s) {
        copies.push_back(all.flat_slice(s * copy_block_ + rows.first_copy + run.first_copied,
                                        run.stored.count()));
      }
      if (copies.size() > 1) {
        ops::fold(given.context, copies, steps);
      }
      for (std::int64_t t = own.begin; t < own.end; ++t) {
        if (const Overlap part = overlap(rows, run, t); part.count > 0) {
          add_gradient(given, copies.front().flat_slice(part.in_run, part.count),
                       gradients[static_cast<std::size_t>(t - own.begin)].flat_slice(part.in_slice,
                                                                                     part.count));
        }
      }
    }
  }
}

}  // namespace strata::nn
