#include "strata/io/dataset.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"

#include "dataset/dataset_format.hpp"
#include "dataset/dataset_read.hpp"
#include "dataset/token_stream.hpp"

namespace strata::io {
namespace {

namespace names = dataset_format;

struct Shard {
  MappedFile file;
  std::int64_t first_sample = 0;
  std::int64_t samples = 0;
  const std::byte* inputs = nullptr;
  const std::byte* targets = nullptr;
  const std::byte* checksums = nullptr;
};

Shard open_shard(const DatasetInfo& info, ShardInfo& entry, std::int64_t first_sample) {
  const hdf5::File file = open_shard_file(info, entry);
  Shard shard{MappedFile(file.origin().path), first_sample, entry.samples};
  entry.file_bytes = static_cast<std::int64_t>(shard.file.bytes().size());
  shard.inputs =
      mapped_dataset(file, shard.file, names::kInputs, info.input_shape.prepended(entry.samples),
                     hdf5::element_type(info.input_dtype));
  shard.targets =
      mapped_dataset(file, shard.file, names::kTargets, info.target_shape.prepended(entry.samples),
                     hdf5::element_type(info.target_dtype));
  shard.checksums =
      mapped_dataset(file, shard.file, names::kChecksums,
                     Shape{entry.samples, names::kChecksumsPerSample}, hdf5::uint64_type());
  check_shard_checksum(file, info, entry);
  return shard;
}

std::span<const std::byte> slice(const std::byte* base, std::int64_t index, std::int64_t bytes) {
  return {base + index * bytes, static_cast<std::size_t>(bytes)};
}

std::uint64_t stored_checksum(const Shard& shard, std::int64_t local, std::int64_t column) {
  std::uint64_t checksum = 0;
  std::memcpy(&checksum,
              shard.checksums +
                  (local * names::kChecksumsPerSample + column) * std::int64_t{sizeof checksum},
              sizeof checksum);
  return checksum;
}

}  // namespace

struct Dataset::Contents {
  DatasetInfo info;
  std::vector<Shard> shards;
  std::optional<TokenStream> tokens;  ///< in place of samples
  std::int64_t input_bytes = 0;
  std::int64_t target_bytes = 0;

