#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/tokenizer.hpp"

namespace strata::io {
namespace {

constexpr std::size_t kShownClasses = 100;
constexpr std::size_t kShownFeatures = 20;

std::string class_table(const Dataset& dataset) {
  const DatasetInfo& info = dataset.info();
  const std::vector<std::int64_t> counts = dataset.class_counts();
  std::vector<std::vector<std::string>> rows{{"class", "name", "samples"}};
  for (std::size_t i = 0; i < std::min(counts.size(), kShownClasses); ++i) {
    rows.push_back({std::to_string(i), i < info.class_names.size() ? info.class_names[i] : "-",
                    count_text(counts[i])});
  }
  std::string text = table_text(rows);
  if (counts.size() > kShownClasses) {
    text += fmt::format("... and {} more classes\n", counts.size() - kShownClasses);
  }
  return text;
}

std::string statistics_text(const DatasetInfo& info) {
  if (info.mean.size() == 1) {
    return fmt::format("train mean  {:.6g}, deviation {:.6g} (of all inputs)\n", info.mean[0],
                       info.deviation[0]);
  }
  const bool named = !info.column_names.empty();
  const char* what = is_image(info.input_shape) ? "channel" : named ? "column" : "feature";
  std::vector<std::vector<std::string>> rows{{what, "train mean", "train deviation"}};
  for (std::size_t i = 0; i < std::min(info.mean.size(), kShownFeatures); ++i) {
    rows.push_back({named ? info.column_names[i] : std::to_string(i),
                    fmt::format("{:.6g}", info.mean[i]), fmt::format("{:.6g}", info.deviation[i])});
  }
  std::string text = "\n" + table_text(rows);
  if (info.mean.size() > kShownFeatures) {
    text += fmt::format("... and {} more {}s\n", info.mean.size() - kShownFeatures, what);
  }
  return text;
}

// The label and the columns of a table, as in "age (missing: 29.7), colour (3 names)".
std::string columns_text(const DatasetInfo& info) {
  if (info.column_names.empty()) {
    return "";
  }
  std::string text = fmt::format("label       {}\n", info.column_names.back());
  std::vector<std::string> columns;
  for (const TableColumn& column :
       std::span(info.table).first(std::min(info.table.size(), kShownFeatures))) {
    columns.push_back(column.name);
    if (!column.categories.empty()) {
      columns.back() += fmt::format(" ({} names)", column.categories.size());
    } else if (!std::isnan(column.missing)) {
      columns.back() += fmt::format(" (missing: {:.6g})", column.missing);
    }
  }
  if (info.table.size() > columns.size()) {
    columns.push_back(fmt::format("and {} more", info.table.size() - columns.size()));
  }
  return columns.empty() ? text : text + fmt::format("columns     {}\n", fmt::join(columns, ", "));
}

std::string shard_table(const DatasetInfo& info, std::span<const ShardCheck> checks) {
  std::vector<std::vector<std::string>> rows{
      {"shard", info.tokens > 0 ? "tokens" : "samples", "size", "contents"}};
  for (std::size_t i = 0; i < info.shards.size(); ++i) {
    std::string state = "not read";
    if (i < checks.size()) {
      state = checks[i].problem.empty()
                  ? "ok"
                  : fmt::format("BAD: {} ({} bad {})", checks[i].problem, checks[i].bad_samples,
                                info.tokens > 0 ? "blocks" : "samples");
    }
    rows.push_back({info.shards[i].file, count_text(info.shards[i].samples),
                    bytes_text(info.shards[i].file_bytes), state});
  }
  return table_text(rows);
}

std::string samples_text(const Dataset& dataset, std::int64_t bad_shards) {
  const DatasetInfo& info = dataset.info();
  std::string text = fmt::format("samples     {}\ninput       {} {} ({})\ntarget      {} {}\n",
                                 count_text(info.samples), info.input_shape.text(),
                                 name_of(info.input_dtype), bytes_text(info.input_bytes()),
                                 info.target_shape.text(), name_of(info.target_dtype));
  text += columns_text(info) + statistics_text(info) + "\n";
  // Damaged labels cannot be counted; the shard's row reports them.
  if (info.task == Task::kClassification && bad_shards == 0) {
    text += class_table(dataset) + "\n";
  }
  return text;
}

// The text of the first tokens in quotes, with unprintable characters escaped.
std::string beginning(const Dataset& dataset) {
  constexpr std::int64_t kShownTokens = 64;
  const Tokenizer tokenizer = Tokenizer::of(dataset.info());
  std::vector<std::int64_t> ids(
      static_cast<std::size_t>(std::min(kShownTokens, dataset.info().tokens)));
  dataset.read_tokens(0, ids);
  return quoted_text(tokenizer.decode(ids));
}

std::string tokens_text(const Dataset& dataset, std::int64_t bad_shards) {
  const DatasetInfo& info = dataset.info();
  std::string text =
      fmt::format("tokens      {} {}\nvocabulary  {}\ntokenizer   {}\n", count_text(info.tokens),
                  name_of(info.input_dtype), count_text(info.classes), name_of(info.tokenizer));
  if (info.documents > 0) {
    text += fmt::format("documents   {}{}\n", count_text(info.documents),
                        info.pairs ? ", pairs of a preferred and a rejected answer" : "");
  }
  if (info.counted_tokens < info.tokens) {
    text += fmt::format(
        "counted     {} tokens ({:.1f} %) count as targets\n", count_text(info.counted_tokens),
        100.0 * static_cast<double>(info.counted_tokens) / static_cast<double>(info.tokens));
  }
  if (!info.chat_template.empty()) {
    text += fmt::format("template    {}\n", printable(info.chat_template));
  }
  // Damaged tokens have no text; the shard's row reports them.
  if (info.tokenizer != TokenizerKind::kNone && bad_shards == 0) {
    text += fmt::format("begins      {}\n", beginning(dataset));
  }
  return text + "\n";
}

}  // namespace

std::string document_text(const Dataset& dataset, std::int64_t number) {
  const DatasetInfo& info = dataset.info();
  if (info.task != Task::kNextToken) {
    fail(ExitCode::kUsage, "{} holds samples, not documents; see --contact-sheet",
         info.path.string());
  }
  const Documents& documents = dataset.documents();
  if (number >= std::ssize(documents.ends)) {
    fail(ExitCode::kUsage, "--document={}, but {} has the documents 0 to {}", number,
         info.path.string(), documents.ends.size() - 1);
  }
  const Tokenizer tokenizer = Tokenizer::of(info);
  std::string text;
  for (std::int64_t first = documents.begin(number); first < documents.end(number);) {
    const bool counts = documents.counts(first);
    std::int64_t end = first + 1;
    while (end < documents.end(number) && documents.counts(end) == counts) {
      ++end;
    }
    std::vector<std::int64_t> ids(static_cast<std::size_t>(end - first));
    dataset.read_tokens(first, ids);
    const std::string part =
        tokenizer.decode(ids, first > documents.begin(number) ? Continues::kYes : Continues::kNo);
    text += counts && info.counted_tokens < info.tokens ? "⟦" + part + "⟧" : part;
    first = end;
  }
  return text + "\n";
}

Inspection inspect_dataset(const std::filesystem::path& master, Inspect inspect,
                           const SampleProgress& progress) {
  const Dataset dataset = Dataset::open(master);
  const DatasetInfo& info = dataset.info();
  std::vector<ShardCheck> checks;
  if (inspect == Inspect::kVerify) {
    checks = dataset.verify(progress);
  }
  Inspection inspection;
  inspection.warning = dataset.warning();
  inspection.bad_shards = std::count_if(
      checks.begin(), checks.end(), [](const ShardCheck& check) { return !check.problem.empty(); });
  inspection.text = fmt::format("data set    {}\nmade from   {}\ntask        {}\n",
                                info.path.string(), info.source, name_of(info.task));
  inspection.text += info.task == Task::kNextToken ? tokens_text(dataset, inspection.bad_shards)
                                                   : samples_text(dataset, inspection.bad_shards);
  inspection.text += shard_table(info, checks);
  return inspection;
}

}  // namespace strata::io
