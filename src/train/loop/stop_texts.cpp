#include "strata/train/stop_texts.hpp"

#include <algorithm>
#include <utility>

namespace strata::train {

std::string StopTexts::take(std::string_view text) {
  for (const char byte : text) {
    waiting_ += byte;
    std::size_t ended = 0;
    for (const std::string& stop : texts_) {
      ended = waiting_.ends_with(stop) ? std::max(ended, stop.size()) : ended;
    }
    if (ended > 0) {
      waiting_.resize(waiting_.size() - ended);
      reached_ = true;
      break;
    }
  }
  std::size_t kept = 0;
  for (const std::string& stop : reached_ ? std::vector<std::string>() : texts_) {
    std::size_t length = std::min(stop.size() - 1, waiting_.size());
    while (!waiting_.ends_with(std::string_view(stop).substr(0, length))) {
      --length;
    }
    kept = std::max(kept, length);
  }
  std::string passed = waiting_.substr(0, waiting_.size() - kept);
  waiting_.erase(0, passed.size());
  return passed;
}

std::string StopTexts::finish() {
  reached_ = false;
  return std::exchange(waiting_, "");
}

}  // namespace strata::train
