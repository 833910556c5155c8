#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "strata/comm/mpi.hpp"
#include "strata/core/error.hpp"
#include "strata/plan/plan.hpp"

namespace strata::app {

/// How a machine is measured.
struct CalibrateOptions {
  std::string file;             ///< that is written; another of that name is replaced
  std::string directory = ".";  ///< whose file system runs will use
  std::int64_t cores = 0;       ///< of a node that jobs have; 0: those that this launch has
  std::int64_t threads = 0;     ///< of a rank; 0: as training
  bool small = false;           ///< small models only, for a test
};

/// Measures the nodes of this launch and writes a machine file. Operations are those of training
/// steps of built-in models, and of `plans`: first on rank 0 alone, then with other ranks of its
/// node beside it. Communication: collective over the world.
/// Throws: Error(kUsage) where the file cannot be written.
ExitCode calibrate(comm::MpiSession& mpi, const CalibrateOptions& options,
                   std::span<const plan::Plan> plans = {});

}  // namespace strata::app
