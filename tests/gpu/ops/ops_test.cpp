#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "strata/core/random.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/device.hpp"
#include "strata/ops/digest.hpp"

#include "cases.hpp"

namespace strata::ops::test {
namespace {

DType dtype_of(const Operand& operand, DType stored) {
  switch (operand.type) {
    case Type::kStored:
      return operand.fixed.value_or(stored);
    case Type::kComputed:
      return operand.fixed.value_or(compute_dtype(stored));
    case Type::kBytes:
      return DType::kUint8;
    case Type::kIds:
      return DType::kInt64;
  }
  return stored;
}

bool is_floating(const Operand& operand) {
  return operand.type == Type::kStored || operand.type == Type::kComputed;
}

/// Relative to the largest magnitude of a result.
double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 1e-12;
    case DType::kFloat32:
      return 1e-5;
    case DType::kBfloat16:
      return 1e-2;
    default:
      return 0.0;
  }
}

template <typename Function>
void with_any_type(DType dtype, const Function& function) {
  if (dtype == DType::kUint8) {
    function(std::uint8_t{});
  } else if (dtype == DType::kInt64) {
    function(std::int64_t{});
  } else {
    with_stored(dtype, function);
  }
}

/// An operand's values, rounded to the dtype that the GPU stores them in.
std::vector<double> values_of(const Operand& operand, DType dtype, std::uint64_t seed) {
  const RandomStream stream(seed, RandomPurpose::kSynthesise, 0);
  std::vector<double> values(static_cast<std::size_t>(operand.shape.count()));
  with_any_type(dtype, [&]<typename T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double value = operand.low + (operand.high - operand.low) * stream.uniform(i);
      if (operand.nan_every > 0 &&
          static_cast<std::int64_t>(i) % operand.nan_every == operand.nan_every / 2) {
        values[i] = NAN;
      } else if constexpr (std::is_integral_v<T>) {
        values[i] = std::floor(value);
      } else {
        values[i] = static_cast<double>(
            static_cast<Compute<T>>(static_cast<T>(static_cast<Compute<T>>(value))));
      }
    }
  });
  return values;
}

/// A tensor on a device that begins `offset` elements into its memory.
class Placed {
 public:
  Placed(const device::Device& device, const Operand& operand, DType dtype, std::int64_t offset,
         std::span<const double> values)
      : host_(device::Device::cpu(), operand.shape.count() * size_bytes(dtype)),
        device_(device, (operand.shape.count() + offset) * size_bytes(dtype)),
        view_(device_.view(offset * size_bytes(dtype), operand.shape, dtype)) {
    // What an operation writes is made of NaNs at first.
    if (!host_.empty()) {
      std::memset(host_.raw(), 0xFF, static_cast<std::size_t>(host_.bytes()));
    }
    const TensorView host = host_.view(0, operand.shape, dtype);
    if (operand.role != Role::kWritten) {
      with_any_type(dtype, [&]<typename T>(T) {
        const std::span<T> elements = host.host<T>();
        for (std::size_t i = 0; i < elements.size(); ++i) {
          elements[i] = static_cast<T>(static_cast<Compute<T>>(values[i]));
        }
      });
    }
    device::copy_tensor(host, view_);
  }

  [[nodiscard]] const TensorView& view() const { return view_; }
  /// The elements' bytes as they are now, in host memory.
  [[nodiscard]] std::span<const std::byte> fetched() {
    const TensorView host = host_.view(0, view_.shape(), view_.dtype());
    device::copy_tensor(view_, host);
    return {host_.raw(), static_cast<std::size_t>(host_.bytes())};
  }
  [[nodiscard]] std::vector<double> fetched_values() {
    static_cast<void>(fetched());
    std::vector<double> values(static_cast<std::size_t>(view_.count()));
    with_any_type(view_.dtype(), [&]<typename T>(T) {
      const std::span<T> elements = host_.view(0, view_.shape(), view_.dtype()).host<T>();
      for (std::size_t i = 0; i < elements.size(); ++i) {
        values[i] = static_cast<double>(static_cast<Compute<T>>(elements[i]));
      }
    });
    return values;
  }

