#include "strata/forecast/grid_search.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

namespace strata::forecast {
namespace {

/// A schedule and its chunks.
struct ScheduleChoice {
  std::optional<pipeline::ScheduleKind> kind = pipeline::ScheduleKind::k1f1b;
  std::int64_t chunks = 0;
};

class Search {
 public:
  Search(Forecaster& forecaster, const config::RunConfig& given, const io::DatasetInfo& data,
         const SearchSpace& space)
      : forecaster_(forecaster), given_(given), data_(data), space_(space) {
    space_.stored = plan::kept_grid(given, space.stored);
    // The virtual grid of the config on its own grid, unless that needs other ranks.
    own_ = plan::try_prepare(given_, space_.ranks, data_, space_.stored, space_.device);
    if (own_) {
      note_model(*own_->model);
    } else {
      config::RunConfig alone = given_;
      alone.parallel.data = alone.parallel.pipeline = alone.parallel.tensor = 1;
      alone.parallel.split = "auto";
      note_model(*plan::prepare(alone, 1, data_, {}, space_.device, &proven_).model);
    }
  }

  SearchResult run() {
    if (const Machine& machine = forecaster_.machine(); machine.device != space_.device) {
      fail(ExitCode::kUsage,
           "the machine {} computes on {}, but the ranks on {}; give a machine that is measured "
           "like them (strata plan --calibrate=FILE), or leave run.machine out",
           machine.name, name_of(machine.device), name_of(space_.device));
    }
    for (const grid::Grid& grid : grids()) {
      try_grid(grid);
    }
    std::ranges::stable_sort(result_.choices, {}, &GridChoice::step_seconds);
    tune_buckets();
    if (result_.choices.empty()) {
      refuse();
    }
    return std::move(result_);
  }

 private:
  void note_model(const nn::Model& model) {
    parameters_ = model.parameter_count();
    trained_ = model.trainable_count();
    layers_ = model.layer_count();
  }

  [[nodiscard]] bool is_fixed(const std::string& setting) const {
    return space_.fixed.contains(setting);
  }
  /// The lanes of the config or the checkpoint, or `otherwise`.
  [[nodiscard]] std::int64_t lanes_or(std::int64_t otherwise) const {
    return given_.numerics.lanes > 0 ? given_.numerics.lanes
           : space_.stored.lanes > 0 ? space_.stored.lanes
                                     : otherwise;
  }
  /// Those of a new run, then as few as the grid allows; 0: plan::prepare() knows.
  [[nodiscard]] std::vector<std::int64_t> lanes_of(const config::RunConfig& config) const {
    if (lanes_or(0) > 0 || config.numerics.mode == comm::Summation::kLibrary ||
        config.parallel.sync != config::Sync::kStep) {
      return {given_.numerics.lanes};
    }
    const std::int64_t least = config.parallel.data;
    const std::int64_t most =
        plan::default_lanes(config, given_.batch.global, least, data_, space_.device);
    return most > least ? std::vector{most, least} : std::vector{least};
  }
  /// The value of a setting that stays as it is; 0: to be found.
  [[nodiscard]] std::int64_t fixed(const std::string& setting, std::int64_t value) const {
    return is_fixed(setting) ? value : 0;
  }

  /// Those with few tensor ranks first.
  [[nodiscard]] std::vector<grid::Grid> grids() const {
    const auto& p = given_.parallel;
    const std::int64_t tensor = fixed("parallel.tensor", p.tensor);
    std::vector<grid::Grid> grids =
        plan::grids_of(space_.ranks, {.lanes = lanes_or(0),
                                      .layers = layers_,
                                      .data = fixed("parallel.data", p.data),
                                      .pipeline = fixed("parallel.pipeline", p.pipeline),
                                      .tensor = tensor});
    // Sums over shards cross the slow links between nodes in every layer.
    std::erase_if(grids, [&](const grid::Grid& grid) {
      return grid.tensor > std::max(space_.node_ranks, tensor) ||
             given_.batch.global % grid.data != 0;
    });
    std::ranges::stable_sort(grids, {}, &grid::Grid::tensor);
    return grids;
  }

