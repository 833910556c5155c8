#include "strata/ops/attention.hpp"

#include "cuda/kernel.hpp"
#include "cuda/ops.hpp"

namespace strata::ops::cuda {
namespace {

/// One thread for each angle of one row; it rotates that pair of elements in the queries and keys
/// of all heads.
template <typename Stored>
__global__ void rotary_kernel(std::int64_t count, AttentionShape shape, RotaryAngles angles,
                              RotaryBand band, std::int64_t offset, double of_cosines,
                              double of_sines, Stored* qkv) {
  using C = Compute<Stored>;
  const std::int64_t thread = thread_number();
  if (thread >= count) {
    return;
  }
  const std::int64_t half = angles.rotated(shape.head_size) / 2;
  const std::int64_t row = thread / half;
  const std::int64_t i = thread % half;
  const auto pair = static_cast<double>(i);
  const double frequency = angles.scaling.scaled(
      pow(angles.theta, -2.0 * pair / static_cast<double>(2 * half)), pair, band);
  const double angle = static_cast<double>(offset + row % shape.tokens) * frequency;
  const C cosine = static_cast<C>(of_cosines * cos(angle));
  const C sine = static_cast<C>(of_sines * sin(angle));
  for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    Stored* head =
        qkv + (row * shape.kv_heads + kv_head) * (shape.queries + 2) * shape.head_size + i;
    // The queries, then the key.
    for (std::int64_t index = 0; index <= shape.queries; ++index, head += shape.head_size) {
      const C first = value_of(head[0]);
      const C second = value_of(head[half]);
      head[0] = to_storage<Stored>(first * cosine - second * sine);
      head[half] = to_storage<Stored>(second * cosine + first * sine);
    }
  }
}

}  // namespace

void rotary(Context& context, const AttentionShape& shape, const RotaryAngles& angles,
            std::int64_t offset, Rotation rotation, const TensorView& qkv) {
  const std::int64_t count = shape.rows() * (angles.rotated(shape.head_size) / 2);
  const double of_cosines = angles.scaling.magnitude();
  const double of_sines = rotation == Rotation::kForward ? of_cosines : -of_cosines;
  with_device_type(qkv.dtype(), [&]<typename Stored>(Stored) {
    launch(context, "rotary", grid_of(count), rotary_kernel<Stored>, count, shape, angles,
           angles.band(shape.head_size), offset, of_cosines, of_sines, qkv.device<Stored>());
  });
}

}  // namespace strata::ops::cuda
