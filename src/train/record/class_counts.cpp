#include "strata/train/class_counts.hpp"

#include <cerrno>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/text_file.hpp"

namespace strata::train {
namespace {

/// The rows of fields of a text as write_confusion() writes it.
std::vector<std::vector<std::string>> csv_rows(std::string_view text) {
  std::vector<std::vector<std::string>> rows(1, std::vector<std::string>(1));
  enum class Field { kPlain, kQuoted } field = Field::kPlain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char character = text[i];
    if (character == '"') {
      const bool doubled = field == Field::kQuoted && text.substr(i + 1).starts_with('"');
      if (doubled) {
        rows.back().back() += '"';
        ++i;
      } else {
        field = field == Field::kQuoted ? Field::kPlain : Field::kQuoted;
      }
    } else if (field == Field::kPlain && character == ',') {
      rows.back().emplace_back();
    } else if (field == Field::kPlain && character == '\n') {
      rows.emplace_back(1);
    } else {
      rows.back().back() += character;
    }
  }
  rows.pop_back();  // what follows the last line feed
  return rows;
}

/// The share in percent; 0 where `whole` is 0.
double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

ClassCounts::ClassCounts(std::int64_t classes)
    : classes_(classes), counts_(static_cast<std::size_t>(classes * (classes + 1))) {}

void ClassCounts::add(const ConstTensorView& logits, const ConstTensorView& labels,
                      std::int64_t valid) {
  require(logits.count() >= valid * classes_ && labels.count() >= valid,
          "{} logits and {} labels for {} rows of {} classes", logits.count(), labels.count(),
          valid, classes_);
  const std::span<const std::int64_t> label = labels.host<std::int64_t>();
  with_stored(logits.dtype(), [&]<typename T>(T) {
    const std::span<const T> all = logits.host<T>();
    for (std::int64_t r = 0; r < valid; ++r) {
      const std::span<const T> row =
          all.subspan(static_cast<std::size_t>(r * classes_), static_cast<std::size_t>(classes_));
      const auto value = [&](std::size_t i) { return static_cast<Compute<T>>(row[i]); };
      const auto wanted = static_cast<std::size_t>(label[static_cast<std::size_t>(r)]);
      std::size_t answer = 0;
      std::int64_t before = 0;
      for (std::size_t i = 0; i < row.size(); ++i) {
        answer = value(i) > value(answer) ? i : answer;
        before += value(i) > value(wanted) || (value(i) == value(wanted) && i < wanted) ? 1 : 0;
      }
      const auto stride = static_cast<std::size_t>(classes_ + 1);
      ++counts_[wanted * stride + answer];
      counts_[wanted * stride + row.size()] += before < kFirst ? 1 : 0;
    }
  });
}

void ClassCounts::add_up(comm::Communicator& group) {
  // One class at a time: memory does not grow with ranks times classes squared.
  const auto width = static_cast<std::size_t>(classes_ + 1);
  std::vector<std::int64_t> all(width * static_cast<std::size_t>(group.size()));
  for (std::int64_t label = 0; label < classes_; ++label) {
    const std::span<std::int64_t> mine =
        std::span(counts_).subspan(static_cast<std::size_t>(label) * width, width);
    group.all_gather(comm::payload_of(mine), comm::payload_of(std::span(all)));
    for (std::size_t i = 0; i < width; ++i) {
      mine[i] = 0;
      for (std::size_t at = i; at < all.size(); at += width) {
        mine[i] += all[at];
      }
    }
  }
}

void ClassCounts::take_from(comm::Communicator& group, std::int64_t root) {
  const auto width = static_cast<std::size_t>(classes_ + 1);
  for (std::size_t first = 0; first < counts_.size(); first += width) {
    group.broadcast(comm::payload_of(std::span(counts_).subspan(first, width)), root);
  }
}

std::int64_t ClassCounts::samples(std::int64_t label) const {
  const std::span<const std::int64_t> answers =
      row(label).first(static_cast<std::size_t>(classes_));
  return std::accumulate(answers.begin(), answers.end(), std::int64_t{0});
}

double ClassCounts::macro_f1() const {
  double sum = 0.0;
  double seen = 0.0;
  for (std::int64_t label = 0; label < classes_; ++label) {
    std::int64_t all = samples(label);
    for (std::int64_t other = 0; other < classes_; ++other) {
      all += count(other, label);
    }
    if (all > 0) {
      sum += 2.0 * static_cast<double>(count(label, label)) / static_cast<double>(all);
      seen += 1.0;
    }
  }
  return sum / seen;
}

double ClassCounts::accuracy_in_first() const {
  std::int64_t right = 0;
  std::int64_t all = 0;
  for (std::int64_t label = 0; label < classes_; ++label) {
    right += row(label).back();
    all += samples(label);
  }
  return percent(right, all) / 100.0;
}

std::string class_table(const ClassCounts& counts, std::span<const std::string> names) {
  std::vector<std::vector<std::string>> rows{
      {"class", "samples", "accuracy", "mostly confused with", "share"}};
  for (std::int64_t label = 0; label < counts.classes(); ++label) {
    const std::int64_t samples = counts.samples(label);
    std::int64_t other = label == 0 ? 1 : 0;
    for (std::int64_t answer = 0; answer < counts.classes(); ++answer) {
      if (answer != label && counts.count(label, answer) > counts.count(label, other)) {
        other = answer;
      }
    }
    const bool mistaken = other < counts.classes() && counts.count(label, other) > 0;
    rows.push_back(
        {io::class_text(names, label), count_text(samples),
         fmt::format("{:.2f} %", percent(counts.count(label, label), samples)),
         mistaken ? io::class_text(names, other) : "-",
         mistaken ? fmt::format("{:.2f} %", percent(counts.count(label, other), samples)) : "-"});
  }
  return table_text(rows);
}

void write_confusion(const ClassCounts& counts, std::span<const std::string> names,
                     const std::filesystem::path& file) {
  std::string text = "class";
  for (std::int64_t answer = 0; answer < counts.classes(); ++answer) {
    text += "," + io::csv_field(io::class_text(names, answer));
  }
  text += '\n';
  for (std::int64_t label = 0; label < counts.classes(); ++label) {
    text += io::csv_field(io::class_text(names, label));
    for (std::int64_t answer = 0; answer < counts.classes(); ++answer) {
      text += fmt::format(",{}", counts.count(label, answer));
    }
    text += '\n';
  }
  if (!io::write_output(file, text)) {
    fail(ExitCode::kUsage,
         "cannot write the confusion matrix to {}: {}; choose another --confusion", file.string(),
         std::strerror(errno));
  }
}

std::optional<ConfusionTable> confusion_in(std::string_view text) {
  const std::vector<std::vector<std::string>> rows = csv_rows(text);
  if (rows.size() < 2 || rows.front().front() != "class") {
    return std::nullopt;
  }
  ConfusionTable table;
  table.names.assign(rows.front().begin() + 1, rows.front().end());
  for (const std::vector<std::string>& row : std::span(rows).subspan(1)) {
    std::vector<double>& counts = table.counts.emplace_back();
    for (const std::string& field : std::span(row).subspan(1)) {
      double count = -1.0;
      if (!parse_double(field, count) || !(count >= 0.0)) {
        return std::nullopt;
      }
      counts.push_back(count);
    }
    if (counts.size() != table.names.size() || table.counts.size() > table.names.size() ||
        row.front() != table.names[table.counts.size() - 1]) {
      return std::nullopt;
    }
  }
  return table.counts.size() == table.names.size() ? std::optional(std::move(table)) : std::nullopt;
}

}  // namespace strata::train
