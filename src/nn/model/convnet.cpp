#include "strata/nn/convnet.hpp"

#include <fmt/format.h>

#include "strata/core/error.hpp"

namespace strata::nn {
namespace {

/// Collects the lines of a network.
class Lines {
 public:
  template <typename... Values>
  void add(fmt::format_string<Values...> text, Values&&... values) {
    lines_.push_back(fmt::format(text, std::forward<Values>(values)...));
  }

  /// A convolution without a bias, since the batch norm that follows has one.
  void convolve_and_norm(std::int64_t channels, std::int64_t window, std::int64_t stride,
                         const char* activation) {
    add("conv {} {} stride={} padding={} bias=off init=he", channels, window, stride,
        (window - 1) / 2);
    add("batch_norm{}", activation);
  }

  [[nodiscard]] std::vector<std::string> take() { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

std::vector<std::string> lenet(std::int64_t classes) {
  return {"conv 20 5 relu",
          "max_pool 2",
          "conv 50 5 relu",
          "max_pool 2",
          "flatten",
          "dense 500 relu",
          fmt::format("dense {}", classes)};
}

std::vector<std::string> cifar10_cnn(std::int64_t classes) {
  return {"conv 32 3 relu padding=same",
          "conv 32 3 relu padding=same",
          "max_pool 2",
          "conv 64 3 relu padding=same",
          "conv 64 3 relu padding=same",
          "max_pool 2",
          "flatten",
          "dense 512 relu",
          fmt::format("dense {}", classes)};
}

/// Three groups of `blocks` blocks of two convolutions. Shortcuts have no weights: they subsample
/// pixels and pad new channels with zeros.
std::vector<std::string> cifar_resnet(std::int64_t blocks, std::int64_t classes) {
  Lines lines;
  lines.convolve_and_norm(16, 3, 1, " relu");
  for (std::int64_t group = 0; group < 3; ++group) {
    const std::int64_t channels = std::int64_t{16} << group;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const bool narrows = group > 0 && block == 0;
      lines.add("residual");
      lines.convolve_and_norm(channels, 3, narrows ? 2 : 1, " relu");
      lines.convolve_and_norm(channels, 3, 1, "");
      if (narrows) {
        lines.add("shortcut");
        lines.add("max_pool 1 stride=2");
        lines.add("zero_channels {}", channels);
      }
      lines.add("end relu");
    }
  }
  lines.add("global_avg_pool");
  lines.add("dense {}", classes);
  return lines.take();
}

/// The block of an ImageNet ResNet.
enum class Block {
  kBasic,      ///< two 3 x 3 convolutions
  kBottleneck  ///< 1 x 1, 3 x 3, and 1 x 1 to four times the channels
};

void add_block(Lines& lines, Block kind, std::int64_t channels, std::int64_t stride,
               bool has_shortcut) {
  lines.add("residual");
  const std::int64_t outputs = kind == Block::kBasic ? channels : 4 * channels;
  if (kind == Block::kBasic) {
    lines.convolve_and_norm(channels, 3, stride, " relu");
    lines.convolve_and_norm(channels, 3, 1, "");
  } else {
    lines.convolve_and_norm(channels, 1, 1, " relu");
    lines.convolve_and_norm(channels, 3, stride, " relu");
    lines.convolve_and_norm(outputs, 1, 1, "");
  }
  if (has_shortcut) {
    lines.add("shortcut");
    lines.convolve_and_norm(outputs, 1, stride, "");
  }
  lines.add("end relu");
}

std::vector<std::string> imagenet_resnet(Block kind, const std::vector<std::int64_t>& blocks,
                                         std::int64_t classes) {
  Lines lines;
  lines.convolve_and_norm(64, 7, 2, " relu");
  lines.add("max_pool 3 stride=2 padding=1");
  for (std::size_t group = 0; group < blocks.size(); ++group) {
    for (std::int64_t block = 0; block < blocks[group]; ++block) {
      const bool first = block == 0;
      add_block(lines, kind, std::int64_t{64} << group, first && group > 0 ? 2 : 1,
                first && (group > 0 || kind == Block::kBottleneck));
    }
  }
  lines.add("global_avg_pool");
  lines.add("dense {}", classes);
  return lines.take();
}

std::vector<std::string> vgg16(std::int64_t classes) {
  Lines lines;
  for (const auto& [channels, convolutions] :
       {std::pair{64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}}) {
    for (int i = 0; i < convolutions; ++i) {
      lines.add("conv {} 3 relu padding=same init=he", channels);
    }
    lines.add("max_pool 2");
  }
  lines.add("flatten");
  for (int i = 0; i < 2; ++i) {
    lines.add("dense 4096 relu");
    lines.add("dropout 0.5");
  }
  lines.add("dense {}", classes);
  return lines.take();
}

}  // namespace

PublishedImages published_images(Preset preset) {
  switch (preset) {
    case Preset::kLenet:
      return {{1, 28, 28}, 10};
    case Preset::kCifar10Cnn:
    case Preset::kResnet20:
    case Preset::kResnet56:
      return {{3, 32, 32}, 10};
    default:
      require(is_convnet(preset), "{} is no convolutional network", name_of(preset));
      return {{3, 224, 224}, 1000};
  }
}

std::vector<std::string> convnet_layers(Preset preset, std::int64_t classes) {
  switch (preset) {
    case Preset::kLenet:
      return lenet(classes);
    case Preset::kCifar10Cnn:
      return cifar10_cnn(classes);
    case Preset::kResnet20:
      return cifar_resnet(3, classes);
    case Preset::kResnet56:
      return cifar_resnet(9, classes);
    case Preset::kResnet18:
      return imagenet_resnet(Block::kBasic, {2, 2, 2, 2}, classes);
    case Preset::kResnet50:
      return imagenet_resnet(Block::kBottleneck, {3, 4, 6, 3}, classes);
    case Preset::kVgg16:
      return vgg16(classes);
    default:
      require(false, "{} is no convolutional network", name_of(preset));
      return {};
  }
}

}  // namespace strata::nn