  [[nodiscard]] std::vector<std::int64_t> microbatches(const grid::Grid& grid) const {
    constexpr std::int64_t kMost = 64;
    if (const std::int64_t fixed = std::max(space_.stored.microbatch, given_.batch.micro);
        fixed > 0) {
      return {fixed};
    }
    const std::int64_t lanes = lanes_or(grid.data);
    const std::int64_t samples = given_.batch.global / lanes;
    std::vector<std::int64_t> sizes;
    for (std::int64_t micro = 1; micro <= std::min(samples, kMost); micro *= 2) {
      // A pipeline needs as many microbatches as stages.
      if (samples % micro == 0 &&
          (micro == 1 || samples * lanes / grid.data / micro >= grid.pipeline)) {
        sizes.push_back(micro);
      }
    }
    if (given_.batch.global % lanes == 0 && grid.pipeline == 1 && samples <= kMost) {
      sizes.push_back(samples);
    }
    std::ranges::sort(sizes);
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    return sizes;
  }

  [[nodiscard]] std::vector<ScheduleChoice> schedules(const grid::Grid& grid) const {
    using pipeline::ScheduleKind;
    if (is_fixed("parallel.schedule")) {
      return {{given_.parallel.schedule, given_.parallel.chunks}};
    }
    if (grid.pipeline == 1) {
      return {{}};
    }
    return {{},
            {ScheduleKind::kZbH1, 0},
            {ScheduleKind::kInterleaved, 2},
            {ScheduleKind::kInterleaved, 4},
            {ScheduleKind::kZbV, 0}};
  }

  void try_grid(const grid::Grid& grid) {
    // Weights and gradients alone: no need to look closer.
    const DType dtype = given_.numerics.dtype;
    const double least_bytes = static_cast<double>(parameters_ * size_bytes(dtype) +
                                                   trained_ * size_bytes(compute_dtype(dtype))) /
                               static_cast<double>(grid.pipeline * grid.tensor);
    if (least_bytes > forecaster_.machine().memory_bytes) {
      ++result_.tried;
      ++result_.too_large;
      return;
    }
    for (const std::int64_t micro : microbatches(grid)) {
      // What the first schedule needs, the others need too, and so does a larger microbatch.
      auto least = nn::Recompute::kNone;
      bool fits = false;
      for (const ScheduleChoice& schedule : schedules(grid)) {
        if (!fits || least == nn::Recompute::kNone || !defers(schedule.kind)) {
          fits = try_schedule(grid, micro, schedule, least) || fits;
        }
        if (!fits) {
          return;
        }
      }
    }
  }

  /// Whether a schedule is its own only where weight gradients are computed apart, which
  /// recomputation does not allow.
  [[nodiscard]] static bool defers(std::optional<pipeline::ScheduleKind> kind) {
    return kind == pipeline::ScheduleKind::kZbH1 || kind == pipeline::ScheduleKind::kZbV;
  }

  /// Tries a schedule with as little recomputation as fits, from `least` on, which becomes what
  /// did.
  bool try_schedule(const grid::Grid& grid, std::int64_t micro, const ScheduleChoice& schedule,
                    nn::Recompute& least) {
    for (const nn::Recompute recompute :
         {nn::Recompute::kNone, nn::Recompute::kSelective, nn::Recompute::kFull}) {
      if (recompute < least ||
          (is_fixed("train.recompute") && recompute != given_.train.recompute)) {
        continue;
      }
      config::RunConfig config = given_;
      config.parallel.data = grid.data;
      config.parallel.pipeline = grid.pipeline;
      config.parallel.tensor = grid.tensor;
      config.parallel.schedule = schedule.kind;
      config.parallel.chunks = schedule.chunks;
      config.parallel.activations = 0;
      config.parallel.backward =
          is_fixed("parallel.backward") ? given_.parallel.backward : std::nullopt;
      config.parallel.split = is_fixed("parallel.split") ? given_.parallel.split : "auto";
      config.batch.micro = micro;
      config.train.recompute = recompute;
      for (const std::int64_t lanes : lanes_of(config)) {
        config.numerics.lanes = lanes;
        if (try_config(config)) {
          least = recompute;
          return true;
        }
      }
    }
    return false;
  }

