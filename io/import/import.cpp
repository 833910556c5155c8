#include "strata/io/import.hpp"

#include <algorithm>
#include <memory>

#include "strata/core/error.hpp"

#include "files/raw_elements.hpp"
#include "import/dataset_writer.hpp"
#include "import/import_output.hpp"
#include "import/input_statistics.hpp"
#include "import/sample_source.hpp"
#include "import/split_text.hpp"
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
  switch (options.format) {
    case ImportFormat::kCsv:
      return open_csv_source(options);
    case ImportFormat::kCifar10:
    case ImportFormat::kCifar100:
      return open_cifar_source(options);
    case ImportFormat::kImages:
      return open_image_source(options, checking);
    default:
      return open_array_source(options);
  }
}

}  // namespace

ImportReport import_dataset(const ImportOptions& options, const SampleProgress& progress,
                            const SampleProgress& checking) {
  if (options.shard_bytes < 1 || options.classes < 0) {
    fail(ExitCode::kUsage, "--shard-mib is {} and --classes is {}, neither may be negative",
         options.shard_bytes, options.classes);
  }
  const OutputDirectory output(options);
  if (holds_tokens(options.format)) {
    return import_tokens(options, output, progress);
  }
  const std::unique_ptr<SampleSource> source = open_source(options, checking);
  DatasetInfo info = source->info();
  const SplitCounts counts = parse_split(options.split, info.samples);
  const std::int64_t total = counts.train + counts.test;
  check_space(options, SplitWriter::predicted_bytes(info, total));

  std::vector<SplitWriter> writers = open_writers<SplitWriter>(options, counts, info);
  const std::int64_t batch_samples =
      std::max<std::int64_t>(1, kBatchBytes / (info.input_bytes() + info.target_bytes()));
  InputStatistics statistics(info);
  SampleBatch batch;
  std::int64_t done = 0;
  std::int64_t largest = 0;
  for (SplitWriter& writer : writers) {
    while (writer.left() > 0) {
      source->next(std::min(batch_samples, writer.left()), batch);
      if (&writer == &writers.front()) {
        statistics.add(batch);
      }
      if (info.task == Task::kClassification) {
        largest = std::max(largest, largest_label(batch));
      }
      writer.append(batch);
      done += batch.count;
      if (progress) {
        progress(done, total);
      }
    }
  }
  source->finish();

  info.source = fmt::format("{}: {}", name_of(options.format), info.source);
  info.classes = class_count(info, options.classes, largest);
  info.mean = statistics.mean();
  info.deviation = statistics.deviation();
  ImportReport report = publish(output, writers, info, info.samples);
  report.classes = info.classes;
  report.skipped = source->skipped();
  return report;
}

}  // namespace strata::io