  [[nodiscard]] const Shard& shard_of(std::int64_t sample) const {
    require(!tokens, "a data set of tokens was asked for a stored sample");
    require(sample >= 0 && sample < info.samples, "sample {} of {}", sample, info.samples);
    return *std::prev(std::upper_bound(
        shards.begin(), shards.end(), sample,
        [](std::int64_t value, const Shard& shard) { return value < shard.first_sample; }));
  }
  void check(std::span<const std::byte> bytes, std::int64_t sample, std::int64_t column,
             const char* part, const Dataset& dataset) const {
    const Shard& shard = shard_of(sample);
    if (hash_of(bytes) != stored_checksum(shard, sample - shard.first_sample, column)) {
      fail(ExitCode::kData, "the {} of {} does not match its checksum: the file is damaged; {}",
           part, dataset.sample_text(sample), "restore it or import anew");
    }
  }
};

Dataset::Dataset(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {}
Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&& other) noexcept = default;
Dataset& Dataset::operator=(Dataset&& other) noexcept = default;

Dataset Dataset::open(const std::filesystem::path& master) {
  auto contents = std::make_unique<Contents>();
  contents->info = read_master(master);
  DatasetInfo& info = contents->info;
  if (info.task == Task::kNextToken) {
    contents->tokens.emplace(info);
    return Dataset(std::move(contents));
  }
  contents->input_bytes = info.input_bytes();
  contents->target_bytes = info.target_bytes();
  std::int64_t first_sample = 0;
  for (ShardInfo& entry : info.shards) {
    contents->shards.push_back(open_shard(info, entry, first_sample));
    first_sample += entry.samples;
  }
  return Dataset(std::move(contents));
}

const DatasetInfo& Dataset::info() const {
  return contents_->info;
}

void Dataset::set_context(std::int64_t context) {
  require(context > 0, "a context of {} tokens", context);
  DatasetInfo& info = contents_->info;
  if (!contents_->tokens) {
    fail(ExitCode::kData, "{} holds samples for {}, tokens were expected; import a text",
         info.path.string(), name_of(info.task));
  }
  if (info.tokens <= context) {
    fail(
        ExitCode::kData,
        "{} holds {} tokens, a context of {} needs {} at least; make the context shorter or import "
        "more text",
        info.path.string(), count_text(info.tokens), count_text(context), count_text(context + 1));
  }
  info.samples = (info.tokens - 1) / context;
  info.input_shape = Shape{context};
  info.target_shape = Shape{context};
}

void Dataset::read_tokens(std::int64_t first, std::span<std::int64_t> tokens) const {
  require(contents_->tokens.has_value(), "a data set of samples was asked for tokens");
  contents_->tokens->read(info(), first, tokens);
}

std::span<const std::byte> Dataset::sample_input(std::int64_t sample) const {
  const Shard& shard = contents_->shard_of(sample);
  return slice(shard.inputs, sample - shard.first_sample, contents_->input_bytes);
}

std::span<const std::byte> Dataset::sample_target(std::int64_t sample) const {
  const Shard& shard = contents_->shard_of(sample);
  return slice(shard.targets, sample - shard.first_sample, contents_->target_bytes);
}

void Dataset::prefetch(std::int64_t sample) const {
  constexpr std::int64_t kLine = 64;
  // What is longer, the processor's own prefetching finds.
  constexpr std::int64_t kMostBytes = 1024;
  const Shard& shard = contents_->shard_of(sample);
  const std::int64_t local = sample - shard.first_sample;
  const std::byte* input = shard.inputs + local * contents_->input_bytes;
  for (std::int64_t at = 0; at < std::min(contents_->input_bytes, kMostBytes); at += kLine) {
    __builtin_prefetch(input + at);
  }
  __builtin_prefetch(shard.targets + local * contents_->target_bytes);
  __builtin_prefetch(shard.checksums +
                     local * names::kChecksumsPerSample * std::int64_t{sizeof(std::uint64_t)});
}

void Dataset::check_input(std::int64_t sample) const {
  contents_->check(sample_input(sample), sample, 0, "input", *this);
}

void Dataset::check_target(std::int64_t sample) const {
  contents_->check(sample_target(sample), sample, 1, "target", *this);
}

std::string Dataset::sample_text(std::int64_t sample) const {
  const Shard& shard = contents_->shard_of(sample);
  const auto index = static_cast<std::size_t>(&shard - contents_->shards.data());
  return fmt::format("sample {} (number {} of {})", sample, sample - shard.first_sample,
                     (info().path.parent_path() / info().shards[index].file).string());
}

std::vector<ShardCheck> Dataset::verify(const SampleProgress& progress) const {
  constexpr std::int64_t kReportEvery = 1 << 14;
  if (contents_->tokens) {
    return contents_->tokens->verify(info(), progress);
  }
  std::vector<ShardCheck> checks;
  for (std::size_t i = 0; i < contents_->shards.size(); ++i) {
    const Shard& shard = contents_->shards[i];
    ShardCheck check;
    const auto checksums =
        slice(shard.checksums, 0,
              shard.samples * names::kChecksumsPerSample * std::int64_t{sizeof(std::uint64_t)});
    if (hash_of(checksums) != info().shards[i].checksum) {
      check.problem = "the list of checksums is damaged";
    }
    for (std::int64_t local = 0; local < shard.samples; ++local) {
      const auto input = slice(shard.inputs, local, contents_->input_bytes);
      const auto target = slice(shard.targets, local, contents_->target_bytes);
      if (hash_of(input) != stored_checksum(shard, local, 0) ||
          hash_of(target) != stored_checksum(shard, local, 1)) {
        if (check.bad_samples++ == 0 && check.problem.empty()) {
          check.problem = fmt::format("sample {} is damaged", shard.first_sample + local);
        }
      }
      const std::int64_t done = shard.first_sample + local + 1;
      if (progress && (done % kReportEvery == 0 || done == info().samples)) {
        progress(done, info().samples);
      }
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

std::vector<std::int64_t> Dataset::class_counts() const {
  if (info().task != Task::kClassification) {
    return {};
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(info().classes));
  for (std::int64_t sample = 0; sample < info().samples; ++sample) {
    std::int64_t label = 0;
    std::memcpy(&label, sample_target(sample).data(), sizeof label);
    if (label < 0 || label >= info().classes) {
      fail(ExitCode::kData, "the label of {} is {}, expected 0 to {}", sample_text(sample), label,
           info().classes - 1);
    }
    ++counts[static_cast<std::size_t>(label)];
  }
  return counts;
}

}  // namespace strata::io
