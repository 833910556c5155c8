#pragma once

#include <map>
#include <string>
#include <vector>

#include "strata/comm/trace.hpp"
#include "strata/forecast/machine.hpp"

namespace strata::forecast {

/// Seconds by part of a step, as in "matrix products".
using Parts = std::map<std::string, double>;

/// The name of the part that an operation belongs to.
[[nodiscard]] std::string part_of(const ops::OperationWork& work);

/// Where a rank computes and sends.
struct Site {
  const Machine* machine = nullptr;
  std::int64_t busy_ranks = 1;  ///< that compute on its node
  double nodes = 1.0;           ///< of the job
};

/// Goes through traces on a machine: one compute stream, and one stream of messages beside it, on
/// which messages follow each other. Of cores, which copy messages in a node themselves, these are
/// on the compute stream.
class Replay {
 public:
  explicit Replay(const Site& site) : site_(site) {}

  void run(const std::vector<comm::TraceEvent>& events);
  /// Computes for so long.
  void compute(double seconds) { now_ += seconds; }

  [[nodiscard]] double now() const { return now_; }
  /// Of operations on the compute stream, by part.
  [[nodiscard]] const Parts& parts() const { return parts_; }
  /// Times that a rank waited for others.
  [[nodiscard]] double waits() const { return waits_; }
  /// That the compute stream waited for messages.
  [[nodiscard]] double exposed() const { return exposed_; }

 private:
  void start(const comm::TraceEvent& messages);

  Site site_;
  double now_ = 0.0;
  double stream_ = 0.0;  ///< when the last messages end
  double exposed_ = 0.0;
  double waits_ = 0.0;
  Parts parts_;
  /// When messages end, by number.
  std::map<std::size_t, double> ends_;
};

}  // namespace strata::forecast
