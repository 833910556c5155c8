#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "strata/comm/values.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/import.hpp"
#include "strata/io/prediction_file.hpp"
#include "strata/io/scratch_directory.hpp"
#include "strata/train/file_timeout.hpp"

#include "commands/commands.hpp"
#include "commands/image_options.hpp"
#include "commands/run/loaded_model.hpp"
#include "environment/run_inputs.hpp"

namespace strata::app {
namespace {

namespace fs = std::filesystem;

/// The format of the files that hold the samples: that of --format, else by the name of the first.
io::ImportFormat format_of(const config::CommandLine& line) {
  if (const auto given = line.choice<io::ImportFormat>("format")) {
    return *given;
  }
  static const std::map<std::string, io::ImportFormat> kEndings{
      {".csv", io::ImportFormat::kCsv},         {".tsv", io::ImportFormat::kCsv},
      {".jsonl", io::ImportFormat::kJsonLines}, {".npy", io::ImportFormat::kNpy},
      {".jpg", io::ImportFormat::kImages},      {".jpeg", io::ImportFormat::kImages},
      {".png", io::ImportFormat::kImages}};
  const std::string first = line.values("files").front();
  fs::path path(first);
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return io::ImportFormat::kImages;
  }
  if (path.extension() == ".gz" || path.extension() == ".zst") {
    path = path.stem();
  }
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  const auto found = kEndings.find(ending);
  if (found == kEndings.end()) {
    fail(ExitCode::kUsage,
         "the name of {} does not say what it holds; give --format=csv, jsonl, npy or images",
         first);
  }
  return found->second;
}

/// What the command line asks for.
struct Request {
  io::ImportOptions samples;
  io::PredictionFormat format = io::PredictionFormat::kCsv;
  fs::path output;
  fs::path scratch;  ///< a directory beside it that all ranks see
};

Request request_of(const config::CommandLine& line) {
  Request request;
  request.output = line.required("output");
  if (line.values("files").empty() || line.values("files").front().empty()) {
    fail(ExitCode::kUsage, "--files names no file; give the files with the samples");
  }
  const std::string ending = request.output.extension().string();
  const auto format = enum_from_name<io::PredictionFormat>(ending.empty() ? "" : ending.substr(1));
  if (!format) {
    config::refuse_value("output", request.output.string(), "a name that ends in .csv or .npy");
  }
  request.format = *format;
  request.scratch = request.output.string() + ".part";
  io::ImportOptions& samples = request.samples;
  samples.format = format_of(line);
  for (const std::string& file : line.values("files")) {
    samples.inputs.emplace_back(file);
  }
  samples.images = image_options(line);
  samples.table.id = line.value("id", "");
  samples.split = "100%";
  samples.order = io::ImportOrder::kFile;
  samples.output = request.scratch;
  samples.existing = io::Existing::kReplace;
  return request;
}

fs::path make_scratch(const fs::path& path) {
  std::error_code error;
  if (!fs::create_directory(path, error)) {
    fail(ExitCode::kUsage,
         "cannot make the directory {} for a copy of the samples: {}; choose another --output, or "
         "remove what an earlier prediction left there",
         path.string(), error ? error.message() : "it exists");
  }
  return path;
}

/// The names of what the model gives: of classes, or of values.
std::vector<std::string> columns_of(const io::DatasetInfo& data, std::int64_t outputs) {
  std::vector<std::string> columns{"id"};
  if (data.task == io::Task::kClassification) {
    columns.emplace_back("class");
    for (std::int64_t i = 0; i < outputs; ++i) {
      columns.push_back("probability of " + io::class_text(data.class_names, i));
    }
    return columns;
  }
  const std::string label = data.column_names.empty() ? "value" : data.column_names.back();
  for (std::int64_t i = 0; i < outputs; ++i) {
    columns.push_back(outputs == 1 ? label : fmt::format("{} {}", label, i));
  }
  return columns;
}

/// Of logits. Shapes: equal.
void softmax(std::span<const double> logits, std::vector<double>& probabilities) {
  probabilities.assign(logits.begin(), logits.end());
  const double largest = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (double& value : probabilities) {
    value = std::exp(value - largest);
    sum += value;
  }
  for (double& value : probabilities) {
    value /= sum;
  }
}

ExitCode predict(const config::CommandLine& line, comm::MpiSession& mpi,
                 const config::FailureHandler& /*on_failure*/) {
  Log log(log_role(mpi));
  Request request;
  comm::agree(mpi.world(), [&] { request = request_of(line); });
  RunInputs inputs = open_trained(mpi, line.positions().front(), settings_of(line), Evaluates::kNo,
                                  which_checkpoint(line), log);
  inputs.config.train.evaluate_batches = 0;  // a prediction for each sample
  comm::agree(mpi.world(), [&] {
    if (inputs.train_info.task == io::Task::kNextToken) {
      fail(ExitCode::kUsage,
           "{} is of a language model, which predicts text; use strata generate, or strata "
           "evaluate for its loss",
           inputs.checkpoint->directory().string());
    }
  });
  std::optional<io::ScratchDirectory> scratch;
  io::ImportReport report;
  {
    const train::FileTimeout timeout(mpi.world());
    comm::agree_on_first(mpi.world(), [&] {
      scratch.emplace(make_scratch(request.scratch));
      request.samples.model = &inputs.train_info;
      report = io::import_dataset(request.samples);
    });
  }
  comm::agree(mpi.world(),
              [&] { inputs.test_data = io::Dataset::open(request.scratch / "train.h5"); });
  plan::Plan plan = make_plan(mpi, inputs, mpi.world().size());
  static_cast<void>(match_data(mpi, inputs, plan));
  comm::agree(mpi.world(), [&] {
    if (!train::gives_whole_outputs(plan)) {
      fail(ExitCode::kUsage,
           "the model's last layer is split over shards (parallel=column), so that no rank has "
           "all outputs; end the model with a layer without it");
    }
  });
  LoadedModel model(mpi, inputs, plan);

  const io::DatasetInfo& data = plan.train_data;
  const std::int64_t samples = inputs.test_data->info().samples;
  const std::int64_t outputs = plan.model->output().shape.count();
  const fs::path written = request.scratch / "predictions";
  std::optional<io::PredictionFile> file;
  comm::agree_on_first(mpi.world(), [&] {
    constexpr int kAllDigits = 17;
    constexpr int kDigits = 9;  // of float32
    file.emplace(written, io::PredictionLayout{
                              .format = request.format,
                              .columns = columns_of(data, outputs),
                              .samples = samples,
                              .numbers = outputs,
                              .digits = plan.config.numerics.dtype == DType::kFloat64 ? kAllDigits
                                                                                      : kDigits});
  });
  std::vector<double> probabilities;
  std::vector<std::string> texts;
  const auto write = [&](std::int64_t sample, std::span<const double> given) {
    if (!file) {
      return;
    }
    texts = {report.ids.empty() ? std::to_string(sample)
                                : report.ids[static_cast<std::size_t>(sample)]};
    if (data.task == io::Task::kClassification) {
      softmax(given, probabilities);
      texts.push_back(
          io::class_text(data.class_names, std::ranges::max_element(given) - given.begin()));
      given = probabilities;
    }
    file->add(texts, given);
  };
  static_cast<void>(model.evaluate(*inputs.test_data, {.observer = write}));
  comm::agree_on_first(mpi.world(), [&] {
    file->finish();
    std::error_code error;
    fs::rename(written, request.output, error);
    if (error) {
      fail(ExitCode::kUsage, "cannot write the predictions to {}: {}; choose another --output",
           request.output.string(), error.message());
    }
    for (const std::string& note : report.notes) {
      fmt::print("{}\n", printable(note));
    }
    fmt::print("{}: {} predictions of {}\n", request.output.string(), count_text(samples),
               inputs.checkpoint->directory().string());
  });
  return ExitCode::kDone;
}

}  // namespace

