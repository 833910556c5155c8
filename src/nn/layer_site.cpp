#include "layer_kinds.hpp"

namespace strata::nn {

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

}  // namespace strata::nn
