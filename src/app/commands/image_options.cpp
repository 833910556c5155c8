#include "commands/image_options.hpp"

#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "strata/core/text.hpp"

#include "environment/cpu_cores.hpp"

namespace strata::app {

io::ImageOptions image_options(const config::CommandLine& line) {
  constexpr std::int64_t kMostPixels = 1 << 14;
  constexpr std::int64_t kMostThreads = 1024;
  io::ImageOptions images;
  if (line.has("resize")) {
    const std::string text = line.value("resize", "");
    const std::size_t by = text.find('x');
    const bool both = by != std::string::npos;
    std::int64_t& first = both ? images.height : images.shorter_side;
    const auto is_side = [](const std::string& side, std::int64_t& value) {
      return parse_int64(side, value) && value >= 1 && value <= kMostPixels;
    };
    if (!is_side(text.substr(0, by), first) ||
        (both && !is_side(text.substr(by + 1), images.width))) {
      config::refuse_value(
          "resize", text,
          fmt::format("the pixels of the shorter side, or height x width as in 224x224, each from "
                      "1 to {}",
                      kMostPixels));
    }
  }
  images.crop = line.has("crop") ? line.count("crop", 0, 1, kMostPixels) : 0;
  images.channels = line.count("channels", 3, 1, 3);
  images.bad_files = line.has("skip-bad") ? io::BadFiles::kSkip : io::BadFiles::kFail;
  images.threads = line.count("threads", default_threads(1), 1, kMostThreads);
  return images;
}

}  // namespace strata::app
