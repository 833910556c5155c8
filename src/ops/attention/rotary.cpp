#include <cmath>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/attention.hpp"

#include "attention/attention_tiles.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"

namespace strata::ops {
namespace {

/// Cosine and sine of each token's angles times the magnitude, rows of rotated / 2; kBackward has
/// the sines negated.
template <typename T>
class RotationTable {
 public:
  RotationTable(Context& context, const AttentionShape& shape, const RotaryAngles& angles,
                std::int64_t offset, Rotation rotation)
      : half_(angles.rotated(shape.head_size) / 2),
        cosines_(static_cast<std::size_t>(shape.tokens * half_)),
        sines_(cosines_.size()) {
    std::vector<double> frequencies(static_cast<std::size_t>(half_));
    const RotaryBand band = angles.band(shape.head_size);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const auto pair = static_cast<double>(i);
      frequencies[i] = angles.scaling.scaled(
          std::pow(angles.theta, -2.0 * pair / static_cast<double>(2 * half_)), pair, band);
    }
    const double of_cosines = angles.scaling.magnitude();
    const double of_sines = rotation == Rotation::kForward ? of_cosines : -of_cosines;
    // A sine and a cosine cost about 64 products.
    parallel_for_rows(context, shape.tokens, 64 * half_, [&](std::int64_t token) {
      for (std::int64_t i = 0; i < half_; ++i) {
        const double angle =
            static_cast<double>(offset + token) * frequencies[static_cast<std::size_t>(i)];
        const auto at = static_cast<std::size_t>(token * half_ + i);
        cosines_[at] = static_cast<T>(of_cosines * std::cos(angle));
        sines_[at] = static_cast<T>(of_sines * std::sin(angle));
      }
    });
  }

  [[nodiscard]] const T* cosines(std::int64_t token) const {
    return cosines_.data() + token * half_;
  }
  [[nodiscard]] const T* sines(std::int64_t token) const { return sines_.data() + token * half_; }

 private:
  std::int64_t half_;
  std::vector<T> cosines_;
  std::vector<T> sines_;
};

template <typename T, typename Stored>
void rotate_head(Stored* head, std::int64_t half, const T* cosines, const T* sines) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const T first = static_cast<T>(head[i]);
    const T second = static_cast<T>(head[i + half]);
    head[i] = to_storage<Stored>(first * cosines[i] - second * sines[i]);
    head[i + half] = to_storage<Stored>(second * cosines[i] + first * sines[i]);
  }
}

}  // namespace

void rotary(Context& context, const AttentionShape& shape, const RotaryAngles& angles,
            std::int64_t offset, Rotation rotation, const TensorView& qkv) {
  const Observed observed(context, "rotary", qkv);
  require_qkv(shape, qkv);
  const std::int64_t rotated = angles.rotated(shape.head_size);
  require(rotated > 0 && rotated <= shape.head_size && rotated % 2 == 0,
          "a rotation of {} elements of heads of {}", rotated, shape.head_size);
  require(angles.scaling.kind != RotaryScalingKind::kLongrope ||
              angles.scaling.factors.count == rotated / 2,
          "{} factors for {} pairs", angles.scaling.factors.count, rotated / 2);
  const double least = angles.scaling.kind == RotaryScalingKind::kYarn ? 1.0 : 0.0;
  require(angles.theta > least && offset >= 0, "a rotation with theta {} from position {}",
          angles.theta, offset);
  if (observed.handled_by<cuda::rotary>(shape, angles, offset, rotation, qkv)) {
    return;
  }
  const std::int64_t half = rotated / 2;
  with_stored(qkv.dtype(), [&]<typename Stored>(Stored) {
    using T = Compute<Stored>;
    Stored* elements = qkv.host<Stored>().data();
    const RotationTable<T> turns(context, shape, angles, offset, rotation);
    parallel_for_rows(context, shape.rows(), shape.qkv_width(), [&](std::int64_t row) {
      const std::int64_t token = row % shape.tokens;
      for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        // The queries, then the key.
        for (std::int64_t index = 0; index <= shape.queries; ++index) {
          rotate_head(qkv_head(shape, elements, 0, kv_head, index).from(row).data, half,
                      turns.cosines(token), turns.sines(token));
        }
      }
    });
  });
}

}  // namespace strata::ops
