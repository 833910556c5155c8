#include "strata/io/dataset.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"

#include "dataset/dataset_format.hpp"
#include "dataset/dataset_names.hpp"
#include "dataset/dataset_read.hpp"
#include "dataset/token_stream.hpp"

namespace strata::io {
namespace {

namespace names = dataset_format;

std::span<const std::byte> slice(const std::byte* base, std::int64_t index, std::int64_t bytes) {
  return {base + index * bytes, static_cast<std::size_t>(bytes)};
}

/// The set of a mixture that a token or a sample is in.
std::size_t set_at(std::span<const std::int64_t> firsts, std::int64_t index) {
  return static_cast<std::size_t>(std::ranges::upper_bound(firsts, index) - firsts.begin()) - 1;
}

}  // namespace

std::string class_text(std::span<const std::string> names, std::int64_t label) {
  const auto index = static_cast<std::size_t>(label);
  return index < names.size() ? names[index] : std::to_string(label);
}

struct Dataset::Contents : ReadMaster {
  std::vector<MappedShard> shards;
  std::int64_t input_bytes = 0;
  std::int64_t target_bytes = 0;
  /// Of match_names(): the class of each stored label, -1 for none, and the stored place of each
  /// column; empty where they are as stored.
  std::vector<std::int64_t> labels;
  std::vector<std::int64_t> columns;
  /// Of tokens.
  std::once_flag documents_found;
  Documents documents;
  PackedSamples packed;
  /// Of of_tokens(); empty for files.
  std::vector<std::uint32_t> tokens;
  /// Of pairs; empty: all 0.
  std::vector<double> references;
  /// Of a mixture: the sets, whose tokens and samples follow each other, the weights that were
  /// given, and how they are mixed.
  std::vector<Dataset> sets;
  /// A text of unknown documents is then one.
  bool is_one_of_several = false;
  /// The begin of each set among the tokens and the samples of all, and then their number.
  std::vector<std::int64_t> first_tokens{0};
  std::vector<std::int64_t> first_samples{0};
  std::vector<std::optional<double>> weights;
  /// What match_names() says of sets whose names are ordered otherwise.
  std::string matched;
  std::optional<MixtureRules> rules;
  std::optional<Mixture> mixture;

  explicit Contents(ReadMaster master) : ReadMaster(std::move(master)) {}

