#include "strata/nn/adapters.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/nn/mlp_kind.hpp"

namespace strata::nn {

std::vector<std::string> adapted_layers(std::vector<std::string> lines,
                                        const AdapterOptions& adapters) {
  if (adapters.rank == 0) {
    return lines;
  }
  const std::vector<std::string> known{"qkv", "output", "up", "gate", "down"};
  const std::vector<std::string> wanted = split_words(adapters.products, ", ");
  if (wanted.empty() && !adapters.products.empty()) {
    fail(ExitCode::kUsage,
         "lora.products = \"{}\" names no product; give some of {}, or leave it out",
         adapters.products, fmt::join(known, ", "));
  }
  for (const std::string& product : wanted) {
    if (std::ranges::find(known, product) == known.end()) {
      fail(ExitCode::kUsage, "lora.products names \"{}\"; give some of {}, or nothing for all",
           product, fmt::join(known, ", "));
    }
  }
  bool adapts = false;
  for (std::string& line : lines) {
    const std::vector<std::string> words = split_words(line);
    const auto has = [&](std::string_view word) {
      return std::ranges::find(words, word) != words.end();
    };
    std::vector<std::string> own;
    if (has("attention")) {
      own = {"qkv", "output"};
    } else if (has("mlp")) {
      const bool gated = std::ranges::any_of(words, [](const std::string& word) {
        const std::optional<MlpKind> kind = enum_from_name<MlpKind>(word);
        return kind && gate_of(*kind);
      });
      own = gated ? std::vector<std::string>{"up", "gate", "down"}
                  : std::vector<std::string>{"up", "down"};
    }
    if (without_adapters(line) != fmt::format("{}", fmt::join(words, " "))) {
      fail(ExitCode::kUsage,
           "lora.rank is {}, but the layer \"{}\" has adapters of its own; keep one of the two",
           adapters.rank, line);
    }
    const std::size_t all = own.size();
    std::erase_if(own, [&](const std::string& product) {
      return !wanted.empty() && std::ranges::find(wanted, product) == wanted.end();
    });
    if (own.empty()) {
      continue;
    }
    adapts = true;
    line +=
        fmt::format(" lora={} lora_alpha={}{}", adapters.rank,
                    adapters.alpha == 0.0 ? static_cast<double>(adapters.rank) : adapters.alpha,
                    own.size() == all ? "" : fmt::format(" lora_products={}", fmt::join(own, ",")));
  }
  if (!adapts) {
    fail(ExitCode::kUsage, "lora.rank is {}, but the model has no {}; leave lora.rank out{}",
         adapters.rank,
         wanted.empty() ? std::string("attention or mlp layer, whose products adapters are for")
                        : fmt::format("product {}", fmt::join(wanted, " or ")),
         wanted.empty() ? "" : ", or name other lora.products");
  }
  return lines;
}

std::string without_adapters(const std::string& line) {
  std::vector<std::string> words = split_words(line);
  std::erase_if(words, [](const std::string& word) {
    return word.starts_with("lora=") || word.starts_with("lora_");
  });
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace strata::nn
