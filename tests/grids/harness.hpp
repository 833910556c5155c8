#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/core/dtype.hpp"
#include "strata/core/shape.hpp"
#include "strata/train/setup.hpp"

/// Runs of train::train() whose ranks are threads, in a scratch directory of the process.
namespace strata::grids {

struct StoredTensor {
  Shape shape;
  DType dtype = DType::kFloat32;
  std::vector<std::byte> bytes;

  /// Pre: float32 or float64.
  [[nodiscard]] std::vector<double> values() const;
  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

/// What a run leaves: the records of its steps and evaluations without their times, and the
/// tensors of its newest checkpoint.
struct Result {
  std::vector<nlohmann::json> records;
  std::map<std::string, StoredTensor> tensors;

  /// A number of all records of one kind.
  [[nodiscard]] std::vector<double> numbers(std::string_view kind, std::string_view key) const;
  [[nodiscard]] std::vector<double> losses() const { return numbers("train", "loss"); }
  /// Throws: std::out_of_range for an unknown name.
  [[nodiscard]] const StoredTensor& weight(const std::string& name) const {
    return tensors.at("weights/" + name);
  }
};

/// Settings of a config with & between them, of which later ones override earlier ones; but lines
/// model.layer add up.
using Settings = std::string;
/// The pieces between semicolons.
[[nodiscard]] std::vector<std::string> list_of(std::string_view text);

/// A config, and the runs of it that must give the same bits.
struct Case {
  std::string name;
  Settings settings;
  /// Each of one or more parts, with | between them: the next continues the one before. A part is a
  /// grid of data x pipeline x tensor ranks with settings, as in "2x1x4 run.threads=2".
  /// "stop=RANK:N" has a rank request a stop in its N-th step; without it, train.steps ends a part.
  std::vector<std::string> runs;
  /// What the reference must show besides.
  std::function<void(const Result&)> check = [](const Result&) {};
  std::string reference = "1x1x1";
  /// Makes the files that the runs name.
  std::function<void()> before = [] {};
  /// A run on "2x1x2" with these settings before, from whose weights all start; or empty.
  Settings base = {};
};
void PrintTo(const Case& one, std::ostream* out);

/// What references must show.
void learns(const Result& result);

/// The cases of a kind of model.
[[nodiscard]] std::vector<Case> dense_cases();
[[nodiscard]] std::vector<Case> convolution_cases();
[[nodiscard]] std::vector<Case> language_cases();
[[nodiscard]] std::vector<Case> fine_tuning_cases();
[[nodiscard]] std::vector<Case> local_cases();

/// Values of a setting, separated by blanks, that go round: each holds for `pace` grids.
struct Cycle {
  std::size_t pace = 1;
  std::string values;
};
inline const Cycle kSchedules{1,
                              "parallel.schedule=1f1b parallel.schedule=gpipe "
                              "parallel.schedule=zb-h1 parallel.schedule=zb-h2"};
/// The grids, separated by blanks, each with a value of every cycle; and `more`.
[[nodiscard]] std::vector<std::string> varied(std::string_view grids,
                                              const std::vector<Cycle>& cycles,
                                              std::string_view more = "");

/// Performs a run as Case::runs has them in the new directory `name`, from which others may start.
/// `hooks`: gives those of a rank.
using HooksOfRank = std::function<train::TrainerHooks(std::int64_t rank)>;
Result train(const Settings& settings, const std::string& run = "1x1x1", std::string name = "",
             const HooksOfRank& hooks = {});

/// Expects the same records and tensors, bit for bit.
void expect_same(const Result& found, const Result& expected);

/// Writes a file into the scratch directory.
void write_scratch(const std::string& name, const std::string& text);
/// Calls `strata schedule`, which writes into the scratch directory.
void make_schedule(const std::string& arguments);

/// A small GPT; heads of a Llama that share keys and values, with samples from random places.
extern const Settings kGpt;
extern const Settings kLlama;
/// Documents of which some are longer than a context, with a model that tells them apart.
extern const Settings kDocuments;

}  // namespace strata::grids
