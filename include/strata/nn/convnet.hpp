#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/core/shape.hpp"
#include "strata/nn/preset.hpp"

namespace strata::nn {

/// The images that a network was published for.
struct PublishedImages {
  Shape shape;  ///< channels x height x width
  std::int64_t classes = 0;
};

/// Pre: is_convnet(preset).
[[nodiscard]] PublishedImages published_images(Preset preset);

/// The `layer =` lines of a network that classifies images into `classes` classes.
/// Pre: is_convnet(preset). Source: LeCun, Bottou, Bengio, Haffner, "Gradient-based learning
/// applied to document recognition", 1998 (lenet, with relu and more channels, as in tutorials);
/// He, Zhang, Ren, Sun, "Deep residual learning for image recognition", arXiv 1512.03385 (resnet50
/// with its strides in the 3 x 3 convolutions); Simonyan, Zisserman, arXiv 1409.1556 (vgg16).
[[nodiscard]] std::vector<std::string> convnet_layers(Preset preset, std::int64_t classes);

}  // namespace strata::nn