  [[nodiscard]] GridChoice choice_of(const config::RunConfig& config,
                                     const plan::Plan& plan) const {
    GridChoice choice{.config = config,
                      .grid = plan.grid,
                      .lanes = plan.config.numerics.lanes,
                      .shards = plan.config.numerics.shards,
                      .microbatch = plan.config.batch.micro,
                      .chunks = plan.training.chunks,
                      .schedule = config::schedule_name(plan.config),
                      .recompute = plan.config.train.recompute,
                      .bucket_mib = plan.config.parallel.bucket_mib};
    choice.config.batch.micro = choice.microbatch;
    if (!own_ || own_->config.numerics.lanes != choice.lanes ||
        own_->config.numerics.shards != choice.shards ||
        own_->config.batch.micro != choice.microbatch ||
        own_->config.numerics.loss_pieces != plan.config.numerics.loss_pieces) {
      choice.bits = fmt::format("{} x {}, {}", choice.lanes, choice.shards, choice.microbatch);
    }
    return choice;
  }

  /// The plan with fewer microbatches in a step; nothing where settings contradict each other.
  [[nodiscard]] std::optional<plan::Plan> prepared(config::RunConfig config,
                                                   std::int64_t microbatches) {
    config.batch.global = microbatches * config.batch.micro * config.parallel.data;
    std::optional<plan::Plan> plan =
        plan::try_prepare(config, space_.ranks, data_, space_.stored, space_.device, &proven_);
    if (plan) {
      plan::set_node_ranks(*plan, space_.node_ranks);
    }
    return plan;
  }

  /// Microbatches of a rank that make whole rounds of chunks and whole lanes.
  [[nodiscard]] std::int64_t unit_of(const config::RunConfig& config) const {
    const std::int64_t all = std::max(lanes_or(config.parallel.data), config.numerics.lanes);
    const std::int64_t lanes = all / config.parallel.data;
    return std::max<std::int64_t>(1, std::lcm(config.parallel.pipeline, lanes));
  }

  /// Microbatches of a rank from which on each further one takes as long; all of them where there
  /// are few.
  [[nodiscard]] std::int64_t enough_microbatches(const config::RunConfig& config,
                                                 std::int64_t all) const {
    const std::int64_t unit = unit_of(config);
    const std::int64_t enough = (3 * config.parallel.pipeline + unit - 1) / unit * unit;
    return config.parallel.sync == config::Sync::kStep && enough + unit < all ? enough : all;
  }

  /// Returns: whether the plan fits.
  bool try_config(const config::RunConfig& config) {
    if (config.batch.global % (config.batch.micro * config.parallel.data) != 0) {
      return false;
    }
    const std::int64_t all = config.batch.global / (config.batch.micro * config.parallel.data);
    const std::int64_t enough = enough_microbatches(config, all);
    const std::optional<plan::Plan> plan = prepared(config, enough);
    if (!plan) {
      return false;
    }
    ++result_.tried;
    GridChoice choice = choice_of(config, *plan);
    const auto forecast = [&](const plan::Plan& of) {
      return forecaster_.forecast(of, space_.node_ranks, Detail::kTotals);
    };
    const Forecast first = forecast(*plan);
    for (const StageForecast& stage : first.stages) {
      choice.memory_bytes = std::max(choice.memory_bytes, stage.memory_bytes);
    }
    free_bytes_ = first.free_bytes;
    if (!first.fits) {
      ++result_.too_large;
      if (!result_.smallest || choice.memory_bytes < result_.smallest->memory_bytes) {
        result_.smallest = std::move(choice);
      }
      return false;
    }
    choice.step_seconds = first.step_seconds;
    if (enough < all) {
      const std::int64_t more = enough + unit_of(config);
      const std::optional<plan::Plan> longer = prepared(config, more);
      if (!longer) {
        return false;
      }
      const double each = (forecast(*longer).step_seconds - first.step_seconds) /
                          static_cast<double>(more - enough);
      choice.step_seconds += each * static_cast<double>(all - enough);
    }
    if (first.mfu) {
      choice.mfu = *first.mfu * first.step_seconds / choice.step_seconds *
                   static_cast<double>(all) / static_cast<double>(enough);
    }
    result_.choices.push_back(std::move(choice));
    return true;
  }

