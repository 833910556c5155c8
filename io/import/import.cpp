#include "strata/io/import.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "files/raw_elements.hpp"
#include "import/dataset_writer.hpp"
#include "import/import_output.hpp"
#include "import/input_files.hpp"
#include "import/resolved_inputs.hpp"
#include "import/sample_places.hpp"
#include "import/sample_source.hpp"
#include "import/split_text.hpp"
#include "import/statistics.hpp"
#include "import/token_import.hpp"

namespace strata::io {
namespace {

constexpr std::int64_t kBatchBytes = std::int64_t{4} << 20;

std::int64_t largest_label(const SampleBatch& batch) {
  std::int64_t largest = 0;
  for (std::size_t at = 0; at < batch.targets.size(); at += sizeof(std::int64_t)) {
    largest = std::max(largest, load<std::int64_t>(batch.targets.data() + at));
  }
  return largest;
}

std::int64_t class_count(const DatasetInfo& info, std::int64_t asked, std::int64_t largest) {
  return info.task == Task::kRegression
             ? 0
             : std::max({asked, info.classes, std::ssize(info.class_names), largest + 1});
}

std::unique_ptr<SampleSource> open_source(const ImportOptions& options,
                                          const SampleProgress& checking) {
  if (options.model != nullptr && options.format != ImportFormat::kImages) {
    return open_new_samples(options);
  }
  switch (options.format) {
    case ImportFormat::kCsv:
    case ImportFormat::kJsonLines:
      return open_table_source(options);
    case ImportFormat::kCifar10:
    case ImportFormat::kCifar100:
      return open_cifar_source(options);
    case ImportFormat::kImages:
      return open_image_source(options, checking);
    default:
      return open_array_source(options);
  }
}

/// Refuses to mix files that the split keeps apart, as of a published train and test set.
void require_order(const ImportOptions& options, const SplitCounts& counts,
                   const SampleSource& source) {
  const std::vector<std::int64_t>& ends = source.ends();
  const auto end = std::ranges::find(ends, counts.train);
  if (options.order || !gives_counts(options.split) || counts.test == 0 ||
      counts.train + counts.test != source.info().samples || end >= ends.end() - 1) {
    return;
  }
  fail(ExitCode::kUsage,
       "--split={} cuts just before {}; to keep the files apart, give that and what follows as the "
       "test files (as --test-files) without --split; to mix them, give --order=shuffled",
       options.split, options.inputs[static_cast<std::size_t>(end - ends.begin()) + 1].string());
}

void note_rare_classes(const DatasetInfo& info, std::span<const std::int32_t> labels,
                       std::vector<std::string>& notes) {
  constexpr std::size_t kShown = 5;
  const std::vector<std::int64_t> counts = counts_of_labels(labels);
  std::vector<std::string> single;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 1) {
      single.push_back(class_text(info.class_names, static_cast<std::int64_t>(i)));
    }
  }
  if (!single.empty()) {
    const std::size_t shown = std::min(single.size(), kShown);
    notes.push_back(fmt::format(
        "{} class{} a single sample, which no test can show: {}{}", count_text(std::ssize(single)),
        single.size() == 1 ? " has" : "es have",
        fmt::join(single.begin(), single.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
        single.size() > shown ? ", ..." : ""));
  }
}

SamplePlaces places_of(const ImportOptions& options, const SplitCounts& counts,
                       SampleSource& source, std::vector<std::string>& notes) {
  if (options.order == ImportOrder::kFile) {
    return SamplePlaces::in_order(counts);
  }
  if (!options.test_inputs.empty()) {
    return SamplePlaces::shuffled_apart(counts, options.seed);
  }
  require_order(options, counts, source);
  std::vector<std::int32_t> labels;
  if (source.info().task == Task::kClassification) {
    labels = source.labels();
    if (counts.test > 0) {
      note_rare_classes(source.info(), labels, notes);
    }
  }
  return SamplePlaces::shuffled(counts, source.info().samples, labels, options.seed);
}

/// The samples of a batch that are in a split, in the order of their places.
class PlacedBatch {
 public:
  /// Pre: the batch's samples begin with number `first` of the source.
  void assign(const SampleBatch& batch, std::int64_t first, const DatasetInfo& info,
              const SamplePlaces& place_of) {
    order_.clear();
    for (std::int64_t i = 0; i < batch.count; ++i) {
      if (const std::int64_t place = place_of(first + i); place >= 0) {
        order_.emplace_back(place, i);
      }
    }
    std::ranges::sort(order_);
    batch_.resize(info, std::ssize(order_));
    places_.resize(order_.size());
    const auto gather = [&](const std::vector<std::byte>& from, std::vector<std::byte>& to,
                            std::int64_t bytes) {
      for (std::size_t i = 0; i < order_.size(); ++i) {
        std::memcpy(to.data() + static_cast<std::int64_t>(i) * bytes,
                    from.data() + order_[i].second * bytes, static_cast<std::size_t>(bytes));
      }
    };
    gather(batch.inputs, batch_.inputs, info.input_bytes());
    gather(batch.targets, batch_.targets, info.target_bytes());
    std::ranges::transform(order_, places_.begin(), [](const auto& entry) { return entry.first; });
  }

