#pragma once

#include <string>

#include "strata/comm/communicator.hpp"
#include "strata/ops/context.hpp"

namespace strata::train {

/// What the log says of the kernels of all ranks.
struct ComparedKernels {
  std::string text;
  /// Where ranks run one product by different kernels, as GPUs or libraries that are not alike do;
  /// else empty.
  std::string warning;
};

/// Compares the kernels of the operations and shapes that ranks have in common. Communication: an
/// all-gather over the world. Throws: AgreedError(kPeer) that names two ranks and the operation,
/// not a product, for which they have different kernels.
[[nodiscard]] ComparedKernels compared_kernels(comm::Communicator& world,
                                               const ops::KernelsUsed& mine);

}  // namespace strata::train