  [[nodiscard]] bool holds_tokens() const { return info.task == Task::kNextToken; }
  /// The set of a mixture that has a sample, and the sample's number there.
  [[nodiscard]] std::pair<const Dataset&, std::int64_t> set_of(std::int64_t sample) const {
    require(sample >= 0 && sample < info.samples, "sample {} of {}", sample, info.samples);
    const std::size_t set = set_at(first_samples, sample);
    return {sets[set], sample - first_samples[set]};
  }
  /// Describes the sets as one. Statistics are those of all their samples, whatever the weights.
  void join();
  /// Mixes the sets by the weights that were given, if there are rules. Pre: each has samples.
  /// Throws: Error(kUsage) where one has too little weight.
  void mix();
  [[nodiscard]] const MappedShard& shard_of(std::int64_t sample) const {
    require(!holds_tokens(), "a data set of tokens was asked for a stored sample");
    require(sample >= 0 && sample < info.samples, "sample {} of {}", sample, info.samples);
    return shard_with(shards, sample);
  }
  /// The bytes of a sample's input (column 0) or target, verified.
  [[nodiscard]] std::span<const std::byte> bytes_of(const Dataset& dataset, std::int64_t sample,
                                                    std::int64_t column) const {
    const MappedShard& shard = shard_of(sample);
    const std::int64_t local = sample - shard.first;
    const auto bytes = column == 0 ? slice(shard.inputs, local, input_bytes)
                                   : slice(shard.targets, local, target_bytes);
    if (hash_of(bytes) != shard.checksum(local * names::kChecksumsPerSample + column)) {
      fail(ExitCode::kData,
           "the {} of {} does not match its checksum: the file is damaged; restore it or import it "
           "anew",
           column == 0 ? "input" : "target", dataset.sample_text(sample));
    }
    return bytes;
  }
};

Dataset::Dataset(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {}
Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&& other) noexcept = default;
Dataset& Dataset::operator=(Dataset&& other) noexcept = default;

Dataset Dataset::open(const std::filesystem::path& master) {
  auto contents = std::make_unique<Contents>(read_master(master));
  contents->shards = map_shards(*contents);
  contents->input_bytes = contents->info.input_bytes();
  contents->target_bytes = contents->info.target_bytes();
  return Dataset(std::move(contents));
}

namespace {

/// Refuses a set that cannot be mixed with the first, by a property that each has as a text.
void require_same(const DatasetInfo& set, const DatasetInfo& first, std::string_view what,
                  const std::string& ours, const std::string& theirs) {
  if (ours != theirs) {
    fail(ExitCode::kData,
         "{} and {} cannot be mixed: {} there {}, {} here; give sets of one kind, or import them "
         "alike",
         first.path.string(), set.path.string(), what, theirs, ours);
  }
}

void require_alike(const DatasetInfo& set, const DatasetInfo& first) {
  require_same(set, first, "the targets are for", std::string(name_of(set.task)),
               std::string(name_of(first.task)));
  if (set.task != Task::kNextToken) {
    require_same(set, first, "a sample is", set.input_shape.text(), first.input_shape.text());
    require_same(set, first, "inputs are stored as", std::string(name_of(set.input_dtype)),
                 std::string(name_of(first.input_dtype)));
    require_same(set, first, "the number of means of inputs is", std::to_string(set.mean.size()),
                 std::to_string(first.mean.size()));
    require_same(set, first, "a target is", set.target_shape.text(), first.target_shape.text());
    return;
  }
  if (set.tokenizer_checksum != first.tokenizer_checksum || set.classes != first.classes) {
    fail(ExitCode::kData,
         "{} has the tokenizer {} with {} ids and {} {} with {}, another one: their ids mean "
         "different text; import them with one tokenizer",
         set.path.string(), name_of(set.tokenizer), set.classes, first.path.string(),
         name_of(first.tokenizer), first.classes);
  }
  if (set.pairs != first.pairs) {
    fail(ExitCode::kData, "{} holds pairs of answers and {} does not; mix sets of one kind",
         (set.pairs ? set : first).path.string(), (set.pairs ? first : set).path.string());
  }
}

std::string names_text(const std::vector<std::string>& names) {
  return names.empty() ? "unnamed" : fmt::format("{}", fmt::join(names, ", "));
}

/// Pre: Dataset::match_names() has ordered the names of `set`.
void require_same_names(const DatasetInfo& set, const DatasetInfo& first) {
  require_same(set, first, "the columns are", names_text(set.column_names),
               names_text(first.column_names));
  require_same(set, first, "the classes are", names_text(set.class_names),
               names_text(first.class_names));
  require_same(set, first, "the number of classes is", std::to_string(set.classes),
               std::to_string(first.classes));
}

/// Takes a set's statistics into those of the sets before it; `share`: its part of all samples.
void add_statistics(double share, std::span<const double> set_mean,
                    std::span<const double> set_deviation, std::vector<double>& mean,
                    std::vector<double>& deviation) {
  if (set_mean.size() != mean.size()) {
    mean.clear();
    deviation.clear();
  }
  for (std::size_t i = 0; i < mean.size(); ++i) {
    // The variance is the mean of both variances, and s (1 - s) times the squared difference of the
    // means.
    const double apart = set_mean[i] - mean[i];
    deviation[i] = std::sqrt((1.0 - share) * deviation[i] * deviation[i] +
                             share * set_deviation[i] * set_deviation[i] +
                             share * (1.0 - share) * apart * apart);
    mean[i] += share * apart;
  }
}

/// The part of a mixture's samples that are those of a set.
double weight_in_samples(const MixtureRules& rules, const std::optional<double>& weight,
                         const DatasetInfo& set) {
  const auto samples = static_cast<double>(set.samples);
  if (!weight) {
    return std::pow(samples, 1.0 / rules.temperature);
  }
  switch (rules.by) {
    case MixtureBy::kSamples:
      break;
    case MixtureBy::kTokens:
      if (set.task != Task::kNextToken) {
        fail(ExitCode::kUsage,
             "data.mixture_by is tokens, but {} holds samples for {}; set it to samples or epochs",
             set.path.string(), name_of(set.task));
      }
      return set.packed_inputs > 0 ? *weight * samples / static_cast<double>(set.packed_inputs)
                                   : *weight / static_cast<double>(set.input_shape[0]);
    case MixtureBy::kEpochs:
      return *weight * samples;
  }
  return *weight;
}

}  // namespace

void Dataset::Contents::join() {
  const std::uint64_t checksum = info.checksum;
  info = sets.front().info();
  info.checksum = checksum;
  info.documents_checksum = 0;
  info.samples = info.tokens = info.documents = info.counted_tokens = info.packed_inputs = 0;
  first_tokens = first_samples = {0};
  for (const Dataset& set : sets) {
    const DatasetInfo& own = set.info();
    info.chat_template = info.chat_template.empty() ? own.chat_template : info.chat_template;
    info.samples += own.samples;
    info.tokens += own.tokens;
    info.counted_tokens += own.counted_tokens;
    info.documents += own.documents;
    info.packed_inputs += own.packed_inputs;
    first_tokens.push_back(info.tokens);
    first_samples.push_back(info.samples);
    if (!holds_tokens()) {
      const double share = static_cast<double>(own.samples) / static_cast<double>(info.samples);
      add_statistics(share, own.mean, own.deviation, info.mean, info.deviation);
      add_statistics(share, own.target_mean, own.target_deviation, info.target_mean,
                     info.target_deviation);
    }
  }
  info.mixture = mixture ? mixture->text() : "";
}

void Dataset::Contents::mix() {
  if (!rules) {
    return;
  }
  std::vector<double> parts;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    parts.push_back(weight_in_samples(*rules, weights[i], sets[i].info()));
  }
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] < Mixture::kLeastShare * sum) {
      fail(ExitCode::kUsage,
           "{} is {:.2g} of the mixture, less than 1 of {} samples; give it more weight, or leave "
           "it out",
           sets[i].info().path.string(), parts[i] / sum, Mixture::kBlock);
    }
  }
  mixture.emplace(parts);
  info.mixture = mixture->text();
}

