#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>

namespace strata::io {

/// How much of a file is read at a time.
inline constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

/// Cuts the blocks of a text file into lines. A NUL ends a line too: a file server that crashes
/// leaves a tail of them. Empty lines and lines of more than kMostBytes are left out.
class LineCutter {
 public:
  using Take = std::function<void(std::string_view)>;
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;

  /// Passes on the lines that end in a block. Returns the bytes up to its last line feed.
  std::size_t add(std::string_view block, const Take& take) {
    std::size_t begin = 0;
    for (std::size_t end = block.find('\n'); end != std::string_view::npos;
         end = block.find('\n', begin)) {
      append(block.substr(begin, end - begin));
      finish(take);
      begin = end + 1;
    }
    append(block.substr(begin));
    return begin;
  }

  /// Passes on what follows the last line feed.
  void finish(const Take& take) {
    for (std::string_view left = rest_; !left.empty();) {
      const std::size_t end = std::min(left.find('\0'), left.size());
      if (end > 0) {
        take(left.substr(0, end));
      }
      left.remove_prefix(std::min(end + 1, left.size()));
    }
    rest_.clear();
    too_long_ = false;
  }

 private:
  /// NULs at the begin of a text that begins with one; of a whole block at once.
  static std::size_t leading_nuls(std::string_view text) {
    const bool all = std::memcmp(text.data(), text.data() + 1, text.size() - 1) == 0;
    return all ? text.size() : std::min(text.find_first_not_of('\0'), text.size());
  }

  void append(std::string_view part) {
    while (!part.empty() && !too_long_) {
      const std::size_t end = std::min(part.find('\0'), part.size());
      rest_ += part.substr(0, end);
      part.remove_prefix(end);
      if (!part.empty()) {
        rest_ += rest_.ends_with('\0') ? "" : std::string(1, '\0');
        part.remove_prefix(leading_nuls(part));
      }
      too_long_ = rest_.size() > kMostBytes;
    }
    if (too_long_) {
      rest_.clear();
    }
  }

  std::string rest_;  ///< since the last line feed, with one NUL for several
  bool too_long_ = false;
};

}  // namespace strata::io
