#include "dataset/dataset_read.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"

#include "dataset/dataset_format.hpp"

namespace strata::io {

namespace names = dataset_format;

void check_format(const hdf5::File& file, const char* format, const char* what) {
  const std::filesystem::path& path = file.origin().path;
  if (!file.has_format(format)) {
    fail(ExitCode::kData,
         "{} is an HDF5 file but not {} of a strata data set; make one with "
         "strata data import",
         path.string(), what);
  }
  const std::int64_t version = file.version();
  if (version != names::kVersionWritten) {
    fail(ExitCode::kData, "{} has version {} of the data set format, this program reads version {}",
         path.string(), version, names::kVersionWritten);
  }
}

namespace {

void read_shard_list(const hdf5::File& file, DatasetInfo& info) {
  const std::vector<std::string> files = file.read_texts(names::kShardFiles);
  const auto samples = read_vector<std::int64_t>(file, names::kShardSamples);
  const auto checksums = read_vector<std::uint64_t>(file, names::kShardChecksums);
  if (files.size() != samples.size() || files.size() != checksums.size() ||
      std::any_of(samples.begin(), samples.end(), [](std::int64_t count) { return count < 1; }) ||
      !std::all_of(files.begin(), files.end(), is_file_name)) {
    fail(ExitCode::kData, "{} is inconsistent in its list of shards; import it anew",
         info.path.string());
  }
  std::int64_t total = 0;
  bool overflows = false;
  for (std::size_t i = 0; i < files.size(); ++i) {
    info.shards.push_back({files[i], samples[i], 0, checksums[i]});
    overflows = overflows || __builtin_add_overflow(total, samples[i], &total);
  }
  const std::int64_t promised = std::max(info.samples, info.tokens);
  if (overflows || total != promised || promised <= 0) {
    fail(ExitCode::kData, "{} promises {} {} but its shards hold {}", info.path.string(), promised,
         info.tokens > 0 ? "tokens" : "samples", total);
  }
}

}  // namespace

std::uint64_t facts_checksum(const DatasetInfo& info) {
  std::string text;
  if (info.task == Task::kNextToken) {
    text = fmt::format("{} tokens {}; vocabulary of {}; tokenizer {} {:016x}", info.tokens,
                       name_of(info.input_dtype), info.classes, name_of(info.tokenizer),
                       info.tokenizer_checksum);
  } else {
    text = fmt::format(
        "{} samples; inputs {} {}; targets {} {}; {} with {} classes: {}; mean {}; deviation {}",
        info.samples, info.input_shape.text(), name_of(info.input_dtype), info.target_shape.text(),
        name_of(info.target_dtype), name_of(info.task), info.classes,
        fmt::join(info.class_names, ","), fmt::join(info.mean, ","),
        fmt::join(info.deviation, ","));
  }
  if (info.documents_checksum != 0) {
    text += fmt::format("; documents {:016x}", info.documents_checksum);
  }
  for (const ShardInfo& shard : info.shards) {
    text += fmt::format("; {} {} {:016x}", shard.file, shard.samples, shard.checksum);
  }
  return hash_of(text);
}

namespace {

std::uint64_t checksum_of(const Documents& documents) {
  return hash_of(fmt::format("{:016x} {:016x}{}", hash_of(std::as_bytes(std::span(documents.ends))),
                             hash_of(std::as_bytes(std::span(documents.counted))),
                             documents.pairs ? " pairs" : ""));
}

}  // namespace

void write_documents(hdf5::File& file, const Documents& documents, DatasetInfo& info) {
  info.counted_tokens = documents.ends.empty() ? info.tokens : documents.counted_tokens();
  if (documents.ends.empty()) {
    return;
  }
  info.documents = std::ssize(documents.ends);
  info.documents_checksum = checksum_of(documents);
  file.write_vector(names::kDocuments, documents.ends);
  if (!documents.counted.empty()) {
    file.write_vector(names::kCounted, documents.counted);
  }
  if (documents.pairs) {
    file.set_int64(names::kPairs, 1);
  }
  file.set_int64(names::kCountedTokens, info.counted_tokens);
  file.set_uint64(names::kDocumentsChecksum, info.documents_checksum);
}

Documents read_documents(const ReadMaster& master) {
  const DatasetInfo& info = master.info;
  const hdf5::File file = hdf5::File::open(info.path, ExitCode::kData);
  Documents documents{.ends = read_vector<std::int64_t>(file, names::kDocuments),
                      .pairs = info.pairs};
  if (file.has(names::kCounted)) {
    documents.counted = read_vector<std::int64_t>(file, names::kCounted);
  }
  const std::vector<std::int64_t>& ends = documents.ends;
  const std::vector<std::int64_t>& runs = documents.counted;
  if (checksum_of(documents) != info.documents_checksum || ends.empty() || ends.front() < 0 ||
      ends.back() != info.tokens || !std::ranges::is_sorted(ends) || runs.size() % 2 != 0 ||
      (info.pairs && ends.size() % 2 != 0) || !std::ranges::is_sorted(runs) ||
      (!runs.empty() && (runs.front() < 0 || runs.back() > info.tokens))) {
    fail(ExitCode::kData, "{} is damaged in its list of documents; import it anew",
         info.path.string());
  }
  return documents;
}

void write_table(hdf5::File& file, std::span<const TableColumn> table) {
  if (table.empty()) {
    return;
  }
  std::vector<std::string> columns;
  std::vector<std::int64_t> counts;
  std::vector<double> missing;
  std::vector<std::string> categories;
  for (const TableColumn& column : table) {
    columns.push_back(column.name);
    counts.push_back(std::ssize(column.categories));
    missing.push_back(column.missing);
    categories.insert(categories.end(), column.categories.begin(), column.categories.end());
  }
  file.write_texts(names::kTableColumns, columns);
  file.write_vector(names::kTableCounts, counts);
  file.write_vector(names::kTableMissing, missing);
  if (!categories.empty()) {
    file.write_texts(names::kTableCategories, categories);
  }
}

namespace {

// The master's manifest covers the table, so that only a foreign program's can be inconsistent.
std::vector<TableColumn> read_table(const hdf5::File& file) {
  std::vector<TableColumn> table;
  if (!file.has(names::kTableColumns)) {
    return table;
  }
  const std::vector<std::string> columns = file.read_texts(names::kTableColumns);
  const auto counts = read_vector<std::int64_t>(file, names::kTableCounts);
  const auto missing = read_vector<double>(file, names::kTableMissing);
  const std::vector<std::string> categories = file.has(names::kTableCategories)
                                                  ? file.read_texts(names::kTableCategories)
                                                  : std::vector<std::string>();
  std::int64_t left = std::ssize(categories);
  bool fits = counts.size() == columns.size() && missing.size() == columns.size();
  for (std::size_t i = 0; fits && i < columns.size(); ++i) {
    fits = counts[i] >= 0 && counts[i] <= left;
    if (fits) {
      const auto first = categories.end() - static_cast<std::ptrdiff_t>(left);
      left -= counts[i];
      table.push_back(
          {columns[i], {first, first + static_cast<std::ptrdiff_t>(counts[i])}, missing[i]});
    }
  }
  if (!fits || left != 0) {
    fail(ExitCode::kData, "{} is inconsistent in the columns of its table; import it anew",
         file.origin().path.string());
  }
  return table;
}

// The master's data sets are virtual: HDF5 would follow them to any file. The first shard has the
// same shapes and types.
void read_sample_facts(const hdf5::File& file, const hdf5::File& shard, DatasetInfo& info) {
  info.classes = file.int64(names::kClasses);
  const hdf5::Dataset inputs = shard.open_dataset(names::kInputs);
  const hdf5::Dataset targets = shard.open_dataset(names::kTargets);
  if (inputs.shape().rank() == 0 || targets.shape().rank() == 0) {
    fail(ExitCode::kData, "{} has inputs or targets of a single number; import it anew",
         info.path.string());
  }
  info.input_shape = inputs.shape().tail();
  info.input_dtype = inputs.dtype();
  info.target_shape = targets.shape().tail();
  info.target_dtype = targets.dtype();
  info.mean = read_vector<double>(file, names::kMean);
  info.deviation = read_vector<double>(file, names::kDeviation);
  if (file.has(names::kTargetMean)) {
    info.target_mean = read_vector<double>(file, names::kTargetMean);
    info.target_deviation = read_vector<double>(file, names::kTargetDeviation);
  }
  if (file.has(names::kClassNames)) {
    info.class_names = file.read_texts(names::kClassNames);
  }
  if (file.has(names::kColumnNames)) {
    info.column_names = file.read_texts(names::kColumnNames);
  }
  info.table = read_table(file);
  std::int64_t table_inputs = 0;
  for (const TableColumn& column : info.table) {
    table_inputs += column.inputs();
  }
  const auto statistics = static_cast<std::int64_t>(info.mean.size());
  const bool classes = info.task == Task::kClassification;
  const auto target_statistics = static_cast<std::int64_t>(info.target_mean.size());
  if (info.target_deviation.size() != info.target_mean.size() ||
      (target_statistics != 0 && target_statistics != info.target_shape.count()) ||
      info.deviation.size() != info.mean.size() ||
      (statistics != 1 && statistics != info.input_shape.count() &&
       statistics != statistics_of(info.input_shape)) ||
      info.target_dtype != (classes ? DType::kInt64 : DType::kFloat64) ||
      (classes &&
       (info.target_shape.rank() != 0 || info.classes < 1 || info.classes > kMostClasses)) ||
      (!info.column_names.empty() &&
       std::ssize(info.column_names) != info.input_shape.count() + 1) ||
      (!info.table.empty() && table_inputs != info.input_shape.count()) ||
      info.input_dtype == DType::kInt64) {
    fail(ExitCode::kData, "{} is inconsistent in its shapes, types or statistics; import it anew",
         info.path.string());
  }
}

void read_token_facts(const hdf5::File& file, const hdf5::File& shard, DatasetInfo& info) {
  info.classes = file.int64(names::kVocabulary);
  info.input_dtype = shard.open_dataset(names::kTokens).dtype();
  info.target_dtype = DType::kInt64;
  const std::string tokenizer = file.text(names::kTokenizer);
  const auto known = enum_from_name<TokenizerKind>(tokenizer);
  if (!known) {
    fail(ExitCode::kData, "{} has the tokenizer '{}', known are {}", info.path.string(), tokenizer,
         joined_names<TokenizerKind>());
  }
  info.tokenizer = *known;
  info.tokenizer_checksum = file.uint64(names::kTokenizerChecksum);
  if (file.has_attribute(names::kChatTemplate)) {
    info.chat_template = file.text(names::kChatTemplate);
  }
  info.counted_tokens = info.tokens;
  if (file.has(names::kDocuments)) {
    info.documents = file.open_dataset(names::kDocuments).shape().count();
    info.documents_checksum = file.uint64(names::kDocumentsChecksum);
    info.counted_tokens = file.int64(names::kCountedTokens);
    info.pairs = file.has_attribute(names::kPairs) && file.int64(names::kPairs) != 0;
  }
  if (info.classes < 1 ||
      (info.input_dtype != DType::kUint16 && info.input_dtype != DType::kUint32) ||
      info.counted_tokens < 0 || info.counted_tokens > info.tokens ||
      file.int64(names::kBlockTokens) != names::kBlockTokensWritten) {
    fail(ExitCode::kData, "{} is inconsistent in its tokens or its vocabulary; import it anew",
         info.path.string());
  }
}

constexpr const char* kImportAdvice = "restore it or import it anew";

// Checks a file against the manifest, where there is one, before HDF5 opens it.
hdf5::File open_checked(const std::filesystem::path& path,
                        const std::optional<Manifest>& manifest) {
  if (manifest) {
    manifest->check(path, ExitCode::kData, kImportAdvice);
  }
  return hdf5::File::open(path, ExitCode::kData);
}

void require_shards(const DatasetInfo& info) {
  std::vector<std::string_view> missing;
  for (const ShardInfo& entry : info.shards) {
    if (!regular_file_bytes(info.path.parent_path() / entry.file, ExitCode::kData)) {
      missing.push_back(entry.file);
    }
  }
  if (missing.size() == 1) {
    fail(ExitCode::kData, "the shard {} of {} is missing; put it beside its master or import anew",
         missing.front(), info.path.string());
  }
  if (!missing.empty()) {
    constexpr std::size_t kShown = 5;
    fail(ExitCode::kData,
         "{} of the {} shards of {} are missing: {}{}; put them beside their master or import anew",
         missing.size(), info.shards.size(), info.path.string(),
         fmt::join(std::span(missing).first(std::min(missing.size(), kShown)), ", "),
         missing.size() > kShown ? ", ..." : "");
  }
}

hdf5::File open_shard_file(const ReadMaster& master, const ShardInfo& entry) {
  const std::filesystem::path path = master.info.path.parent_path() / entry.file;
  hdf5::File file = open_checked(path, master.manifest);
  check_format(file, names::kShardFormat, "a shard");
  return file;
}

}  // namespace

ReadMaster read_master(const std::filesystem::path& path) {
  ReadMaster master;
  DatasetInfo& info = master.info;
  if (!regular_file_bytes(path, ExitCode::kData)) {
    fail(ExitCode::kData, "{} does not exist", path.string());
  }
  master.manifest = Manifest::read(path, ExitCode::kData);
  const hdf5::File file = open_checked(path, master.manifest);
  check_format(file, names::kMasterFormat, "the master");
  if (!master.manifest && file.has_attribute(kManifestAttribute)) {
    fail(ExitCode::kData,
         "{} is missing: the data set was not copied whole; copy it or import anew",
         manifest_path(path).string());
  }
  info.path = path;
  info.source = file.text(names::kSource);
  const std::string task = file.text(names::kTask);
  const auto known_task = enum_from_name<Task>(task);
  if (!known_task) {
    fail(ExitCode::kData, "{} has the task '{}', known are {}", path.string(), task,
         joined_names<Task>());
  }
  info.task = *known_task;
  const bool tokens = info.task == Task::kNextToken;
  (tokens ? info.tokens : info.samples) = file.int64(tokens ? names::kTokens : names::kSamples);
  read_shard_list(file, info);
  require_shards(info);
  const hdf5::File shard = open_shard_file(master, info.shards.front());
  tokens ? read_token_facts(file, shard, info) : read_sample_facts(file, shard, info);
  info.checksum = file.uint64(names::kChecksum);
  if (info.checksum != facts_checksum(info)) {
    fail(ExitCode::kData,
         "{} is damaged: its description of samples and shards does not match its checksum; import "
         "it anew",
         path.string());
  }
  return master;
}

namespace {

// Throws: Error(kData) where the shard's checksum is not the one that its master promises.
void check_shard_checksum(const hdf5::File& file, const DatasetInfo& info, const ShardInfo& entry) {
  const std::uint64_t checksum = read_elements<std::uint64_t>(file, names::kChecksum, 0).front();
  if (checksum != entry.checksum) {
    fail(ExitCode::kData,
         "the shard {} belongs to another import than {}: its checksum is {}, expected {}",
         file.origin().path.string(), info.path.string(), hash_text(checksum),
         hash_text(entry.checksum));
  }
}

// Where a shard's data set lies in memory.
const std::byte* mapped_dataset(const hdf5::File& file, const MappedFile& mapped, const char* name,
                                const Shape& shape, const hdf5::ElementType& type) {
  const hdf5::Dataset dataset = file.open_dataset(name);
  if (!(dataset.shape() == shape) || !dataset.holds(type)) {
    fail(ExitCode::kData,
         "the shard {} holds '{}' as {} elements or of another type, its master promises {}",
         file.origin().path.string(), name, dataset.shape().text(), shape.text());
  }
  const grid::Range bytes = dataset.byte_range();
  const auto size = static_cast<std::int64_t>(mapped.bytes().size());
  if (bytes.end > size) {
    fail(ExitCode::kData, "the shard {} was cut short: '{}' ends at byte {}, the file at {}",
         file.origin().path.string(), name, bytes.end, size);
  }
  return mapped.bytes().data() + bytes.begin;
}

MappedShard map_shard(const ReadMaster& master, const ShardInfo& entry, std::int64_t first) {
  const DatasetInfo& info = master.info;
  const hdf5::File file = open_shard_file(master, entry);
  MappedShard shard{MappedFile(file.origin().path), first, entry.samples};
  const auto map = [&](const char* name, const Shape& shape, const hdf5::ElementType& type) {
    return mapped_dataset(file, shard.file, name, shape, type);
  };
  Shape checksums{entry.samples, names::kChecksumsPerSample};
  if (info.task == Task::kNextToken) {
    checksums = Shape{names::blocks_of(entry.samples)};
    shard.inputs = map(names::kTokens, Shape{entry.samples}, hdf5::element_type(info.input_dtype));
  } else {
    shard.inputs = map(names::kInputs, info.input_shape.prepended(entry.samples),
                       hdf5::element_type(info.input_dtype));
    shard.targets = map(names::kTargets, info.target_shape.prepended(entry.samples),
                        hdf5::element_type(info.target_dtype));
  }
  shard.checksums = {map(names::kChecksums, checksums, hdf5::uint64_type()),
                     static_cast<std::size_t>(checksums.count()) * sizeof(std::uint64_t)};
  check_shard_checksum(file, info, entry);
  return shard;
}

}  // namespace

std::vector<MappedShard> map_shards(ReadMaster& master) {
  DatasetInfo& info = master.info;
  std::vector<MappedShard> shards;
  std::int64_t first = 0;
  for (ShardInfo& entry : info.shards) {
    if (info.task == Task::kNextToken && first % names::kBlockTokensWritten != 0) {
      fail(ExitCode::kData,
           "{} is inconsistent: {} begins within a block of tokens; import it anew",
           info.path.string(), entry.file);
    }
    shards.push_back(map_shard(master, entry, first));
    entry.file_bytes = std::ssize(shards.back().file.bytes());
    first += entry.samples;
  }
  return shards;
}

const MappedShard& shard_with(std::span<const MappedShard> shards, std::int64_t index) {
  return *std::prev(std::upper_bound(
      shards.begin(), shards.end(), index,
      [](std::int64_t value, const MappedShard& shard) { return value < shard.first; }));
}

}  // namespace strata::io
