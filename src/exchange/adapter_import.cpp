#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/exchange/model_files.hpp"

#include "families.hpp"
#include "peft_config.hpp"

namespace strata::exchange {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMatrix = ".weight";
constexpr std::array<std::string_view, 5> kProducts{"qkv", "output", "up", "gate", "down"};

/// The last part of a name with dots.
std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

/// The product of "blocks.0.mlp.up.weight", "blocks.0.mlp.up"; empty for what has no adapters.
std::string product_of(const std::string& parameter) {
  const std::string name = parameter.substr(0, parameter.rfind('.'));
  const bool has = parameter.starts_with("blocks.") && parameter.ends_with(kMatrix) &&
                   std::ranges::find(kProducts, last_part(name)) != kProducts.end();
  return has ? name : "";
}

/// The matrices that PEFT adds to a module of the model.
struct Module {
  const PublishedTensor* weight = nullptr;
  const io::StoredTensor* a = nullptr;  ///< rank x inputs
  const io::StoredTensor* b = nullptr;  ///< outputs x rank
};

/// A product of strata, the modules that make it up, and where their adapters lie.
struct Product {
  Shape shape;
  std::vector<const io::StoredTensor*> inputs;  ///< the different A, one below the other
  std::vector<AdapterPiece> outputs;            ///< of B
};

class AdapterReader {
 public:
  AdapterReader(const fs::path& directory, const PublishedModel& model)
      : directory_(directory),
        model_(model),
        config_(read_peft_config(directory)),
        weights_(published_tensors(model, MatrixOrder::kInputsFirst)),
        files_(io::TensorFiles::open_safetensors(directory / kPeftWeights)),
        width_(model.options.width) {}

  ForeignAdapters read() {
    require_targets();
    for (const PublishedTensor& weight : weights_) {
      if (!product_of(weight.rows.front().parameter).empty()) {
        add(weight);
      }
    }
    require_all_used();
    require_whole_model();
    std::int64_t stacked = 1;
    for (const auto& [name, product] : products_) {
      stacked = std::max(stacked, std::ssize(product.inputs));
    }
    const std::int64_t rank = stacked * config_.rank;
    if (rank > width_) {
      fail(ExitCode::kData,
           "{}: adapters of rank {}{} were given, and the model's width is {}; strata's have a "
           "rank of at most the width: merge them into the weights before the import",
           directory_.string(), rank,
           stacked > 1 ? fmt::format(" ({} A of one product below each other)", stacked) : "",
           width_);
    }
    ForeignAdapters result{.options = {.rank = rank,
                                       .alpha = config_.alpha * static_cast<double>(stacked),
                                       .products = fmt::format("{}", fmt::join(adapted_, ","))},
                           .files = std::move(files_),
                           .parameters = {},
                           .stacked = stacked,
                           .config = config_.text,
                           .dropout = config_.dropout};
    for (const auto& [name, product] : products_) {
      std::vector<AdapterPiece> pieces;
      for (std::int64_t i = 0; i < std::ssize(product.inputs); ++i) {
        pieces.push_back({.stored = product.inputs[static_cast<std::size_t>(i)],
                          .first = 0,
                          .rows = {i * config_.rank, (i + 1) * config_.rank},
                          .column = 0});
      }
      result.parameters.push_back(
          {nn::parameter_name(name, nn::kAdapterA), {rank, product.shape[1]}, std::move(pieces)});
      result.parameters.push_back(
          {nn::parameter_name(name, nn::kAdapterB), {product.shape[0], rank}, product.outputs});
    }
    return result;
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ExitCode::kData, "{}: {}", directory_.string(),
         fmt::vformat(format, fmt::make_format_args(args...)));
  }

  /// The module of a weight, in adapters of a composite under the name that it has there.
  [[nodiscard]] std::string module_of(const PublishedTensor& weight) const {
    const auto without_end = [](const std::string& name) {
      return name.substr(0, name.size() - kMatrix.size());
    };
    if (!model_.part_of.empty()) {
      for (const std::string& name : names_in_files(model_, weight.name)) {
        if (files_.tensors().contains(peft_name(without_end(name), "lora_A"))) {
          return without_end(name);
        }
      }
    }
    return without_end(weight.name);
  }

  /// Refuses modules of the config that have no adapters in strata.
  void require_targets() const {
    std::set<std::string> known;
    for (const std::string& target : config_.targets) {
      bool found = false;
      for (const PublishedTensor& weight : weights_) {
        const bool has = !product_of(weight.rows.front().parameter).empty();
        found = found || (has && is_target(module_of(weight), target));
        if (has) {
          known.insert(last_part(module_of(weight)));
        }
      }
      if (!found) {
        refuse("target_modules names {}; strata has adapters for {} of this model",
               printable(target), fmt::join(known, ", "));
      }
    }
  }

