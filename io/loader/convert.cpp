#include "loader/convert.hpp"

#include <algorithm>
#include <cstring>

#include "strata/core/error.hpp"

namespace strata::io {
namespace {

// x - x is 0 for every finite number and NaN otherwise; without an early exit the loop vectorises.
template <typename T>
bool all_finite(const T* values, std::size_t count) {
  int odd = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<Compute<T>>(values[i]);
    const auto difference = value - value;  // NOLINT(misc-redundant-expression)
    odd |= static_cast<int>(!(difference == Compute<T>{0}));
  }
  return odd == 0;
}

}  // namespace

Normalise resolved(Normalise normalise, const DatasetInfo& info) {
  if (normalise != Normalise::kAuto) {
    return normalise;
  }
  return info.input_dtype == DType::kUint8 ? Normalise::kUnit
         : info.column_names.empty()       ? Normalise::kNone
                                           : Normalise::kStandard;
}

InputConverter::InputConverter(const DatasetInfo& info, const LoaderOptions& options)
    : stored_dtype_(info.input_dtype),
      compute_dtype_(options.compute_dtype),
      channels_(is_image(info.input_shape) ? info.input_shape[0] : 1) {
  const Normalise normalise = resolved(options.normalise, info);
  identity_ = normalise == Normalise::kNone;
  if (normalise == Normalise::kUnit) {
    shift_ = {0.0};
    scale_ = {255.0};
  } else if (normalise == Normalise::kStandard) {
    shift_ = options.mean.empty() ? info.mean : options.mean;
    scale_ = options.mean.empty() ? info.deviation : options.deviation;
    std::replace(scale_.begin(), scale_.end(), 0.0, 1.0);
  }
  aligned_.resize(static_cast<std::size_t>((info.input_bytes() + 7) / 8));
}

bool InputConverter::convert(std::span<const std::byte> stored, std::byte* out) {
  return with_stored(compute_dtype_, [&](auto zero) {
    return convert_to(stored, reinterpret_cast<decltype(zero)*>(out));
  });
}

template <typename To>
bool InputConverter::convert_to(std::span<const std::byte> stored, To* out) {
  switch (stored_dtype_) {
    case DType::kUint8:
      return convert_from<std::uint8_t>(stored, out);
    case DType::kFloat32:
      return convert_from<float>(stored, out);
    case DType::kFloat64:
      return convert_from<double>(stored, out);
    default:
      break;
  }
  require(false, "inputs are never stored as {}", name_of(stored_dtype_));
  return false;
}

// Interleaves `stride` planes: channel c writes elements c, c + stride, ...
template <typename From, typename To, typename Stride>
void InputConverter::convert_planes(const From* in, std::size_t count, Stride stride,
                                    To* out) const {
  using Number = Compute<To>;
  const std::size_t pixels = count / stride;
  for (std::size_t channel = 0; channel < stride; ++channel) {
    const From* plane = in + channel * pixels;
    To* to = out + channel;
    if (identity_) {
      for (std::size_t i = 0; i < pixels; ++i) {
        to[i * stride] = static_cast<To>(static_cast<Number>(plane[i]));
      }
    } else if (shift_.size() == count) {
      for (std::size_t i = 0; i < pixels; ++i) {
        const std::size_t element = channel * pixels + i;
        to[i * stride] =
            static_cast<To>((static_cast<Number>(plane[i]) - static_cast<Number>(shift_[element])) /
                            static_cast<Number>(scale_[element]));
      }
    } else {
      const std::size_t statistic = shift_.size() == 1 ? 0 : channel;
      const auto shift = static_cast<Number>(shift_[statistic]);
      const auto scale = static_cast<Number>(scale_[statistic]);
      for (std::size_t i = 0; i < pixels; ++i) {
        to[i * stride] = static_cast<To>((static_cast<Number>(plane[i]) - shift) / scale);
      }
    }
  }
}

template <typename From, typename To>
bool InputConverter::convert_from(std::span<const std::byte> stored, To* out) {
  const std::size_t count = stored.size() / sizeof(From);
  const auto* in = reinterpret_cast<const From*>(stored.data());
  if (reinterpret_cast<std::uintptr_t>(stored.data()) % alignof(From) != 0) {
    std::memcpy(aligned_.data(), stored.data(), stored.size());
    in = reinterpret_cast<const From*>(aligned_.data());
  }
  // A compile-time stride of 1, for all but colour images, lets the loops vectorise.
  if (channels_ == 1) {
    convert_planes(in, count, std::integral_constant<std::size_t, 1>(), out);
  } else {
    convert_planes(in, count, static_cast<std::size_t>(channels_), out);
  }
  // Normalised bytes are finite, for the scale is not 0.
  return std::is_same_v<From, std::uint8_t> || all_finite(out, count);
}

}  // namespace strata::io
