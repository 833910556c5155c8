#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/device/buffer.hpp"
#include "strata/nn/parameter.hpp"
#include "strata/ops/context.hpp"
#include "strata/optim/buckets.hpp"
#include "strata/optim/optimizer.hpp"

namespace strata::optim {

/// What becomes of a push that is staler than the bound.
enum class Stale { kScale, kDrop };

constexpr auto enum_names(Stale) {
  return names_in_order("scale", "drop");
}

/// How the step size depends on staleness.
enum class StaleRate {
  kConstant,
  kDivided  ///< by the staleness, where that is above 1
};

constexpr auto enum_names(StaleRate) {
  return names_in_order("constant", "divided");
}

struct AsyncOptions {
  std::int64_t staleness = 0;  ///< the bound; 0: none
  Stale stale = Stale::kScale;
  StaleRate rate = StaleRate::kConstant;
};

/// The parameters of asynchronous training in memory that all ranks reach. Each of the first ranks
/// of a group, the servers, owns slices of the weights with their optimizer state; workers fetch
/// the weights and push gradients at any time. A thread of each server applies what was pushed.
///
/// The staleness of a push is the number of updates that its server applied between the fetch and
/// the push. Beyond the bound a push is scaled by bound / staleness, or dropped. Each parameter's
/// slice has a version, so that it is read from between two updates and never in the midst of one.
/// Of a pushed gradient only blocks that are not zero are sent, as of an embedding few rows are.
///
/// Weights and optimizer state are in host memory. Source: Dean et al., "Large scale distributed
/// deep networks", NIPS 2012; Zhang et al., "Staleness-aware async-SGD", IJCAI 2016.
class ParameterServer {
 public:
  /// `layout`: of the model, with `buckets` divided among the servers. Communication: collective
  /// over the group.
  ParameterServer(comm::Communicator& group, const OptimizerOptions& optimizer,
                  const AsyncOptions& options, const nn::ParameterLayout& layout,
                  const BucketPlan& buckets, std::int64_t servers, DType dtype);
  /// Stops the thread.
  ~ParameterServer();
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  /// The bytes that one rank's object allocates.
  [[nodiscard]] static std::vector<nn::MemoryItem> memory(const OptimizerOptions& optimizer,
                                                          const nn::ParameterLayout& layout,
                                                          const BucketPlan& buckets,
                                                          std::int64_t servers, std::int64_t ranks,
                                                          std::int64_t rank, DType dtype);

  /// The slices that this rank owns, and their master weights and optimizer state.
  [[nodiscard]] std::span<const OwnedPiece> pieces() const {
    return owned_ ? owned_->pieces() : std::span<const OwnedPiece>();
  }
  [[nodiscard]] TensorView master(const OwnedPiece& piece) const { return owned_->master(piece); }
  [[nodiscard]] TensorView state(std::size_t index, const OwnedPiece& piece) const {
    return owned_->state(index, piece);
  }

  /// Shows the master weights to all ranks and starts to serve, after so many updates.
  /// Communication: a barrier.
  void start(std::int64_t updates = 0);
  /// The updates of the first server so far. Pre: start().
  [[nodiscard]] std::int64_t updates() { return static_cast<std::int64_t>(window_->load(0, 0)); }
  /// Throws what the own thread has thrown.
  void require_serving() const;
  /// Returns once all that this rank has pushed is applied.
  void finish_pushes();
  /// Ends the window. Pre: no rank fetches or pushes. Communication: collective over the group.
  void stop();

  /// Receives the weights of a slice: float32 or float64 in host memory.
  using TakeWeights = std::function<void(const OwnedPiece& piece, const ConstTensorView& weights)>;
  /// Fetches all weights.
  void fetch(const TakeWeights& take);
  /// Copies the gradient of a slice to host memory.
  using ReadGradient = std::function<void(const OwnedPiece& piece, const TensorView& into)>;
  /// Pushes a gradient that was computed from the weights fetched last.
  void push(const ReadGradient& read, double learning_rate, double gradient_scale);

  /// The most staleness that the histogram tells apart.
  static constexpr std::int64_t kMostTold = 63;
  /// Of this rank's server since the start.
  struct Counts {
    std::int64_t applied = 0;
    std::int64_t scaled = 0;
    std::int64_t dropped = 0;
    std::int64_t most_applied = 0;  ///< staleness of an update that was neither scaled nor dropped
    /// Pushes by staleness; the last element has all above.
    std::array<std::int64_t, kMostTold + 1> staleness{};
  };
  [[nodiscard]] Counts counts() const;
  /// Bytes that this rank has pushed.
  [[nodiscard]] std::int64_t pushed_bytes() const { return pushed_bytes_; }
  /// Slices that this rank read again because they were being updated.
  [[nodiscard]] std::int64_t rereads() const { return rereads_; }

 private:
  using Word = comm::Window::Word;

  /// Where the parts of a server's window begin, in words.
  struct Places {
    std::int64_t version = 0;
    std::int64_t sequences = 1;  ///< one for each slice
    std::int64_t taken = 0;      ///< for each rank how many of its pushes the server has taken
    std::int64_t weights = 0;
    std::int64_t inboxes = 0;
    std::int64_t inbox_words = 0;
    std::int64_t words = 0;
  };
  /// A server as a worker sees it.
  struct Server {
    std::vector<OwnedPiece> pieces;
    std::int64_t elements = 0;
    Places places;
    Word fetched_version = 0;
    Word pushes = 0;  ///< of this rank
  };

  [[nodiscard]] static Places places_of(std::int64_t pieces, std::int64_t elements,
                                        std::int64_t ranks, DType dtype);
  void serve();
  /// Waits until the server has taken what this rank pushed.
  void await_taken(std::int64_t server);
  bool apply(std::int64_t rank);
  void show(const OwnedPiece& piece, std::size_t index);
  void fetch_slice(std::int64_t server, std::size_t index);
  [[nodiscard]] std::span<Word> words_of(const TensorView& tensor) const;

  comm::Communicator& group_;
  AsyncOptions options_;
  DType dtype_;
  std::vector<Server> servers_;
  std::unique_ptr<comm::Window> window_;
  ops::Context context_;

  // Of a server.
  std::optional<OwnedTensors> owned_;
  std::optional<UpdateRule> rule_;
  device::Buffer gradient_memory_;  ///< of what the rank owns
  std::vector<Word> inbox_;
  std::thread thread_;
  std::atomic<bool> ends_ = false;
  std::exception_ptr failure_;  ///< read after failed_
  std::atomic<bool> failed_ = false;
  mutable std::mutex counts_mutex_;
  Counts counts_;

  // Of a worker.
  device::Buffer fetched_memory_;  ///< the largest server's weights, then a gradient
  std::vector<Word> outbox_;
  std::int64_t pushed_bytes_ = 0;
  std::int64_t rereads_ = 0;
};

}  // namespace strata::optim
