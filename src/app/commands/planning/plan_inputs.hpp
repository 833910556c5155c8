#pragma once

#include "strata/config/command.hpp"
#include "strata/config/config_file.hpp"
#include "strata/io/dataset.hpp"
#include "strata/plan/plan.hpp"

namespace strata::app {

/// The virtual grid of the newest checkpoint in run.dir that opens, with a line on stderr that
/// names it; zeros where there is none, and, with a warning, where it is one of another run. Sets
/// what the checkpoint's run chose for settings that were not given, as when it continues.
/// `settings`: of the command line.
[[nodiscard]] plan::VirtualGrid continued_grid(config::GivenConfig& given,
                                               config::Arguments settings);

/// Whether all files of data.train exist.
[[nodiscard]] bool has_data(const config::RunConfig& config);

/// Description of data.train, or, where it does not exist yet, of what a model with named sizes
/// assumes. Throws: Error(kUsage) where the config does not say enough.
[[nodiscard]] io::DatasetInfo planned_data(const config::RunConfig& config);

/// Whether the length of training follows from data that do not exist yet.
[[nodiscard]] bool has_unknown_length(const config::RunConfig& config, const io::DatasetInfo& data);
/// The config with some length where has_unknown_length(), which changes neither memory nor steps.
[[nodiscard]] config::RunConfig with_length(config::RunConfig config, const io::DatasetInfo& data);

}  // namespace strata::app