Dataset Dataset::open_several(const std::vector<MixtureSet>& sets,
                              const std::optional<MixtureRules>& rules) {
  auto contents = std::make_unique<Contents>(ReadMaster());
  std::string facts;
  std::set<std::filesystem::path> named;
  for (const MixtureSet& set : sets) {
    if (!named.insert(set.master).second) {
      fail(ExitCode::kUsage, "{} is named twice; name it once, with the sum of its weights",
           set.master.string());
    }
    Dataset& opened = contents->sets.emplace_back(open(set.master));
    opened.contents_->is_one_of_several = true;
    contents->weights.push_back(set.weight);
    facts += fmt::format("{:016x} ", opened.info().checksum);
    if (contents->sets.size() > 1) {
      const DatasetInfo& first = contents->sets.front().info();
      require_alike(opened.info(), first);
      contents->matched +=
          opened.match_names(first, "import the sets with the same columns and classes");
      require_same_names(opened.info(), first);
    }
    for (const Dataset& other : contents->sets) {
      const std::string& theirs = other.info().chat_template;
      if (const std::string& ours = opened.info().chat_template; !ours.empty() && !theirs.empty()) {
        require_same(opened.info(), other.info(), "the template of dialogues is", ours, theirs);
      }
    }
  }
  contents->join();
  contents->info.checksum = hash_of(facts);
  contents->rules = rules;
  if (!contents->holds_tokens()) {
    contents->mix();
  }
  return Dataset(std::move(contents));
}

