#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <benchmark/benchmark.h>
#include <stdlib.h>

#include "strata/io/import.hpp"
#include "strata/io/loader.hpp"

namespace {

using namespace strata;

constexpr std::int64_t kSamples = 60000;
constexpr std::int64_t kPixels = 28 * 28;

void append_big_endian(std::string& bytes, std::int64_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes += static_cast<char>(value >> shift & 0xFF);
  }
}

// Images and labels of the size of MNIST, imported once for all benchmarks.
class Images {
 public:
  Images() {
    std::string path = (std::filesystem::temp_directory_path() / "strata-bench-XXXXXX").string();
    directory_ = ::mkdtemp(path.data()) == nullptr ? std::string() : path;
    std::string images{'\0', '\0', '\x08', '\3'};
    std::string labels{'\0', '\0', '\x08', '\1'};
    append_big_endian(images, kSamples);
    append_big_endian(images, 28);
    append_big_endian(images, 28);
    append_big_endian(labels, kSamples);
    for (std::int64_t i = 0; i < kSamples * kPixels; ++i) {
      images += static_cast<char>(i * 2654435761 >> 8 & 0xFF);
    }
    for (std::int64_t i = 0; i < kSamples; ++i) {
      labels += static_cast<char>(i % 10);
    }
    std::ofstream(directory_ / "images", std::ios::binary) << images;
    std::ofstream(directory_ / "labels", std::ios::binary) << labels;
  }
  ~Images() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  Images(const Images&) = delete;
  Images& operator=(const Images&) = delete;

  [[nodiscard]] io::ImportReport import() const {
    io::ImportOptions options;
    options.order = io::ImportOrder::kFile;
    options.inputs = {directory_ / "images"};
    options.targets = {directory_ / "labels"};
    options.split = "1.0";
    options.output = directory_ / "data";
    options.existing = io::Existing::kReplace;
    return io::import_dataset(options);
  }

 private:
  std::filesystem::path directory_;
};

void import_idx(benchmark::State& state) {
  const Images images;
  for (auto _ : state) {
    benchmark::DoNotOptimize(images.import());
  }
  state.SetItemsProcessed(state.iterations() * kSamples);
}
BENCHMARK(import_idx)->Unit(benchmark::kMillisecond)->UseRealTime();

void load(benchmark::State& state, io::Order order, DType dtype) {
  const Images images;
  const io::Dataset dataset = io::Dataset::open(images.import().train);
  io::LoaderOptions options;
  options.order = order;
  options.global_batch = 128;
  options.microbatch = 128;
  options.compute_dtype = dtype;
  options.steps = std::int64_t{1} << 40;
  io::Loader loader(dataset, options);
  for (auto _ : state) {
    benchmark::DoNotOptimize(loader.next().inputs(0).raw());
  }
  state.SetItemsProcessed(state.iterations() * options.global_batch);
}
BENCHMARK_CAPTURE(load, shuffled_float32, io::Order::kShuffled, DType::kFloat32)->UseRealTime();
BENCHMARK_CAPTURE(load, shuffled_float64, io::Order::kShuffled, DType::kFloat64)->UseRealTime();

void find_samples(benchmark::State& state) {
  std::int64_t place = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(io::sample_at(1, kSamples, place++));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(find_samples);

}  // namespace

BENCHMARK_MAIN();
