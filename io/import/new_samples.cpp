#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/io/table.hpp"

#include "files/array_file.hpp"
#include "files/csv_reader.hpp"
#include "files/json_lines.hpp"
#include "import/input_files.hpp"
#include "import/sample_source.hpp"

// Samples for a model, without targets.
namespace strata::io {
namespace {

class NewSamples : public SampleSource {
 public:
  [[nodiscard]] std::vector<std::int32_t> labels() final {
    return std::vector<std::int32_t>(static_cast<std::size_t>(info_.samples));
  }

 protected:
  /// Makes room for samples, with targets of 0.
  void resize(std::int64_t count, SampleBatch& batch) const {
    batch.targets.clear();
    batch.resize(info_, count);
  }
};

/// The columns of the model, one number each where the data set does not say more.
std::vector<TableColumn> columns_of(const DatasetInfo& model) {
  std::vector<TableColumn> columns = model.table;
  if (columns.empty() && !model.column_names.empty()) {
    for (const std::string& name :
         std::span(model.column_names).first(model.column_names.size() - 1)) {
      columns.push_back({.name = name});
    }
  }
  return columns;
}

class TableSamples final : public NewSamples {
 public:
  explicit TableSamples(const ImportOptions& options)
      : options_(options), columns_(columns_of(*options.model)) {
    info_ = model_layout(*options.model);
    if (info_.input_shape.rank() != 1 || info_.input_dtype == DType::kUint8) {
      fail(ExitCode::kData,
           "{} is a table, but the model takes samples of {} ({}); give it pictures or arrays",
           options.inputs.front().string(), info_.input_shape.text(), name_of(info_.input_dtype));
    }
    for (const std::filesystem::path& path : options.inputs) {
      const std::unique_ptr<TableReader> reader = open(path);
      while (reader->next()) {
        ++info_.samples;
        ids_.emplace_back(id_ ? std::string(reader->fields()[*id_])
                              : std::to_string(info_.samples - 1));
      }
      ends_.push_back(info_.samples);
    }
    if (info_.samples == 0) {
      fail(ExitCode::kData, "{} has no rows", options.inputs.front().string());
    }
    if (!left_out_.empty()) {
      notes_.push_back(fmt::format("left out, for the model does not take them: the column{} {}",
                                   left_out_.size() == 1 ? "" : "s", fmt::join(left_out_, ", ")));
    }
    info_.source = joined_file_names(options.inputs);
  }

  void next(std::int64_t count, SampleBatch& batch) override {
    resize(count, batch);
    std::vector<float> row(static_cast<std::size_t>(info_.input_shape[0]));
    for (std::int64_t done = 0; done < count;) {
      if (!reader_) {
        if (next_file_ == options_.inputs.size()) {
          fail(ExitCode::kData, "{} has fewer rows than a moment ago; is the file changing?",
               options_.inputs.back().string());
        }
        reader_ = open(options_.inputs[next_file_++]);
      }
      if (!reader_->next()) {
        reader_.reset();
        continue;
      }
      encode(row);
      std::byte* const to = batch.inputs.data() + done * info_.input_bytes();
      if (info_.input_dtype == DType::kFloat64) {
        for (std::size_t i = 0; i < row.size(); ++i) {
          const double value = row[i];
          std::memcpy(to + i * sizeof value, &value, sizeof value);
        }
      } else {
        std::memcpy(to, row.data(), row.size() * sizeof(float));
      }
      ++done;
    }
  }
  void finish() override {}  // the first pass reads every file to its end

 private:
  /// Opens a file and finds the model's columns in it.
  std::unique_ptr<TableReader> open(const std::filesystem::path& path) {
    std::unique_ptr<TableReader> reader;
    if (options_.format == ImportFormat::kJsonLines) {
      reader = std::make_unique<JsonTable>(path, [&](const std::string& column) {
        return columns_.empty() || column == options_.table.id || is_usual_id(column) ||
               std::ranges::find(columns_, column, &TableColumn::name) != columns_.end();
      });
    } else {
      reader = std::make_unique<CsvReader>(path);
    }
    const std::vector<std::string>& header = reader->header();
    places_.clear();
    if (columns_.empty()) {
      take_all(*reader);
    }
    std::set<std::string_view> taken;
    for (const TableColumn& column : columns_) {
      const auto found = std::ranges::find(header, column.name);
      if (found == header.end()) {
        fail(ExitCode::kData,
             "{} has no column '{}', which the model takes; the nearest is '{}'. Give the columns "
             "of its training data, in any order",
             path.string(), column.name, nearest(column.name, header));
      }
      places_.push_back(static_cast<std::size_t>(found - header.begin()));
      taken.insert(column.name);
    }
    find_id(header, taken);
    left_out_.clear();
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (!taken.contains(header[i]) && id_ != i) {
        left_out_.push_back(header[i]);
      }
    }
    return reader;
  }