Dataset Dataset::of_tokens(std::vector<std::uint32_t> tokens, Documents documents,
                           DatasetInfo like) {
  require(!tokens.empty() && documents.ends.back() == std::ssize(tokens),
          "documents that do not end with their {} tokens", tokens.size());
  auto contents = std::make_unique<Contents>(ReadMaster());
  DatasetInfo& info = contents->info = std::move(like);
  info.task = Task::kNextToken;
  info.tokens = std::ssize(tokens);
  info.documents = std::ssize(documents.ends);
  info.pairs = documents.pairs;
  info.counted_tokens = documents.counted_tokens();
  info.documents_checksum = 0;
  info.shards.clear();
  info.mixture.clear();
  info.checksum =
      hash_of(fmt::format("{:016x} {:016x} {:016x}", hash_of(std::as_bytes(std::span(tokens))),
                          hash_of(std::as_bytes(std::span(documents.ends))),
                          hash_of(std::as_bytes(std::span(documents.counted)))));
  contents->tokens = std::move(tokens);
  std::call_once(contents->documents_found, [&] { contents->documents = std::move(documents); });
  return Dataset(std::move(contents));
}

const std::vector<Dataset>& Dataset::sets() const {
  return contents_->sets;
}

const Mixture* Dataset::mixture() const {
  return contents_->mixture ? &*contents_->mixture : nullptr;
}

grid::Range Dataset::samples_of(std::int64_t set) const {
  const auto index = static_cast<std::size_t>(set);
  return {contents_->first_samples[index], contents_->first_samples[index + 1]};
}

std::string Dataset::warning() const {
  for (const Dataset& set : contents_->sets) {
    if (std::string text = set.warning(); !text.empty()) {
      return text;
    }
  }
  const bool is_file = contents_->sets.empty() && contents_->tokens.empty();
  return contents_->manifest || !is_file ? contents_->matched : no_manifest_text(info().path);
}

const DatasetInfo& Dataset::info() const {
  return contents_->info;
}

void Dataset::set_context(std::int64_t context, Packing packing) {
  require(context > 0, "a context of {} tokens", context);
  DatasetInfo& info = contents_->info;
  if (!contents_->holds_tokens()) {
    fail(ExitCode::kData, "{} holds samples for {}, tokens were expected; import a text",
         info.path.string(), name_of(info.task));
  }
  info.input_shape = Shape{context};
  info.target_shape = Shape{context};
  contents_->packed = PackedSamples();
  info.packed_inputs = 0;
  if (!contents_->sets.empty()) {
    for (Dataset& set : contents_->sets) {
      set.set_context(context, packing);
    }
    contents_->join();
    contents_->mix();
    return;
  }
  if (info.pairs != (packing == Packing::kPairs)) {
    fail(ExitCode::kUsage, "data.packing is {}, but {} {}", name_of(packing), info.path.string(),
         info.pairs ? "holds pairs of answers; set it to pairs"
                    : "holds no pairs of answers, which train.objective = dpo needs; import some "
                      "with --format=preferences");
  }
  if (packing != Packing::kBlocks) {
    contents_->packed = PackedSamples(documents(), context, packing);
    for (std::int64_t i = 0; packing == Packing::kPairs && i < contents_->packed.samples(); ++i) {
      if (const std::int64_t inputs = inputs_of(i); inputs > context) {
        fail(ExitCode::kData,
             "pair {} of {} takes {} tokens, more than model.context = {}; make the context "
             "longer, or import the pairs again with --max-tokens={} --too-long=leave-out",
             i, info.path.string(), inputs, context, context);
      }
    }
    info.samples = contents_->packed.samples();
    info.packed_inputs = contents_->packed.inputs();
    if (info.samples == 0) {
      fail(ExitCode::kData, "{} has no document of two tokens or more; import other texts",
           info.path.string());
    }
    return;
  }
  if (info.tokens <= context) {
    fail(
        ExitCode::kData,
        "{} holds {} tokens, a context of {} needs {} at least; make the context shorter or import "
        "more text",
        info.path.string(), count_text(info.tokens), count_text(context), count_text(context + 1));
  }
  info.samples = (info.tokens - 1) / context;
}

