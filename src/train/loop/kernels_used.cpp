#include "loop/kernels_used.hpp"

#include <cstddef>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/comm/agree.hpp"
#include "strata/core/error.hpp"

namespace strata::train {

std::string kernels_text(const std::vector<ops::KernelsUsed>& ranks) {
  struct Used {
    std::string kernels;
    std::size_t rank = 0;
  };
  std::map<std::string, Used> all;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [operation, kernels] : ranks[rank]) {
      const Used& first = all.try_emplace(operation, Used{kernels, rank}).first->second;
      if (first.kernels != kernels) {
        throw comm::AgreedError(
            ExitCode::kPeer,
            fmt::format(
                "rank {} runs {} by {}, rank {} by {}: their bits would differ. Compare the "
                "nodes with strata doctor; numerics.attention = own does without cuDNN's "
                "attention",
                first.rank, operation, first.kernels, rank, kernels));
      }
    }
  }
  std::size_t by_library = 0;
  std::string own;
  for (const auto& [operation, used] : all) {
    if (used.kernels.starts_with("own")) {
      own += fmt::format("; {} by {}", operation, used.kernels);
    } else {
      ++by_library;
    }
  }
  const std::string library =
      by_library == 0 ? "" : fmt::format("; passes by cuDNN: {}", by_library);
  return fmt::format("kernels: products by cuBLASLt{}{}", library, own);
}

std::string compared_kernels(comm::Communicator& world, const ops::KernelsUsed& mine) {
  std::vector<ops::KernelsUsed> ranks;
  for (const std::string& text : world.all_gather_texts(nlohmann::json(mine).dump())) {
    ranks.push_back(nlohmann::json::parse(text).get<ops::KernelsUsed>());
  }
  return kernels_text(ranks);
}

}  // namespace strata::train