  /// A model of arrays takes the columns in their order.
  void take_all(const TableReader& reader) {
    const std::int64_t expected = info_.input_shape[0];
    if (std::ssize(reader.header()) != expected) {
      fail(ExitCode::kData,
           "{} has {} columns; the model learned from {}, whose {} inputs have no names, so that a "
           "table needs as many columns, in their order",
           reader.path().string(), reader.header().size(), info_.path.string(), expected);
    }
    for (const std::string& name : reader.header()) {
      columns_.push_back({.name = name});
    }
  }

  static bool is_usual_id(std::string_view name) {
    return name == "id" || name == "Id" || name == "ID";
  }

  void find_id(const std::vector<std::string>& header, const std::set<std::string_view>& taken) {
    const std::string& asked = options_.table.id;
    id_.reset();
    for (std::size_t i = 0; i < header.size() && !id_; ++i) {
      const bool is_id =
          asked.empty() ? is_usual_id(header[i]) && !taken.contains(header[i]) : header[i] == asked;
      if (is_id) {
        id_ = i;
      }
    }
    if (!asked.empty() && !id_) {
      fail(ExitCode::kUsage, "--id={}: there is no such column; the nearest is '{}'", asked,
           nearest(asked, header));
    }
  }

  void encode(std::span<float> row) const {
    std::size_t at = 0;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const TableColumn& column = columns_[i];
      const auto inputs = static_cast<std::size_t>(column.inputs());
      const std::string_view field = reader_->fields()[places_[i]];
      if (const std::string problem = encode_field(column, field, row.subspan(at, inputs));
          !problem.empty()) {
        fail(ExitCode::kData, "{}:{}: column '{}': '{}' {}", reader_->path().string(),
             reader_->line(), column.name, field, problem);
      }
      at += inputs;
    }
  }

  ImportOptions options_;
  std::vector<TableColumn> columns_;
  std::vector<std::size_t> places_;  ///< of these in the file that is read
  std::optional<std::size_t> id_;
  std::vector<std::string> left_out_;
  std::size_t next_file_ = 0;
  std::unique_ptr<TableReader> reader_;
};

class ArraySamples final : public NewSamples {
 public:
  explicit ArraySamples(const ImportOptions& options) {
    info_ = model_layout(*options.model);
    for (const std::filesystem::path& path : options.inputs) {
      const ArrayFile& file = files_.emplace_back(ArrayFile::open_npy(path));
      if (!(file.shape().tail() == info_.input_shape) &&
          !(info_.input_shape == Shape{1} && file.shape().rank() == 1)) {
        fail(ExitCode::kData,
             "{} holds samples of {}, the model takes {}; give an array of samples x {}",
             path.string(), file.shape().tail().text(), info_.input_shape.text(),
             info_.input_shape.text());
      }
      if (info_.input_dtype == DType::kUint8 && stored_input_dtype(file.type()) != DType::kUint8) {
        fail(ExitCode::kData,
             "{} holds {}, but the model learned from bytes; give an array of uint8", path.string(),
             file.type().is_integer() ? "longer integers" : "floating-point numbers");
      }
      info_.samples += file.rows();
      ends_.push_back(info_.samples);
    }
    info_.source = joined_file_names(options.inputs);
  }

  void next(std::int64_t count, SampleBatch& batch) override {
    resize(count, batch);
    for (std::int64_t done = 0; done < count;) {
      ArrayFile& file = files_[current_];
      const std::int64_t rows = std::min(count - done, file.rows() - done_);
      if (rows == 0) {
        ++current_;
        done_ = 0;
        continue;
      }
      raw_.resize(static_cast<std::size_t>(rows * file.row_bytes()));
      file.read(raw_);
      const std::span<std::byte> into =
          std::span(batch.inputs)
              .subspan(static_cast<std::size_t>(done * info_.input_bytes()),
                       static_cast<std::size_t>(rows * info_.input_bytes()));
      decode(raw_, file.type(), info_.input_dtype, into);
      if (const std::int64_t bad =
              info_.input_dtype == DType::kUint8 ? -1 : first_not_finite(into, info_.input_dtype);
          bad >= 0) {
        fail(ExitCode::kData, "element {} of sample {} of {} is NaN or infinite",
             bad % info_.input_shape.count(), done_ + bad / info_.input_shape.count(),
             file.path().string());
      }
      done += rows;
      done_ += rows;
    }
  }
  void finish() override { std::ranges::for_each(files_, &ArrayFile::finish); }

 private:
  std::vector<ArrayFile> files_;
  std::size_t current_ = 0;
  std::int64_t done_ = 0;  ///< rows of the current file
  std::vector<std::byte> raw_;
};

}  // namespace

std::unique_ptr<SampleSource> open_new_samples(const ImportOptions& options) {
  if (options.format == ImportFormat::kNpy) {
    return std::make_unique<ArraySamples>(options);
  }
  return std::make_unique<TableSamples>(options);
}

}  // namespace strata::io
