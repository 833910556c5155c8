#pragma once

#include <filesystem>
#include <string>

#include "strata/comm/mpi.hpp"
#include "strata/exchange/model_files.hpp"
#include "strata/io/checkpoint.hpp"

namespace strata::app {

/// Imports exported files again, beside them, and compares the logits of a fixed batch of token ids
/// with those of the checkpoint, on the CPU. Returns: what was compared, for the user.
/// Memory: the weights of one model at a time, in the dtype of the checkpoint. `file`, unless
/// empty, receives the ids and the checkpoint's logits after each sequence, as JSON.
/// Pre: mpi.separate(). Throws: Error(kCheckpoint) where they differ by more than the rounding of
/// the export explains.
[[nodiscard]] std::string check_logits(comm::MpiSession& mpi, const io::Checkpoint& checkpoint,
                                       const std::filesystem::path& directory,
                                       exchange::ModelFormat format, const std::string& file);

}  // namespace strata::app
