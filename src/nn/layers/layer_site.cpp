#include <algorithm>

#include "layers/layer_kinds.hpp"

namespace strata::nn {
namespace {

/// The divisors of a count nearest to a number, as in "3 or 6"; at least 1.
std::string divisors_near(std::int64_t count, std::int64_t number) {
  std::int64_t below = 1;
  std::int64_t above = count;
  for (std::int64_t small = 1; small <= count / small; ++small) {
    if (count % small != 0) {
      continue;
    }
    for (const std::int64_t divisor : {small, count / small}) {
      if (divisor < number) {
        below = std::max(below, divisor);
      } else if (divisor > number) {
        above = std::min(above, divisor);
      }
    }
  }
  return above > number ? fmt::format("{} or {}", below, above) : fmt::format("{}", below);
}

}  // namespace

void LayerSite::require_numbers(const LayerLine& line) const {
  if (input_kind == InputKind::kTokenIds) {
    line.refuse("its input is token ids; put a line such as \"layer = embedding 128\" before it");
  }
}

void LayerSite::require_whole_rows(const LayerLine& line) const {
  if (input.placement == Placement::kFeatures) {
    line.refuse(
        "its input is split by feature, since a layer before it has parallel=column; put a dense "
        "layer with parallel=row between them");
  }
}

void LayerSite::require_token_rows(const LayerLine& line) const {
  require_numbers(line);
  require_whole_rows(line);
  if (input.shape.rank() != 2) {
    line.refuse(fmt::format(
        "its input is {} for a sample, it must be tokens x width, as an embedding gives",
        shape_text(input)));
  }
}

void LayerSite::require_image(const LayerLine& line) const {
  require_numbers(line);
  if (!is_image(input)) {
    line.refuse(
        fmt::format("its input is {} for a sample, it must be an image, channels x height x width",
                    shape_text(input)));
  }
}

void LayerSite::check_vocabulary(const LayerLine& line, std::int64_t given) const {
  if (given < vocabulary) {
    line.refuse(
        fmt::format("its vocabulary of {} is smaller than that of the data set, {}; leave "
                    "vocabulary= out, or give at least {}",
                    given, vocabulary, vocabulary));
  }
  if (given < shards) {
    line.refuse(
        fmt::format("its vocabulary of {} cannot be split into numerics.shards = {} (by "
                    "default parallel.tensor); use at most {}",
                    given, shards, given));
  }
}

void LayerSite::require_shards_divide(const LayerLine& line, std::int64_t count,
                                      std::string_view what) const {
  if (count % shards != 0) {
    refuse_split(line, count, what);
  }
}

void LayerSite::refuse_split(const LayerLine& line, std::int64_t count, std::string_view what,
                             std::string_view why) const {
  line.refuse(
      fmt::format("its {} {} are not divisible by numerics.shards = {} (by default "
                  "parallel.tensor){}; use a number of shards that divides {}, such as {}",
                  count, what, shards, why, count, divisors_near(count, shards)));
}

}  // namespace strata::nn
