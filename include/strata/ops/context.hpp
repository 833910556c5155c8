#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "strata/core/enum_names.hpp"
#include "strata/device/device.hpp"
#include "strata/device/stream.hpp"

namespace strata::ops {

class CudaResources;
class PrimitiveCache;

/// How a GPU multiplies float32 matrices: with all 24 bits of each number, or with 11 of them, as
/// its tensor cores do. Sums are float32 either way.
enum class Float32Products { kFull, kTf32 };

/// Whose kernels do an operation on a GPU that cuDNN has kernels for. Bits differ between the two.
enum class LibraryKernels {
  kLibrary,  ///< cuDNN's, for the shapes that it takes, where it is found; else own ones
  kOwn       ///< own ones, which take every shape
};

/// What a GPU's operations may choose, with other bits.
struct CudaOptions {
  Float32Products float32_products = Float32Products::kFull;
  LibraryKernels convolution_kernels = LibraryKernels::kLibrary;
  /// Of attention in bfloat16, forward and backward.
  LibraryKernels attention_kernels = LibraryKernels::kLibrary;
};

/// What operations run with: a device, and the library primitives made so far. One a rank;
/// operations that share a Context must not run at the same time, operations with different ones
/// may. Tensors given to an operation lie in the memory of its Context's device.
class Context {
 public:
  /// A CPU context. Pre: threads >= 1.
  explicit Context(int threads);
  /// A context of a GPU: operations are put on its stream, in order, and most return before they
  /// are done (docs/cuda.md lists those that wait).
  /// Throws: Error(kPeer) where the GPU fails. Pre: `device` is a GPU.
  [[nodiscard]] static Context cuda(const device::Device& device, const CudaOptions& options = {});
  /// What a GPU's context takes of its memory from the beginning: cuBLASLt's workspace.
  static constexpr std::int64_t kCudaBytes = std::int64_t{32} << 20;
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  Context(Context&& other) noexcept;
  Context& operator=(Context&& other) noexcept;

  [[nodiscard]] const device::Device& device() const { return stream_.device(); }
  /// Threads on the CPU; 1 where the device is a GPU.
  [[nodiscard]] int threads() const { return threads_; }
  /// What operations are put on.
  [[nodiscard]] device::Stream& stream() { return stream_; }
  /// Waits until all operations given so far are done. Throws: Error(kPeer) where one failed.
  void synchronize() { stream_.synchronize(); }

  /// What operations have taken of a GPU's memory by now, to work in; 0 on the CPU.
  [[nodiscard]] std::int64_t scratch_bytes() const;

  /// The cache of the CPU's library primitives; its type is known inside the room only.
  /// Throws: std::logic_error where the device is a GPU.
  [[nodiscard]] PrimitiveCache& primitives();
  /// The GPU's memory and libraries; its type is known inside the room only.
  /// Throws: std::logic_error where the device is the CPU.
  [[nodiscard]] CudaResources& cuda_resources();

 private:
  Context(device::Stream stream, const CudaOptions& options);

  int threads_;
  std::unique_ptr<PrimitiveCache> primitives_;
  std::unique_ptr<CudaResources> cuda_resources_;
  // Goes first: it may still have work that uses the memory above.
  device::Stream stream_;
};

}  // namespace strata::ops

namespace strata {
template <>
struct EnumNames<ops::LibraryKernels> {
  static constexpr std::array<std::pair<ops::LibraryKernels, std::string_view>, 2> kTable{
      {{ops::LibraryKernels::kLibrary, "library"}, {ops::LibraryKernels::kOwn, "own"}}};
};
}  // namespace strata
