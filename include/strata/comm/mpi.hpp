#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/comm/progress_engine.hpp"

namespace strata::comm {

/// The ranks of a launch: MPI from initialization to finalization. One per process; all calls come
/// from one thread. A process that is alone does not start MPI, which may not start there: Open MPI
/// does not in a shell of `srun --pty`.
class MpiSession {
 public:
  /// Records what this rank does in `activity`, if there is one.
  /// Communication: collective over the world. Throws: Error(kPeer) where MPI does not start.
  MpiSession(int* argc, char*** argv, Activity* activity = nullptr);
  ~MpiSession() = default;
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// All ranks. Valid as long as the session.
  [[nodiscard]] Communicator& world() { return *world_; }
  [[nodiscard]] ProgressEngine& engine() { return *engine_; }
  /// The host of each rank.
  [[nodiscard]] const std::vector<std::string>& hosts() const { return hosts_; }
  /// Number of this job's ranks on this node.
  [[nodiscard]] std::int64_t ranks_on_node() const { return ranks_on_node_; }
  /// This rank's index among them, in order of world ranks.
  [[nodiscard]] std::int64_t rank_on_node() const { return rank_on_node_; }

  /// Makes each rank its own world of one rank; MPI is still finalized collectively.
  /// Communication: collective over the world.
  void separate();

  /// Finalizes MPI if it was started. Returns: the seconds that MPI_Finalize took once all ranks
  /// were there. Communication: collective over the world.
  double finalize();
  /// Aborts the whole job with this exit code.
  [[noreturn]] static void abort(int exit_code);

 private:
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<ProgressEngine> engine_;
  std::vector<std::string> hosts_;
  std::int64_t ranks_on_node_ = 1;
  std::int64_t rank_on_node_ = 0;
};

}  // namespace strata::comm
