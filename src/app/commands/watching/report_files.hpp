#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "strata/train/run_view.hpp"

#include "drawing/chart.hpp"

namespace strata::app {

/// A run on a page.
struct NamedRun {
  std::string name;
  std::size_t number = 0;  ///< from 0, in the names of files and as a curve's colour
  train::RunView view;
};
using Runs = std::vector<NamedRun>;

/// Charts for the page, and for files where these are asked for.
class Charts {
 public:
  /// `plots`: the directory of the files, which is made; empty: none.
  explicit Charts(std::filesystem::path plots);

  template <typename Chart>
  std::string add(const Chart& chart, const std::string& file) const {
    if (!plots_.empty()) {
      write(svg_of(chart, SvgPlace::kFile), file);
    }
    return svg_of(chart, SvgPlace::kPage);
  }
  /// A picture that is an SVG of its own.
  [[nodiscard]] std::string add(const std::string& svg, const std::string& title,
                                const std::string& file) const;

 private:
  void write(const std::string& svg, const std::string& file) const;

  std::filesystem::path plots_;
};

/// A recorded step of each run that has a timeline.json, as a part of the page.
[[nodiscard]] std::string recorded_steps(const Runs& runs, const Charts& charts);

/// What files in the runs' directories hold beside the record of training: confusion matrices,
/// pictures and texts.
[[nodiscard]] std::string results(const Runs& runs, const Charts& charts);

}  // namespace strata::app