Commands predict_commands() {
  return {
      {.name = "predict",
       .purpose = "what a trained model says about new samples",
       .synopses = {{"RUN|CONFIG.ini --files FILE... --output=FILE.csv|FILE.npy [options]"}},
       .about =
           R"(Writes what the newest good checkpoint of a run gives for the samples in files, in their order: for classes the
name and the probabilities, else values in the units of the training data. Runs on any number of ranks, with the same file.

Columns of a table are found by the names of the training data, in any order; further ones are left out, and said.
Pictures are resized as the import of the training data did.)",
       .options =
           {{"files", "FILE...",
             "CSV files, JSON lines, NumPy arrays, or pictures and directories of them"},
            {"output", "FILE", "a CSV file, or a NumPy array of the numbers alone"},
            {"format", "csv|jsonl|npy|images", "of the files (default: by the first name)"},
            {"id", "COLUMN",
             R"(of a table: the column whose fields stand first in the output (default: a column "id" that the model does not
take, else the row's number, from 0))"},
            {"resize", "N or HxW", "pictures: the shorter side, or height and width, in pixels"},
            {"crop", "N", "pictures: crops the centre to N x N pixels"},
            {"threads", "N", "pictures: decoder threads (default: one for each core)"},
            {"checkpoint", config::words_of<WhichCheckpoint>(),
             "the newest one (default), or the best of checkpoint.best"}},
       .lists = {{"Examples",
                  {{"strata predict RUN --files new.csv --output=answers.csv", ""},
                   {"strata predict RUN --files pictures --output=answers.csv --ranks=4", ""}}}},
       .settings = config::TakesSettings::kTaken,
       .positions = config::Positions::kSome,
       .needs = "a run's directory or a config file",
       .values = config::Values::kList,
       .on_ranks = predict}};
}

}  // namespace strata::app