  /// The matrix of a module; null where the files have none.
  const io::StoredTensor* find(const std::string& name, const Shape& shape) {
    const auto found = files_.tensors().find(name);
    if (found == files_.tensors().end()) {
      return nullptr;
    }
    const io::StoredTensor& stored = found->second;
    if (stored.shape != shape) {
      refuse(
          "tensor {} is {}, {} was expected of rank {} and this base model; use the model that "
          "the adapters were trained on",
          name, stored.shape.text(), shape.text(), config_.rank);
    }
    if (stored.type == io::StoredType::kOther) {
      refuse(
          "tensor {} holds no floating-point numbers of 16, 32 or 64 bits; save the adapters "
          "again",
          name);
    }
    std::vector<double> numbers(static_cast<std::size_t>(shape.count()));
    io::read_elements(stored, 0, TensorView(std::span<double>(numbers), shape));
    if (!std::ranges::all_of(numbers, [](double number) { return std::isfinite(number); })) {
      refuse("tensor {} holds numbers that are not finite; save the adapters again", name);
    }
    used_.insert(name);
    return &stored;
  }

  /// Adds a module's adapter, if it has one, to the products whose rows the module holds.
  void add(const PublishedTensor& weight) {
    const std::string module = module_of(weight);
    const bool turned = weight.order == MatrixOrder::kInputsFirst;
    const Shape shape = turned ? Shape{weight.shape[1], weight.shape[0]} : weight.shape;
    const std::string a_name = peft_name(module, "lora_A");
    const std::string b_name = peft_name(module, "lora_B");
    const io::StoredTensor* const a = find(a_name, {config_.rank, shape[1]});
    const io::StoredTensor* const b = find(b_name, {shape[0], config_.rank});
    const bool named = std::ranges::any_of(
        config_.targets, [&](const std::string& target) { return is_target(module, target); });
    if (a == nullptr && b == nullptr && !named) {
      return;
    }
    if (a == nullptr || b == nullptr) {
      refuse(
          "{} has no tensor {}; save the adapters again, or use the model that they were trained "
          "on",
          kPeftWeights, a == nullptr ? a_name : b_name);
    }
    if (!config_.targets.empty() && !named) {
      refuse(
          "{} has the tensor {}, and target_modules does not name the module {}; use files that "
          "belong together",
          kPeftWeights, a_name, module);
    }
    if (config_.inputs_first != turned) {
      refuse(
          "fan_in_fan_out is {}, and {} of this model is stored as {}; set it to {}, or use "
          "the model that the adapters were trained on",
          config_.inputs_first, module, turned ? "inputs x outputs" : "outputs x inputs", turned);
    }
    std::int64_t first = 0;
    for (const ParameterRows& rows : weight.rows) {
      Product& product = products_[product_of(rows.parameter)];
      product.shape = rows.shape;
      auto same = std::ranges::find_if(product.inputs, [&](const io::StoredTensor* other) {
        return other->type == a->type && std::ranges::equal(other->bytes, a->bytes);
      });
      const std::int64_t place = same - product.inputs.begin();
      if (same == product.inputs.end()) {
        product.inputs.push_back(a);
      }
      product.outputs.push_back(
          {.stored = b, .first = first, .rows = rows.rows, .column = place * config_.rank});
      first += rows.rows.count();
    }
  }

  void require_all_used() const {
    for (const auto& [name, stored] : files_.tensors()) {
      if (!used_.contains(name)) {
        refuse(
            "{} has the tensor {} ({}), which is no adapter of a product of this base model; "
            "use the model that the adapters were trained on",
            kPeftWeights, printable(name), stored.shape.text());
      }
    }
    if (products_.empty()) {
      refuse("{} holds no adapters", kPeftWeights);
    }
  }

  /// Every block has the same products, which one setting names.
  void require_whole_model() {
    std::map<std::string, std::set<std::string>> blocks;  // that have an adapter, by product
    std::set<std::string> all;
    const auto block_of = [](const std::string& product) {
      return product.substr(0, product.find('.', product.find('.') + 1));
    };
    for (const PublishedTensor& weight : weights_) {
      for (const ParameterRows& rows : weight.rows) {
        if (const std::string product = product_of(rows.parameter); !product.empty()) {
          all.insert(block_of(product));
          if (products_.contains(product)) {
            blocks[last_part(product)].insert(block_of(product));
          }
        }
      }
    }
    for (const std::string_view product : kProducts) {
      const auto found = blocks.find(std::string(product));
      if (found == blocks.end()) {
        continue;
      }
      for (const std::string& block : all) {
        if (!found->second.contains(block)) {
          refuse("{} has an adapter of {} and {} has none; strata reads adapters of all blocks",
                 *found->second.begin(), product, block);
        }
      }
      adapted_.emplace_back(product);
    }
  }

  const fs::path& directory_;
  const PublishedModel& model_;
  PeftConfig config_;
  std::vector<PublishedTensor> weights_;
  io::TensorFiles files_;
  std::int64_t width_ = 0;
  std::set<std::string> used_;
  std::map<std::string, Product> products_;
  std::vector<std::string> adapted_;  ///< names of products, as lora.products has them
};

}  // namespace

ForeignAdapters open_adapters(const fs::path& directory, const PublishedModel& model) {
  return AdapterReader(directory, model).read();
}

}  // namespace strata::exchange