std::vector<Piece> Dataset::pieces(std::int64_t sample) const {
  if (!contents_->sets.empty()) {
    const std::size_t set = set_at(contents_->first_samples, sample);
    std::vector<Piece> pieces = contents_->sets[set].pieces(sample - contents_->first_samples[set]);
    for (Piece& piece : pieces) {
      piece.first += contents_->first_tokens[set];
    }
    return pieces;
  }
  if (contents_->packed.samples() > 0) {
    const std::span<const Piece> pieces = contents_->packed.pieces(sample);
    return {pieces.begin(), pieces.end()};
  }
  const std::int64_t context = info().input_shape[0];
  return {{sample * context, context}};
}

std::int64_t Dataset::inputs_of(std::int64_t sample) const {
  std::int64_t inputs = 0;
  for (const Piece& piece : pieces(sample)) {
    inputs += piece.inputs;
  }
  return inputs;
}

void Dataset::set_references(std::vector<double> references) {
  require(std::ssize(references) == info().samples, "{} references for {} samples",
          references.size(), info().samples);
  for (std::size_t i = 0; i < contents_->sets.size(); ++i) {
    const auto begin = references.begin() + contents_->first_samples[i];
    contents_->sets[i].set_references(
        {begin, references.begin() + contents_->first_samples[i + 1]});
  }
  contents_->references = std::move(references);
}

double Dataset::reference(std::int64_t sample) const {
  return contents_->references.empty() ? 0.0
                                       : contents_->references[static_cast<std::size_t>(sample)];
}

const Documents& Dataset::documents() const {
  std::call_once(contents_->documents_found, [&] {
    for (std::size_t i = 0; i < contents_->sets.size(); ++i) {
      contents_->documents.add(contents_->sets[i].documents(), contents_->first_tokens[i],
                               info().counted_tokens < info().tokens);
    }
    if (!contents_->sets.empty()) {
      return;
    }
    if (contents_->is_one_of_several && info().documents_checksum == 0 &&
        separator_of(info()).id < 0) {
      contents_->documents = {.ends = {info().tokens}};
      return;
    }
    contents_->documents = info().documents_checksum != 0
                               ? read_documents(*contents_)
                               : separated_documents(info(), contents_->shards);
  });
  return contents_->documents;
}

