#include "loop/kernels_used.hpp"

#include <cstddef>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/comm/agree.hpp"
#include "strata/core/error.hpp"

namespace strata::train {

ComparedKernels compared_kernels(comm::Communicator& world, const ops::KernelsUsed& mine) {
  struct Used {
    std::string kernels;
    std::size_t rank = 0;
  };
  const auto is_product = [](const std::string& operation) {
    return operation.starts_with("a product");
  };
  ComparedKernels compared;
  const std::vector<std::string> texts = world.all_gather_texts(nlohmann::json(mine).dump());
  std::map<std::string, Used> all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    for (const auto& [operation, kernels] :
         nlohmann::json::parse(texts[rank]).get<ops::KernelsUsed>()) {
      const Used& first = all.try_emplace(operation, Used{kernels, rank}).first->second;
      if (first.kernels != kernels && is_product(operation)) {
        compared.warning = !compared.warning.empty()
                               ? compared.warning
                               : fmt::format(
                                     "rank {} computes {} by {}, rank {} by {}: other grids will "
                                     "not reproduce this run bit "
                                     "for bit. strata doctor compares GPUs, drivers and libraries",
                                     first.rank, operation, first.kernels, rank, kernels);
      } else if (first.kernels != kernels) {
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
    } else if (!is_product(operation)) {
      ++by_library;
    }
  }
  const std::string library =
      by_library == 0 ? "" : fmt::format("; passes by cuDNN: {}", by_library);
  compared.text = fmt::format("kernels: products by cuBLASLt{}{}", library, own);
  return compared;
}

}  // namespace strata::train
