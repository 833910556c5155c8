#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "strata/nn/layer.hpp"

#include "layer_kinds.hpp"

namespace strata::nn {

/// Makes layers of `layer =` lines, one after the other.
class LayerReader {
 public:
  /// The lines outlive the reader.
  explicit LayerReader(std::span<const std::string> lines) : lines_(lines) {}

  [[nodiscard]] bool done() const { return next_ == lines_.size(); }
  /// The next layer's first line. Pre: not done().
  [[nodiscard]] const std::string& line() const { return lines_[next_]; }
  /// Goes over a line that is no layer of its own.
  void skip() { ++next_; }
  /// The next layer, from one line or, for a residual block, from several. Its name is
  /// `prefix` and what the line says, or the kind's with a number. Pre: not done(); `site` lacks
  /// only the name. Throws: Error(kUsage).
  [[nodiscard]] std::unique_ptr<Layer> next(LayerSite& site, const std::string& prefix = "");

 private:
  std::span<const std::string> lines_;
  std::size_t next_ = 0;
  std::map<std::string, int> counters_;
  std::set<std::string> names_;
};

/// A block whose input is added to its output: the lines up to "end" belong to it.
std::unique_ptr<Layer> make_residual(LayerLine& line, const LayerSite& site, LayerReader& reader);

}  // namespace strata::nn