std::string Dataset::match_names(const DatasetInfo& model, std::string_view advice) {
  DatasetInfo& info = contents_->info;
  if (info.task != model.task || contents_->holds_tokens()) {
    return "";
  }
  std::vector<std::string> lines;
  if (!contents_->sets.empty()) {
    for (Dataset& set : contents_->sets) {
      if (std::string line = set.match_names(model, advice); !line.empty()) {
        lines.push_back(std::move(line));
      }
    }
    contents_->join();
    return fmt::format("{}", fmt::join(lines, "; "));
  }
  const std::vector<std::int64_t> columns = matched_columns(info, model, advice);
  if (!std::ranges::is_sorted(columns)) {
    lines.push_back(fmt::format("{} has its columns in another order than {}: matched by name",
                                info.path.string(), model.path.string()));
    for (std::vector<double>* const statistic : {&info.mean, &info.deviation}) {
      const std::vector<double> stored = *statistic;
      if (stored.size() == columns.size()) {
        std::ranges::transform(columns, statistic->begin(),
                               [&](std::int64_t i) { return stored[static_cast<std::size_t>(i)]; });
      }
    }
    // A set of a mixture was matched with the first before.
    const std::vector<std::int64_t> before = std::exchange(contents_->columns, columns);
    for (std::int64_t& column : contents_->columns) {
      column = before.empty() ? column : before[static_cast<std::size_t>(column)];
    }
  }
  if (!columns.empty()) {
    info.column_names = model.column_names;
    info.table = model.table;
  }
  const std::vector<std::int64_t> labels = matched_classes(info, model);
  if (labels.empty() && info.class_names.empty() != model.class_names.empty()) {
    const bool ours = !info.class_names.empty();
    lines.push_back(fmt::format("the classes of {} have no names: its class 0 counts as '{}'",
                                (ours ? model : info).path.string(),
                                (ours ? info : model).class_names.front()));
  }
  if (!labels.empty()) {
    const bool known = std::ranges::find(labels, -1) == labels.end();
    const auto counts = known ? std::vector<std::int64_t>() : class_counts();
    bool moved = false;
    for (std::int64_t i = 0; i < std::ssize(labels); ++i) {
      const std::int64_t label = labels[static_cast<std::size_t>(i)];
      moved = moved || (label >= 0 && label != i);
      if (label < 0 && counts[static_cast<std::size_t>(i)] > 0) {
        fail(ExitCode::kData, "{} has samples of the class '{}', which {} lacks; {}",
             info.path.string(), class_text(info.class_names, i), model.path.string(), advice);
      }
    }
    if (moved) {
      lines.push_back(fmt::format("{} numbers its classes otherwise than {}: matched by name",
                                  info.path.string(), model.path.string()));
    }
    if (contents_->labels.empty()) {
      contents_->labels = labels;
    } else {
      for (std::int64_t& label : contents_->labels) {
        label = label < 0 ? label : labels[static_cast<std::size_t>(label)];
      }
    }
    info.class_names = model.class_names;
    info.classes = model.classes;
  }
  return fmt::format("{}", fmt::join(lines, "; "));
}

void Dataset::read_tokens(std::int64_t first, std::span<std::int64_t> tokens) const {
  require(contents_->holds_tokens(), "a data set of samples was asked for tokens");
  if (!contents_->sets.empty()) {
    const std::size_t set = set_at(contents_->first_tokens, first);
    contents_->sets[set].read_tokens(first - contents_->first_tokens[set], tokens);
    return;
  }
  if (!contents_->tokens.empty()) {
    std::copy_n(contents_->tokens.begin() + first, tokens.size(), tokens.begin());
    return;
  }
  io::read_tokens(info(), contents_->shards, first, tokens);
}

std::span<const std::byte> Dataset::sample_input(std::int64_t sample) const {
  if (!contents_->sets.empty()) {
    const auto [set, own] = contents_->set_of(sample);
    return set.sample_input(own);
  }
  return contents_->bytes_of(*this, sample, 0);
}

std::span<const std::byte> Dataset::sample_target(std::int64_t sample) const {
  if (!contents_->sets.empty()) {
    const auto [set, own] = contents_->set_of(sample);
    return set.sample_target(own);
  }
  return contents_->bytes_of(*this, sample, 1);
}

std::span<const std::byte> Dataset::ordered_input(std::int64_t sample,
                                                  std::vector<std::byte>& buffer) const {
  if (!contents_->sets.empty()) {
    const auto [set, own] = contents_->set_of(sample);
    return set.ordered_input(own, buffer);
  }
  const std::span<const std::byte> stored = sample_input(sample);
  if (contents_->columns.empty()) {
    return stored;
  }
  const std::int64_t bytes = size_bytes(info().input_dtype);
  buffer.resize(stored.size());
  for (std::int64_t i = 0; i < std::ssize(contents_->columns); ++i) {
    const std::int64_t column = contents_->columns[static_cast<std::size_t>(i)];
    std::memcpy(buffer.data() + i * bytes, stored.data() + column * bytes,
                static_cast<std::size_t>(bytes));
  }
  return buffer;
}

