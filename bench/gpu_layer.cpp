// The operations of a GPT-2 layer and of a ResNet-50 block against their rooflines, on the first
// GPU:
//   bench_gpu_layer [--batch=8] [--tokens=1024] [--width=768] [--heads=12] [--vocabulary=50257]
//                   [--images=128] [--output=FILE.json] [--smoke]
// A table, whose last line is the operation furthest from its roofline. --smoke: tiny shapes, each
// call once; does it run? Exit code 77 where there is no GPU.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/device/gpu_info.hpp"

#include "gpu/layers.hpp"

namespace {

using namespace strata;         // NOLINT(google-build-using-namespace)
using namespace strata::bench;  // NOLINT(google-build-using-namespace)

/// As test drivers have it: left out.
constexpr int kSkipped = 77;
/// Attention on a GPU takes heads of at most so many elements.
constexpr std::int64_t kMostHeadSize = 128;

struct Options {
  TransformerSizes transformer;
  ResidualBlockSizes block;
  Effort effort;
  std::int64_t product_extent = 8192;
  std::int64_t copied_bytes = std::int64_t{1} << 30;
  /// Numbers that operands are filled with, over and over.
  std::int64_t numbers = std::int64_t{1} << 24;
  std::string output;
};

Options smoke_options() {
  return {.transformer = {.batch = 2, .tokens = 32, .width = 128, .heads = 2, .vocabulary = 101},
          .block = {.images = 2, .side = 6, .channels = 16},
          .effort = {.least_seconds = 0.0, .cold_bytes = std::int64_t{1} << 16},
          .product_extent = 128,
          .copied_bytes = std::int64_t{1} << 16,
          .numbers = std::int64_t{1} << 12};
}

std::int64_t count_from(std::string_view name, std::string_view text) {
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1) {
    fail(ExitCode::kUsage, "{}={}: give a whole number of at least 1", name, text);
  }
  return count;
}

Options read_options(const std::vector<std::string_view>& words) {
  const bool smoke = std::ranges::find(words, "--smoke") != words.end();
  Options options = smoke ? smoke_options() : Options();
  const std::map<std::string_view, std::int64_t*> counts{
      {"--batch", &options.transformer.batch}, {"--tokens", &options.transformer.tokens},
      {"--width", &options.transformer.width}, {"--heads", &options.transformer.heads},
      {"--images", &options.block.images},     {"--vocabulary", &options.transformer.vocabulary}};
  for (const std::string_view word : words) {
    const std::size_t sign = std::min(word.find('='), word.size());
    const std::string_view name = word.substr(0, sign);
    const std::string_view value = word.substr(std::min(sign + 1, word.size()));
    if (const auto found = counts.find(name); found != counts.end()) {
      *found->second = count_from(name, value);
    } else if (name == "--output" && !value.empty()) {
      options.output = value;
    } else if (word != "--smoke") {
      fail(ExitCode::kUsage,
           "there is no option \"{}\"; give --batch=, --tokens=, --width=, --heads=, "
           "--vocabulary=, --images=, --output= or --smoke",
           word);
    }
  }
  const TransformerSizes& sizes = options.transformer;
  if (sizes.width % sizes.heads != 0 || sizes.width / sizes.heads > kMostHeadSize) {
    fail(ExitCode::kUsage,
         "a width of {} is not {} heads of at most {} elements each; change --width or --heads",
         sizes.width, sizes.heads, kMostHeadSize);
  }
  return options;
}

void print_row(const Ceilings& ceilings, const Timing& timing) {
  const bool products = ceilings.is_bound_by_products(timing);
  const double rate = products ? timing.flops / 1e12 : timing.bytes / 1e9;
  fmt::print("{:<42} {:>10.1f} {:>10.1f} {:<7} {:>12.1f} {:>7.2f}\n", timing.name,
             timing.seconds() * 1e6, rate / timing.seconds(), products ? "TFLOP/s" : "GB/s",
             ceilings.least_seconds(timing) * 1e6, ceilings.ratio(timing));
  // What was measured is there where a later operation fails.
  std::fflush(stdout);
}

