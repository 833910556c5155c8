#include "model/layer_reader.hpp"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/familiar_names.hpp"
#include "strata/core/text.hpp"

namespace strata::nn {
namespace {

using Maker = std::unique_ptr<Layer> (*)(LayerLine&, const LayerSite&);

/// The kinds of layers that one line spells.
const std::map<std::string, Maker>& layer_makers() {
  static const std::map<std::string, Maker> kMakers = [] {
    std::map<std::string, Maker> makers{{"dense", make_dense},
                                        {"softmax", make_softmax},
                                        {"dropout", make_dropout},
                                        {"flatten", make_flatten},
                                        {"layer_norm", make_norm},
                                        {"rms_norm", make_norm},
                                        {"embedding", make_embedding},
                                        {"attention", make_attention},
                                        {"mlp", make_mlp},
                                        {"head", make_head},
                                        {"conv", make_convolution},
                                        {"max_pool", make_pooling},
                                        {"avg_pool", make_pooling},
                                        {"global_avg_pool", make_global_pooling},
                                        {"zero_pad", make_zero_pad},
                                        {"zero_channels", make_zero_channels},
                                        {"batch_norm", make_batch_norm},
                                        {"group_norm", make_group_norm}};
    for (const auto& [activation, name] : enum_table<ops::Activation>()) {
      if (activation != ops::Activation::kNone) {
        makers.emplace(name, make_activation);
      }
    }
    return makers;
  }();
  return kMakers;
}

constexpr std::string_view kResidual = "residual";

std::vector<std::string> layer_kind_names() {
  std::vector<std::string> names{std::string(kResidual)};
  for (const auto& [name, maker] : layer_makers()) {
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Reader {
 public:
  Reader(std::span<const std::string> lines, const LayerSite& site) : lines_(lines), site_(site) {}

  std::vector<ModelLayer> read() {
    while (next_ < lines_.size()) {
      read_next("");
    }
    return std::move(layers_);
  }

 private:
  /// Reads the next layer, or a whole residual block; names begin with `prefix`.
  void read_next(const std::string& prefix) {
    LayerLine line(lines_[next_++]);
    const auto maker = layer_makers().find(line.kind());
    if (maker == layer_makers().end() && line.kind() != kResidual) {
      refuse_kind(line);
    }
    const std::string name = take_name(line, prefix);
    if (line.kind() == kResidual) {
      read_residual(line, name);
      return;
    }
    site_.name = name;
    site_.table = table_ ? &*table_ : nullptr;
    const bool is_parallel = take_parallel(line);
    auto layer = maker->second(line, site_);
    line.finish();
    if (is_parallel) {
      add(std::move(layer), {.input = layers_.back().sources.input, .added = last_});
    } else {
      add(std::move(layer), {.input = last_});
    }
  }

  /// Whether a sublayer reads what the sublayer before it reads, and adds to what that makes.
  /// Source: Wang, Komatsuzaki, "GPT-J-6B", 2021; Black et al., "GPT-NeoX-20B", arXiv 2204.06745.
  bool take_parallel(LayerLine& line) {
    const auto is_sublayer = [](std::string_view kind) {
      return kind == "attention" || kind == "mlp";
    };
    if (!is_sublayer(line.kind()) ||
        line.take_enum("parallel_residual", Switch::kOff) == Switch::kOff) {
      return false;
    }
    if (layers_.empty() || !is_sublayer(LayerLine(lines_[next_ - 2]).kind()) ||
        layers_.back().sources.added) {
      line.refuse(
          "parallel_residual=on is for an attention or mlp line right behind another that "
          "has no parallel_residual");
    }
    if (LayerLine(line.text()).take_enum("residual", Switch::kOn) == Switch::kOff) {
      line.refuse("parallel_residual=on adds what residual=off leaves out; leave one of them out");
    }
    return true;
  }

  [[noreturn]] static void refuse_kind(const LayerLine& line) {
    if (line.kind() == "shortcut" || line.kind() == "end") {
      line.refuse(
          "it has no place here: a block is open from \"layer = residual\" to \"layer = end\", and "
          "has at most one shortcut");
    }
    const std::vector<std::string> kinds = layer_kind_names();
    if (const auto meant = meant_by(line.kind(), kinds)) {
      line.refuse(
          fmt::format("there is no layer \"{}\"; write \"layer = {}{}\"", line.kind(), meant->name,
                      line.text().substr(line.text().find(line.kind()) + line.kind().size())));
    }
    line.refuse(fmt::format("there is no layer \"{}\"; the nearest is \"{}\", and there are {}",
                            line.kind(), nearest(line.kind(), kinds), fmt::join(kinds, ", ")));
  }

  std::string take_name(LayerLine& line, const std::string& prefix) {
    const std::string own = line.take_option(
        "name", fmt::format("{}{}", line.kind(), ++counters_[prefix + line.kind()]));
    if (own.empty() || own.find('/') != std::string::npos || own.front() == '.' ||
        own.back() == '.') {
      line.refuse("a name has at least one character, no '/', and no '.' at its ends");
    }
    std::string name = prefix + own;
    if (!names_.insert(name).second) {
      line.refuse(fmt::format("the name \"{}\" is taken already; give another with name=", name));
    }
    return name;
  }

  void add(std::unique_ptr<Layer> layer, const LayerSources& sources) {
    const std::vector<ParameterSpec> parameters = layer->parameters();
    if (!parameters.empty() && parameters.back().ownership == Ownership::kBorrowed) {
      table_.reset();
    }
    if (site_.input_kind == InputKind::kTokenIds) {
      table_ = parameters.front();
      site_.input_kind = InputKind::kNumbers;
    }
    site_.input = layer->output();
    last_ = static_cast<std::int64_t>(layers_.size());
    layers_.push_back({.layer = std::move(layer), .sources = sources});
  }

  /// Reads layers up to a line of one of the kinds `until`, which stays unread.
  void read_until(const LayerLine& opening, const std::string& prefix,
                  std::initializer_list<std::string_view> until) {
    while (next_ < lines_.size()) {
      const LayerLine line(lines_[next_]);
      if (std::find(until.begin(), until.end(), line.kind()) != until.end()) {
        return;
      }
      read_next(prefix);
      if (layers_.back().layer->is_view()) {
        line.refuse("it has no place in a residual block; put it before or behind the block");
      }
    }
    opening.refuse(fmt::format("the block has no \"layer = {}\" at its end", *until.begin()));
  }

  /// Reads a residual block up to its "end": its input, or the shortcut's output, is added to the
  /// output of its layers.
  /// Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", arXiv 1512.03385.
  void read_residual(LayerLine& line, const std::string& name) {
    site_.require_numbers(line);
    if (site_.vocabulary > 0) {
      line.refuse(
          "residual blocks are for samples that are no text; attention and mlp add their input "
          "themselves (residual=on)");
    }
    line.finish();
    const Port input = site_.input;
    const std::int64_t entered = last_;
    const std::string prefix = name + ".";
    const std::size_t before = layers_.size();
    read_until(line, prefix, {"end", "shortcut"});
    if (layers_.size() == before) {
      line.refuse("the block has no layer between \"residual\" and its end");
    }
    const Port output = site_.input;
    const std::int64_t made = last_;
    site_.input = input;
    last_ = entered;
    const std::size_t body_end = layers_.size();
    if (LayerLine opening(lines_[next_]); opening.kind() == "shortcut") {
      opening.finish();
      ++next_;
      read_until(opening, prefix + "shortcut.", {"end"});
      if (layers_.size() == body_end) {
        opening.refuse("the shortcut has no layer before the block's end; leave the line out");
      }
    }
    LayerLine end(lines_[next_++]);
    const ops::Activation activation = end.take_relu();
    end.finish();
    if (site_.input != output) {
      end.refuse(fmt::format(
          "the block's layers give {}, but its {} gives {}, and the two are added; put \"layer = "
          "shortcut\" and layers that give the same shape, split alike, before \"end\"",
          shape_text(output), layers_.size() == body_end ? "input" : "shortcut",
          shape_text(site_.input)));
    }
    site_.name = prefix + "end";
    if (!names_.insert(site_.name).second) {
      line.refuse(
          fmt::format("a layer in it has the name \"{}\", which its end has; give that "
                      "layer another with name=",
                      site_.name));
    }
    add(make_sum(site_, activation), {.input = made, .added = last_});
  }

  std::span<const std::string> lines_;
  LayerSite site_;
  std::size_t next_ = 0;
  /// The tensor that the next layer reads.
  std::int64_t last_ = kModelInput;
  /// The owner of the table that a tied head uses.
  std::optional<ParameterSpec> table_;
  std::map<std::string, int> counters_;
  std::set<std::string> names_;
  std::vector<ModelLayer> layers_;
};

}  // namespace

std::vector<ModelLayer> read_layers(std::span<const std::string> lines, const LayerSite& site) {
  return Reader(lines, site).read();
}

}  // namespace strata::nn
