#include "layer_reader.hpp"

#include <functional>
#include <vector>

#include <fmt/format.h>

#include "strata/core/text.hpp"

namespace strata::nn {
namespace {

using Maker = std::function<std::unique_ptr<Layer>(LayerLine&, const LayerSite&, LayerReader&)>;

Maker of_one_line(std::unique_ptr<Layer> (*make)(LayerLine&, const LayerSite&)) {
  return [make](LayerLine& line, const LayerSite& site, LayerReader&) { return make(line, site); };
}

/// Every kind of layer that a config can name.
const std::map<std::string, Maker>& layer_makers() {
  static const std::map<std::string, Maker> kMakers{
      {"dense", of_one_line(make_dense)},
      {"relu", of_one_line(make_activation)},
      {"gelu", of_one_line(make_activation)},
      {"tanh", of_one_line(make_activation)},
      {"sigmoid", of_one_line(make_activation)},
      {"softmax", of_one_line(make_softmax)},
      {"dropout", of_one_line(make_dropout)},
      {"flatten", of_one_line(make_flatten)},
      {"layer_norm", of_one_line(make_norm)},
      {"rms_norm", of_one_line(make_norm)},
      {"embedding", of_one_line(make_embedding)},
      {"attention", of_one_line(make_attention)},
      {"mlp", of_one_line(make_mlp)},
      {"head", of_one_line(make_head)},
      {"conv", of_one_line(make_convolution)},
      {"max_pool", of_one_line(make_pooling)},
      {"avg_pool", of_one_line(make_pooling)},
      {"global_avg_pool", of_one_line(make_global_pooling)},
      {"zero_pad", of_one_line(make_zero_pad)},
      {"zero_channels", of_one_line(make_zero_channels)},
      {"batch_norm", of_one_line(make_batch_norm)},
      {"group_norm", of_one_line(make_group_norm)},
      {"residual", make_residual}};
  return kMakers;
}

std::vector<std::string> layer_kind_names() {
  std::vector<std::string> names;
  for (const auto& [name, maker] : layer_makers()) {
    names.push_back(name);
  }
  return names;
}

}  // namespace

std::unique_ptr<Layer> LayerReader::next(LayerSite& site, const std::string& prefix) {
  LayerLine line(lines_[next_++]);
  const auto maker = layer_makers().find(line.kind());
  if (maker == layer_makers().end()) {
    if (line.kind() == "shortcut" || line.kind() == "end") {
      line.refuse(
          "it has no place here: a block is open from \"layer = residual\" to \"layer = end\", and "
          "has at most one shortcut");
    }
    const std::vector<std::string> kinds = layer_kind_names();
    line.refuse(fmt::format("there is no layer \"{}\"; the nearest is \"{}\", and there are {}",
                            line.kind(), nearest(line.kind(), kinds), fmt::join(kinds, ", ")));
  }
  const std::string own =
      line.take_option("name", fmt::format("{}{}", line.kind(), ++counters_[prefix + line.kind()]));
  if (own.empty() || own.find('/') != std::string::npos || own.front() == '.' ||
      own.back() == '.') {
    line.refuse("a name has at least one character, no '/', and no '.' at its ends");
  }
  site.name = prefix + own;
  if (!names_.insert(site.name).second) {
    line.refuse(
        fmt::format("the name \"{}\" is taken already; give another with name=", site.name));
  }
  auto layer = maker->second(line, site, *this);
  line.finish();
  return layer;
}

}  // namespace strata::nn