std::vector<Timing> measure_all(Machine& machine, const Ceilings& ceilings,
                                const Options& options) {
  fmt::print("\n{:<42} {:>10} {:>10} {:<7} {:>12} {:>7}\n", "operation", "time, us", "rate", "",
             "roofline, us", "ratio");
  std::vector<Timing> timings;
  for (const auto& operations :
       {transformer_operations(options.transformer), residual_block_operations(options.block)}) {
    for (const Operation& operation : operations) {
      timings.push_back(measure(machine, operation, options.effort));
      print_row(ceilings, timings.back());
    }
  }
  return timings;
}

/// Throws Error(kUsage) where what was written to the options' output did not arrive.
void require_written(const std::ofstream& file, const Options& options) {
  if (!file) {
    fail(ExitCode::kUsage, "{} cannot be written; give another --output", options.output);
  }
}

void write_json(std::ofstream& file, const std::string& gpu, const Options& options,
                const Ceilings& ceilings, const std::vector<Timing>& timings) {
  nlohmann::ordered_json all{{"gpu", gpu},
                             {"batch", options.transformer.batch},
                             {"tokens", options.transformer.tokens},
                             {"width", options.transformer.width},
                             {"heads", options.transformer.heads},
                             {"vocabulary", options.transformer.vocabulary},
                             {"images", options.block.images},
                             {"side", options.block.side},
                             {"channels", options.block.channels},
                             {"flops_per_second", ceilings.flops_per_second},
                             {"bytes_per_second", ceilings.bytes_per_second},
                             {"operations", nlohmann::ordered_json::array()}};
  for (const Timing& timing : timings) {
    all["operations"].push_back({{"name", timing.name},
                                 {"seconds", timing.seconds()},
                                 {"samples_seconds", timing.samples_seconds},
                                 {"flops", timing.flops},
                                 {"bytes", timing.bytes},
                                 {"roofline_seconds", ceilings.least_seconds(timing)},
                                 {"ratio", ceilings.ratio(timing)}});
  }
  file << all.dump(1) << '\n';
  file.close();
  require_written(file, options);
}

int run(const std::vector<std::string_view>& words) {
  const Options options = read_options(words);
  if (device::cuda_device_count() == 0) {
    fmt::print("no GPU\n");
    return kSkipped;
  }
  // Before anything is measured: a wrong name is known at once.
  std::ofstream file;
  if (!options.output.empty()) {
    file.open(options.output);
    require_written(file, options);
  }
  const std::string gpu = device::gpus().front().name;
  Machine machine(device::Device::cuda(0), options.numbers);
  const Ceilings ceilings =
      measure_ceilings(machine, options.product_extent, options.copied_bytes, options.effort);
  const TransformerSizes& sizes = options.transformer;
  fmt::print("{}, bfloat16: {} x {} tokens, width {}, {} heads, {} ids; {} images of {} x {}\n",
             gpu, sizes.batch, sizes.tokens, sizes.width, sizes.heads, sizes.vocabulary,
             options.block.images, options.block.side, options.block.side);
  fmt::print("peak: {:.1f} TFLOP/s in a product of {} x {}, {:.1f} GB/s in a copy of {} bytes\n",
             ceilings.flops_per_second / 1e12, options.product_extent, options.product_extent,
             ceilings.bytes_per_second / 1e9, options.copied_bytes);
  const std::vector<Timing> timings = measure_all(machine, ceilings, options);
  const Timing& worst = *std::ranges::max_element(
      timings, {}, [&](const Timing& timing) { return ceilings.ratio(timing); });
  if (!options.output.empty()) {
    write_json(file, gpu, options, ceilings, timings);
  }
  fmt::print("worst: {}, {:.2f} times its roofline\n", worst.name, ceilings.ratio(worst));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const Error& error) {
    fmt::print(stderr, "bench_gpu_layer: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_gpu_layer: {}\n", error.what());
    return 1;
  }
}