 private:
  device::Buffer host_;
  device::Buffer device_;
  TensorView view_;
};

/// What came of one run of a case.
struct Outcome {
  std::vector<double> numbers;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::vector<double>> values;
};

/// Runs in `stored`, or all of it in float64 where `widens`.
Outcome run(Context& context, const Case& test, DType stored, bool widens, std::int64_t offset) {
  std::vector<Placed> placed;
  placed.reserve(test.operands.size());
  std::vector<TensorView> tensors;
  for (std::size_t i = 0; i < test.operands.size(); ++i) {
    const Operand& operand = test.operands[i];
    const DType dtype = dtype_of(operand, stored);
    const std::vector<double> values = values_of(operand, dtype, i + 1);
    const DType as = widens && is_floating(operand) ? DType::kFloat64 : dtype;
    placed.emplace_back(context.device(), operand, as, offset, values);
    tensors.push_back(placed.back().view());
  }
  Outcome outcome;
  outcome.numbers = test.call(context, tensors);
  context.synchronize();
  for (Placed& tensor : placed) {
    const auto bytes = tensor.fetched();
    outcome.bytes.emplace_back(bytes.begin(), bytes.end());
    outcome.values.push_back(tensor.fetched_values());
  }
  return outcome;
}

/// Whether some of what a case reads are no numbers; so are then some of its results.
enum class Nans { kNone, kSome };

Nans nans_of(const Case& test) {
  return std::ranges::any_of(test.operands, [](const Operand& o) { return o.nan_every > 0; })
             ? Nans::kSome
             : Nans::kNone;
}

bool same_bits(std::span<const double> a, std::span<const double> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

/// The largest difference, relative to the largest magnitude; infinite where one is not a number
/// and not meant to be none.
double difference_of(std::span<const double> results, std::span<const double> expected, Nans nans) {
  double largest = 0.0;
  double difference = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (nans == Nans::kSome && std::isnan(results[i]) && std::isnan(expected[i])) {
      continue;
    }
    const double apart = std::fabs(results[i] - expected[i]);
    largest = std::max(largest, std::fabs(expected[i]));
    difference = std::isnan(apart) ? INFINITY : std::max(difference, apart);
  }
  return difference == 0.0 ? 0.0 : difference / largest;
}

/// Tensor cores truncate a sum's last bits after every 16 terms of bfloat16, where the CPU rounds
/// to nearest. Source: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor
/// cores", PeerJ Computer Science 7, 2021.
double truncation_of(const Case& test, DType dtype) {
  return dtype == DType::kBfloat16 ? static_cast<double>(test.terms) / 16.0 * std::ldexp(1.0, -23)
                                   : 0.0;
}

/// `other` is a second context of the GPU: what a context remembers must not show.
void hold(Context& cpu, Context& gpu, Context& other, const Case& test, DType dtype) {
  const Outcome expected = run(cpu, test, dtype, true, 0);
  const Outcome first = run(gpu, test, dtype, false, 0);
  const Outcome again = run(other, test, dtype, false, 0);
  const Outcome elsewhere = run(gpu, test, dtype, false, 1);
  const Nans nans = nans_of(test);
  EXPECT_LE(difference_of(first.numbers, expected.numbers, nans),
            tolerance_of(compute_dtype(dtype)));
  EXPECT_TRUE(same_bits(first.numbers, again.numbers));
  EXPECT_TRUE(same_bits(first.numbers, elsewhere.numbers));
  for (std::size_t i = 0; i < test.operands.size(); ++i) {
    SCOPED_TRACE("operand " + std::to_string(i));
    const double tolerance =
        std::max(tolerance_of(dtype_of(test.operands[i], dtype)), truncation_of(test, dtype));
    EXPECT_LE(difference_of(first.values[i], expected.values[i], nans), tolerance);
    EXPECT_TRUE(first.bytes[i] == again.bytes[i]) << "other bits in a second run";
    EXPECT_TRUE(first.bytes[i] == elsewhere.bytes[i]) << "other bits at other addresses";
  }
  if (test.nearness == Nearness::kSameBits) {
    EXPECT_TRUE(first.bytes == run(cpu, test, dtype, false, 0).bytes)
        << "other bits than the CPU's";
  }
}