std::int64_t Dataset::label(std::int64_t sample) const {
  if (!contents_->sets.empty()) {
    const auto [set, own] = contents_->set_of(sample);
    return set.label(own);
  }
  const auto stored = load<std::int64_t>(sample_target(sample).data());
  const std::vector<std::int64_t>& labels = contents_->labels;
  const std::int64_t classes = labels.empty() ? info().classes : std::ssize(labels);
  const bool known = stored >= 0 && stored < classes;
  const std::int64_t label =
      known && !labels.empty() ? labels[static_cast<std::size_t>(stored)] : stored;
  if (!known || label < 0) {
    fail(ExitCode::kData, "the label of {} is {}, expected 0 to {}", sample_text(sample), stored,
         classes - 1);
  }
  return label;
}

void Dataset::prefetch(std::int64_t sample) const {
  if (!contents_->sets.empty()) {
    const auto [set, own] = contents_->set_of(sample);
    set.prefetch(own);
    return;
  }
  constexpr std::int64_t kLine = 64;
  // The hardware prefetcher handles longer samples.
  constexpr std::int64_t kMostBytes = 1024;
  const MappedShard& shard = contents_->shard_of(sample);
  const std::int64_t local = sample - shard.first;
  const std::byte* input = shard.inputs + local * contents_->input_bytes;
  for (std::int64_t at = 0; at < std::min(contents_->input_bytes, kMostBytes); at += kLine) {
    __builtin_prefetch(input + at);
  }
  __builtin_prefetch(shard.targets + local * contents_->target_bytes);
  __builtin_prefetch(shard.checksums.data() +
                     local * names::kChecksumsPerSample * std::int64_t{sizeof(std::uint64_t)});
}

std::string Dataset::sample_text(std::int64_t sample) const {
  if (!contents_->sets.empty()) {
    const auto [set, own] = contents_->set_of(sample);
    return set.sample_text(own);
  }
  const MappedShard& shard = contents_->shard_of(sample);
  const auto index = static_cast<std::size_t>(&shard - contents_->shards.data());
  return fmt::format("sample {} (number {} of {})", sample, sample - shard.first,
                     (info().path.parent_path() / info().shards[index].file).string());
}

std::vector<ShardCheck> Dataset::verify(const SampleProgress& progress) const {
  constexpr std::int64_t kReportEvery = 1 << 14;
  if (contents_->holds_tokens()) {
    return verify_tokens(info(), contents_->shards, progress);
  }
  std::vector<ShardCheck> checks;
  for (std::size_t i = 0; i < contents_->shards.size(); ++i) {
    const MappedShard& shard = contents_->shards[i];
    const auto problem_of = [&](std::int64_t local) {
      const auto input = slice(shard.inputs, local, contents_->input_bytes);
      const auto target = slice(shard.targets, local, contents_->target_bytes);
      const std::int64_t done = shard.first + local + 1;
      if (progress && (done % kReportEvery == 0 || done == info().samples)) {
        progress(done, info().samples);
      }
      const bool good = hash_of(input) == shard.checksum(local * names::kChecksumsPerSample) &&
                        hash_of(target) == shard.checksum(local * names::kChecksumsPerSample + 1);
      return good ? std::string() : fmt::format("sample {} is damaged", shard.first + local);
    };
    checks.push_back(check_shard(shard, info().shards[i].checksum, shard.count, problem_of));
  }
  return checks;
}

std::vector<std::int64_t> Dataset::class_counts() const {
  if (info().task != Task::kClassification) {
    return {};
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(info().classes));
  for (std::int64_t sample = 0; sample < info().samples; ++sample) {
    ++counts[static_cast<std::size_t>(label(sample))];
  }
  return counts;
}

}  // namespace strata::io
