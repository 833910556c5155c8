#include "strata/nn/parameter.hpp"

#include <algorithm>
#include <cmath>

#include "strata/core/error.hpp"
#include "strata/core/random.hpp"
#include "strata/device/host_copy.hpp"

namespace strata::nn {

namespace {

/// The slices of a parameter that a rank holds, without their offsets.
std::vector<PlacedParameter> slices_of(const ParameterSpec& spec, std::int64_t index,
                                       const Shards& shards) {
  std::vector<PlacedParameter> slices;
  if (spec.split == kNotSplit || shards.count == 1) {
    slices.push_back({.spec = spec, .index = index, .shard = 0, .shape = spec.shape});
    return slices;
  }
  for (std::int64_t s = shards.own.begin; s < shards.own.end; ++s) {
    std::vector<std::int64_t> extents(spec.shape.extents().begin(), spec.shape.extents().end());
    const grid::Range indices =
        shard_part(spec.shape[static_cast<std::size_t>(spec.split)], spec.unit, shards.count, s);
    extents[static_cast<std::size_t>(spec.split)] = indices.count();
    slices.push_back({.spec = spec,
                      .index = index,
                      .shard = s,
                      .shape = Shape(extents),
                      .first_index = indices.begin});
  }
  return slices;
}

}  // namespace

ParameterLayout layout_of(const std::vector<ParameterSpec>& all, const grid::Range& layers,
                          const Shards& shards) {
  return layout_of(all, std::span(&layers, 1), shards);
}

ParameterLayout layout_of(const std::vector<ParameterSpec>& all,
                          std::span<const grid::Range> chunks, const Shards& shards, Placed which) {
  constexpr std::int64_t kBlock = ParameterLayout::kBlock;
  ParameterLayout layout;
  const auto place = [&](const ParameterSpec& spec, std::int64_t index) {
    const std::int64_t begin = layout.elements;
    for (PlacedParameter& slice : slices_of(spec, index, shards)) {
      slice.offset = layout.elements;
      layout.elements += (slice.shape.count() + kBlock - 1) / kBlock * kBlock;
      layout.parameters.push_back(std::move(slice));
    }
    return grid::Range{begin, layout.elements};
  };
  const auto here = [&](const ParameterSpec& spec) {
    return has_gradient(spec) == (which == Placed::kWithGradients) &&
           std::ranges::any_of(chunks, [&](const grid::Range& layers) {
             return spec.layer >= layers.begin && spec.layer < layers.end;
           });
  };
  const auto is_borrowed = [](const ParameterSpec& spec) {
    return spec.ownership == Ownership::kBorrowed;
  };
  // The last layer borrows, if one does.
  const auto from_end = std::find_if(all.rbegin(), all.rend(), is_borrowed);
  const auto borrowed = from_end == all.rend() ? all.end() : std::prev(from_end.base());
  bool owner_here = false;
  std::size_t begun = 0;
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    for (auto spec = std::ranges::lower_bound(all, chunks[chunk].begin, {}, &ParameterSpec::layer);
         spec != all.end() && spec->layer < chunks[chunk].end; ++spec) {
      if (!here(*spec) || is_borrowed(*spec)) {
        continue;
      }
      for (; begun < chunk; ++begun) {
        layout.chunk_begins.push_back(layout.elements);
      }
      const grid::Range placed = place(*spec, spec - all.begin());
      if (borrowed != all.end() && borrowed->name == spec->name) {
        layout.shared = placed;
        owner_here = true;
      }
    }
  }
  layout.weight_elements = layout.elements;
  if (borrowed != all.end() && here(*borrowed)) {
    layout.borrowed = place(*borrowed, borrowed - all.begin());
    layout.weight_elements = owner_here ? layout.weight_elements : layout.elements;
  }
  return layout;
}

namespace {

/// The index in the whole parameter of element `local` of a slice.
class GlobalIndex {
 public:
  explicit GlobalIndex(const PlacedParameter& placed) {
    const Shape& whole = placed.spec.shape;
    if (placed.shape == whole) {
      return;
    }
    const auto split = static_cast<std::size_t>(placed.spec.split);
    for (std::size_t d = split + 1; d < whole.rank(); ++d) {
      inner_ *= whole[d];
    }
    local_run_ = placed.shape[split] * inner_;
    global_run_ = whole[split] * inner_;
    first_ = placed.first_index * inner_;
  }

  [[nodiscard]] std::int64_t operator()(std::int64_t local) const {
    return local_run_ == 0 ? local : local / local_run_ * global_run_ + first_ + local % local_run_;
  }

 private:
  std::int64_t inner_ = 1;
  std::int64_t local_run_ = 0;
  std::int64_t global_run_ = 0;
  std::int64_t first_ = 0;
};

}  // namespace

void initialise(const PlacedParameter& placed, std::uint64_t seed, std::int64_t begin,
                const TensorView& weight) {
  const ParameterSpec& spec = placed.spec;
  require(begin >= 0 && begin + weight.count() <= placed.shape.count(),
          "elements {} + {} are outside a slice of {}", begin, weight.count(), placed.shape.text());
  const RandomStream stream(seed, RandomPurpose::kInitialise, subject_of(spec.name));
  const auto fan_in = static_cast<double>(spec.fan_in);
  const auto fan_out = static_cast<double>(spec.fan_out);
  const auto value = [&](std::uint64_t i) {
    switch (spec.initializer) {
      case Initializer::kFanIn:
        return (2.0 * stream.uniform(i) - 1.0) / std::sqrt(fan_in);
      case Initializer::kGlorot:
        return (2.0 * stream.uniform(i) - 1.0) * std::sqrt(6.0 / (fan_in + fan_out));
      case Initializer::kHe:
        return stream.normal(i) * std::sqrt(2.0 / fan_in);
      case Initializer::kNormal:
        return stream.normal(i) * spec.deviation;
      case Initializer::kOnes:
        return 1.0;
      case Initializer::kZeros:
        break;
    }
    return 0.0;
  };
  const GlobalIndex global(placed);
  device::write_from_host(weight, [&](std::int64_t first, const TensorView& piece) {
    with_stored(piece.dtype(), [&]<typename T>(T) {
      const std::span<T> elements = piece.host<T>();
      for (std::size_t i = 0; i < elements.size(); ++i) {
        const std::int64_t index = global(begin + first + static_cast<std::int64_t>(i));
        elements[i] =
            static_cast<T>(static_cast<Compute<T>>(value(static_cast<std::uint64_t>(index))));
      }
    });
  });
}

}  // namespace strata::nn