/// Runs every case of a table in every dtype that it takes.
void hold_all(void (*add_cases)(std::vector<Case>&), const CudaOptions& options = {}) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  Context cpu(1);
  Context gpu = Context::cuda(device::Device::cuda(0), options);
  Context other = Context::cuda(device::Device::cuda(0), options);
  std::vector<Case> cases;
  add_cases(cases);
  for (const Case& test : cases) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBfloat16}) {
      if (dtype == DType::kBfloat16 ? test.takes_bfloat16 : !test.only_bfloat16) {
        SCOPED_TRACE(test.name + " in " + std::string(name_of(dtype)));
        try {
          hold(cpu, gpu, other, test, dtype);
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();  // the other cases run all the same
        }
      }
    }
  }
}

TEST(CudaOperations, OfElements) {
  hold_all(add_element_cases);
}

TEST(CudaOperations, Products) {
  hold_all(add_product_cases);
}

TEST(CudaOperations, OfRows) {
  hold_all(add_row_cases);
}

TEST(CudaOperations, Losses) {
  hold_all(add_loss_cases);
}

TEST(CudaOperations, Updates) {
  hold_all(add_update_cases);
}

TEST(CudaOperations, OfLanguageModels) {
  hold_all(add_language_cases);
}

TEST(CudaOperations, OfImages) {
  hold_all(add_image_cases);
}

TEST(CudaOperations, InPlace) {
  hold_all(add_in_place_cases);
}

TEST(CudaOperations, OfWhatIsNotANumber) {
  hold_all(add_nan_cases);
}

TEST(CudaOperations, OfEmptyTensors) {
  hold_all(add_empty_cases);
}

TEST(CudaOperations, Convolutions) {
  hold_all(add_convolution_cases);
}

TEST(CudaOperations, ConvolutionsByOwnKernels) {
  hold_all(add_convolution_cases, {.convolution_kernels = LibraryKernels::kOwn});
}

TEST(CudaOperations, Attention) {
  // The library does it in bfloat16 alone; own kernels do the rest in either case.
  hold_all([](std::vector<Case>& cases) {
    add_attention_cases(cases);
    for (Case& test : cases) {
      test.only_bfloat16 = true;
    }
  });
}

TEST(CudaOperations, AttentionByOwnKernels) {
  hold_all(add_attention_cases, {.attention_kernels = LibraryKernels::kOwn});
}

/// Below and above what a block and 1024 blocks take at once, in rows of 7 that are 19 apart.
TEST(CudaDigest, IsThatOfTheHost) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  Context gpu = Context::cuda(device::Device::cuda(0));
  const DigestPlaces places{.begin = 3, .row = 7, .stride = 19, .first = 5};
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const std::int64_t count : {0, 1, 1023, 1025, 1'000'003}) {
      for (const std::int64_t offset : {0, 1}) {
        const Operand operand{.shape = {count}, .nan_every = 100};
        Placed x(gpu.device(), operand, dtype, offset, values_of(operand, dtype, 1));
        const Digest found = digest_of(gpu, "weights/a", x.view(), places);
        const ConstTensorView host(x.fetched().data(), {count}, dtype);
        EXPECT_EQ(found, digest_of("weights/a", host, places)) << count << name_of(dtype);
        EXPECT_EQ(digest_of(gpu, "weights/a", host, places), found) << "in host memory";
        EXPECT_EQ(found == Digest(), count == 0);
      }
    }
  }
}

}  // namespace
}  // namespace strata::ops::test