  /// Tries other buckets for the fastest grids.
  void tune_buckets() {
    constexpr std::size_t kTuned = 3;
    if (is_fixed("parallel.bucket")) {
      return;
    }
    const std::size_t count = std::min(kTuned, result_.choices.size());
    const std::vector<GridChoice> fastest(
        result_.choices.begin(), result_.choices.begin() + static_cast<std::ptrdiff_t>(count));
    for (std::size_t i = 0; i < fastest.size(); ++i) {
      for (const double factor : {0.25, 4.0}) {
        config::RunConfig config = fastest[i].config;
        config.parallel.bucket_mib = factor * fastest[i].bucket_mib;
        const std::size_t before = result_.choices.size();
        if (fastest[i].grid.data > 1 && try_config(config)) {
          GridChoice tuned = std::move(result_.choices[before]);
          result_.choices.pop_back();
          // Less than this is lost in the model's own error.
          constexpr double kGain = 0.99;
          if (tuned.step_seconds < kGain * result_.choices[i].step_seconds) {
            result_.choices[i] = std::move(tuned);
          }
        }
      }
    }
    std::ranges::stable_sort(result_.choices, {}, &GridChoice::step_seconds);
  }

  [[noreturn]] void refuse() const {
    if (result_.tried == 0) {
      // Says why, for the most ordinary grid.
      config::RunConfig config = given_;
      config.parallel.data = 0;
      config.parallel.pipeline = config.parallel.tensor = 1;
      static_cast<void>(plan::prepare(config, space_.ranks, data_, space_.stored, space_.device));
      fail(ExitCode::kUsage,
           "no grid of {} ranks suits the config; batch.global = {} must be a multiple of the "
           "replicas, so use other ranks or another batch.global",
           space_.ranks, given_.batch.global);
    }
    if (!result_.smallest) {
      fail(ExitCode::kUsage,
           "no grid of {} ranks fits the memory of {}: the weights and gradients of {} parameters "
           "alone are too large; use more ranks, or a smaller model",
           space_.ranks, forecaster_.machine().name, count_text(parameters_));
    }
    const GridChoice& least = *result_.smallest;
    const Machine& machine = forecaster_.machine();
    const bool gpu = space_.device == device::DeviceKind::kCuda;
    fail(ExitCode::kUsage,
         "no grid of {} ranks fits the memory of {}: {} were tried, and the smallest, {} with "
         "batch.micro = {} and train.recompute = {}, needs {} of the {} that are free for a rank; "
         "use about {:.1f} times as many {}, {}or a smaller model",
         space_.ranks, machine.name, result_.tried, least.grid.text(), least.microbatch,
         name_of(least.recompute), bytes_text(static_cast<std::int64_t>(least.memory_bytes)),
         bytes_text(static_cast<std::int64_t>(free_bytes_)), least.memory_bytes / free_bytes_,
         gpu ? "ranks" : "nodes with fewer ranks each",
         given_.numerics.dtype == DType::kFloat32 ? "numerics.dtype = bfloat16, " : "");
  }

  Forecaster& forecaster_;
  config::RunConfig given_;
  const io::DatasetInfo& data_;
  SearchSpace space_;
  std::optional<plan::Plan> own_;
  std::int64_t parameters_ = 0;
  std::int64_t trained_ = 0;
  std::int64_t layers_ = 0;
  plan::ProvenSchedules proven_;
  double free_bytes_ = 0.0;  ///< of a rank, for its arenas
  SearchResult result_;
};

}  // namespace

SearchResult search_grids(Forecaster& forecaster, const config::RunConfig& given,
                          const io::DatasetInfo& data, const SearchSpace& space) {
  return Search(forecaster, given, data, space).run();
}

std::vector<GridChoice> pareto_of(const std::vector<GridChoice>& choices) {
  std::vector<GridChoice> line;
  for (const GridChoice& choice : choices) {
    if (line.empty() || choice.memory_bytes < line.back().memory_bytes) {
      line.push_back(choice);
    }
  }
  return line;
}

}  // namespace strata::forecast
