#include "strata/device/gpu_info.hpp"

#include <array>
#include <fstream>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/device/device.hpp"

#include "cuda_calls.hpp"

namespace strata::device {

std::optional<PeakFlops> published_peak(const GpuInfo& gpu) {
  constexpr std::array<std::pair<std::string_view, PeakFlops>, 6> kPeaks{
      {{"GB200", {2500e12, 1250e12, 80e12, 40e12}},
       {"B200", {2250e12, 1125e12, 75e12, 37e12}},
       {"H200", {989.5e12, 494.7e12, 67e12, 67e12}},
       {"H100 PCIe", {756e12, 378e12, 51e12, 51e12}},
       {"H100", {989.5e12, 494.7e12, 67e12, 67e12}},
       {"A100", {312e12, 156e12, 19.5e12, 19.5e12}}}};
  // NVL boards have other peaks.
  if (gpu.name.find("NVL") != std::string::npos) {
    return std::nullopt;
  }
  for (const auto& [name, peak] : kPeaks) {
    if (gpu.name.find(name) != std::string::npos) {
      return peak;
    }
  }
  return std::nullopt;
}

std::vector<GpuInfo> gpus() {
  std::vector<GpuInfo> found;
  for (std::int64_t index = 0; index < cuda_device_count(); ++index) {
    found.push_back(cuda::gpu_info(index));
  }
  return found;
}

std::string driver_version(const std::filesystem::path& file) {
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build ..."
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    if (word.front() >= '0' && word.front() <= '9' && word.find('.') != std::string::npos) {
      return word;
    }
  }
  return {};
}

std::string cuda_version_text(std::int64_t version) {
  return version == 0 ? "none" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

GpuChoice choose_gpu(std::int64_t local_rank, std::int64_t local_ranks, std::int64_t gpus) {
  require(local_rank >= 0 && local_rank < local_ranks && gpus >= 1,
          "a GPU of {} for rank {} of {} on a node", gpus, local_rank, local_ranks);
  if (gpus >= local_ranks) {
    return {.index = local_rank, .ranks = 1};
  }
  const auto index_of = [&](std::int64_t rank) { return rank * gpus / local_ranks; };
  GpuChoice choice{.index = index_of(local_rank), .ranks = 0};
  for (std::int64_t rank = 0; rank < local_ranks; ++rank) {
    choice.ranks += index_of(rank) == choice.index ? 1 : 0;
  }
  return choice;
}

}  // namespace strata::device
