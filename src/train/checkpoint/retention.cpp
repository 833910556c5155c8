#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/train/checkpointing.hpp"

namespace strata::train {

std::filesystem::path checkpoint_root(const config::RunConfig& config) {
  return std::filesystem::path(config.run.dir) / "checkpoints";
}

std::filesystem::path unsaved_marker(const config::RunConfig& config) {
  return std::filesystem::path(config.run.dir) / "unsaved";
}

void require_space(const plan::Plan& plan, Log& log) {
  try {
    io::delete_leftovers(checkpoint_root(plan.config));
  } catch (const Error& failed) {
    log.warn("{}", failed.what());
  }
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(plan.config.run.dir, error);
  const std::int64_t bytes = checkpoint_bytes(plan);
  if (error) {
    return;
  }
  const auto free = static_cast<std::int64_t>(space.available);
  const std::string fact = fmt::format("a checkpoint of this run takes {} and {} has {} free",
                                       bytes_text(bytes), plan.config.run.dir, bytes_text(free));
  if (free < bytes) {
    fail(ExitCode::kCheckpoint, "{}; free some space or choose another run.dir", fact);
  }
  if (free < 2 * bytes && io::list_checkpoints(checkpoint_root(plan.config)).empty()) {
    log.warn(
        "{}: a save writes the new checkpoint before the old one is deleted, so the second "
        "save will fail; free some space",
        fact);
  }
}

std::string prune_warning(const plan::Plan& plan, std::int64_t step, std::int64_t best_step) {
  try {
    io::prune_checkpoints(checkpoint_root(plan.config), step, plan.config.checkpoint.keep,
                          plan.config.checkpoint.keep_every, best_step);
  } catch (const Error& error) {
    return fmt::format("an expired checkpoint could not be deleted: {}", error.what());
  }
  return "";
}

void tidy_checkpoints(const plan::Plan& plan, comm::Communicator& world, std::int64_t step,
                      std::int64_t best_step, Log& log) {
  const std::string warning = world.rank() == 0 ? prune_warning(plan, step, best_step) : "";
  if (!warning.empty()) {
    log.warn("{}", warning);
  }
}

}  // namespace strata::train