  [[nodiscard]] const SampleBatch& batch() const { return batch_; }
  [[nodiscard]] std::span<std::int64_t> places() { return places_; }

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> order_;  ///< place, and number in the batch
  SampleBatch batch_;
  std::vector<std::int64_t> places_;
};

ImportReport import_samples(const ImportOptions& options, const OutputDirectory& output,
                            const SampleProgress& progress, const SampleProgress& checking) {
  const std::unique_ptr<SampleSource> source = open_source(options, checking);
  DatasetInfo info = source->info();
  SplitCounts counts;
  if (options.test_inputs.empty()) {
    counts = parse_split(options.split, info.samples);
  } else {
    counts.train = source->ends()[options.inputs.size() - options.test_inputs.size() - 1];
    counts.test = info.samples - counts.train;
    require_samples(options, counts, "samples");
  }
  std::vector<std::string> notes = source->notes();
  SamplePlaces places = places_of(options, counts, *source, notes);
  const std::int64_t total = counts.train + counts.test;
  check_space(options, SplitWriter::predicted_bytes(info, total));

  std::int64_t samples = info.samples;
  if (places.is_shuffled() && source->choose(places.samples())) {
    places = SamplePlaces::in_order(counts);
  }
  if (!places.is_shuffled()) {
    samples = total;
  }
  std::vector<SplitWriter> writers = open_writers<SplitWriter>(options, counts, info);
  const std::int64_t batch_samples =
      std::max<std::int64_t>(1, kBatchBytes / (info.input_bytes() + info.target_bytes()));
  const bool values = info.task == Task::kRegression;
  Statistics statistics = Statistics::of_inputs(info);
  Statistics target_statistics = Statistics::of_targets(info);
  SampleBatch batch;
  PlacedBatch placed;
  std::int64_t largest = 0;
  for (std::int64_t done = 0; done < samples; done += batch.count) {
    source->next(std::min(batch_samples, samples - done), batch);
    placed.assign(batch, done, info, places);
    const std::span<std::int64_t> all = placed.places();
    const auto train =
        static_cast<std::size_t>(std::ranges::lower_bound(all, counts.train) - all.begin());
    statistics.add(std::span(placed.batch().inputs)
                       .first(train * static_cast<std::size_t>(info.input_bytes())));
    if (values) {
      target_statistics.add(std::span(placed.batch().targets)
                                .first(train * static_cast<std::size_t>(info.target_bytes())));
    }
    writers.front().write(placed.batch(), 0, all.first(train));
    if (writers.size() > 1) {
      const std::span<std::int64_t> test = all.subspan(train);
      std::ranges::for_each(test, [&](std::int64_t& place) { place -= counts.train; });
      writers.back().write(placed.batch(), static_cast<std::int64_t>(train), test);
    }
    if (info.task == Task::kClassification) {
      largest = std::max(largest, largest_label(placed.batch()));
    }
    if (progress) {
      progress(done + batch.count, samples);
    }
  }
  source->finish();

  info.source = fmt::format("{}: {}{}", name_of(options.format), info.source,
                            options.order == ImportOrder::kFile
                                ? ""
                                : fmt::format("; shuffled with seed {}", options.seed));
  info.classes = class_count(info, options.classes, largest);
  info.mean = statistics.mean();
  info.deviation = statistics.deviation();
  if (values) {
    info.target_mean = target_statistics.mean();
    info.target_deviation = target_statistics.deviation();
  }
  ImportReport report = publish(&output, writers, info, info.samples);
  report.classes = info.classes;
  report.skipped = source->skipped();
  report.notes = std::move(notes);
  report.ids = source->ids();
  return report;
}

/// Refuses what several ranks cannot share.
void require_shares(const ImportOptions& options, const ImportRanks& ranks) {
  if (options.shard_bytes < 1 || options.classes < 0) {
    fail(ExitCode::kUsage, "--shard-mib is {} and --classes is {}, neither may be negative",
         options.shard_bytes, options.classes);
  }
  if (ranks.count == 1) {
    return;
  }
  if (options.format != ImportFormat::kText && !holds_chats(options.format)) {
    fail(
        ExitCode::kUsage,
        "{} ranks were started, but only text, chat and preferences are imported by several; start "
        "one rank for --format={}",
        ranks.count, name_of(options.format));
  }
  if (std::ranges::find(options.inputs, "-") != options.inputs.end() ||
      std::ranges::find(options.test_inputs, "-") != options.test_inputs.end()) {
    fail(
        ExitCode::kUsage,
        "{} ranks were started, but the file -, standard input, is read by one; start one rank, or "
        "name files",
        ranks.count);
  }
}

}  // namespace

ImportReport import_dataset(const ImportOptions& options, const SampleProgress& progress,
                            const SampleProgress& checking, const ImportRanks& ranks) {
  std::optional<OutputDirectory> output;
  static_cast<void>(ranks.on_first([&] {
    require_shares(options, ranks);
    output.emplace(options);
    return std::string();
  }));
  const auto remove_pieces = [&] {
    try {
      output->remove_pieces();
    } catch (const std::exception&) {
      // The import has ended; the next one removes them.
    }
  };
  std::optional<ResolvedInputs> resolved;
  try {
    static_cast<void>(ranks.gather([&] { return resolved.emplace(options), std::string(); }));
    ImportReport report =
        holds_tokens(options.format)
            ? import_tokens(resolved->options, output ? &*output : nullptr, progress, ranks)
            : import_samples(resolved->options, *output, progress, checking);
    if (output) {
      remove_pieces();
    }
    return report;
  } catch (const Error& error) {
    if (output && error.code() != ExitCode::kPeer) {
      remove_pieces();
    }
    if (!resolved || !resolved->standard_input) {
      throw;
    }
    std::string text = error.what();
    const std::string copy = resolved->standard_input->temporary().string();
    for (std::size_t at = text.find(copy); at != std::string::npos; at = text.find(copy)) {
      text.replace(at, copy.size(), kStandardInput);
    }
    throw Error(error.code(), text);
  }
}

}  // namespace strata::io
