#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "strata/comm/communicator.hpp"

namespace strata::comm {

/// The process's MPI library, from start to end. One a process; all calls come from one thread.
class MpiSession {
 public:
  /// Throws: Error(kPeer) where MPI does not start.
  MpiSession(int* argc, char*** argv);
  ~MpiSession() = default;
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// All ranks. Lives as long as the session.
  [[nodiscard]] Communicator& world() { return *world_; }
  /// Ranks of this job on this node. Communication: collective over the world, at construction.
  [[nodiscard]] std::int64_t ranks_on_node() const { return ranks_on_node_; }
  /// This rank's number among them, in order of the world's ranks.
  [[nodiscard]] std::int64_t rank_on_node() const { return rank_on_node_; }

  /// Makes every rank a world of its own, in which it has the number 0; MPI still ends when all do.
  /// Communication: collective over the world.
  void separate();

  /// Ends MPI in order. Communication: collective over the world.
  void finalize();
  /// Ends the whole job at once with this exit code.
  [[noreturn]] static void abort(int exit_code);

  /// The library's name and version, as in "Open MPI v4.1.4".
  [[nodiscard]] static std::string library_text();

 private:
  std::unique_ptr<Communicator> world_;
  std::int64_t ranks_on_node_ = 1;
  std::int64_t rank_on_node_ = 0;
};

}  // namespace strata::comm
