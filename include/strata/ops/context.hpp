#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "strata/core/enum_names.hpp"
#include "strata/core/switch.hpp"
#include "strata/device/device.hpp"
#include "strata/device/stream.hpp"
#include "strata/ops/observer.hpp"

namespace strata::ops {

class CudaResources;
class PrimitiveCache;
class ThreadPool;

/// Precision of a GPU's float32 matrix products: full (24-bit significand), or TF32 (11 bits) on
/// tensor cores. Both accumulate in float32.
enum class Float32Products { kFull, kTf32 };

/// Which kernels run an operation that cuDNN implements. The two give different bits.
enum class LibraryKernels {
  kLibrary,  ///< cuDNN's, for the shapes that it takes, where it is found; else own ones
  kOwn       ///< own ones, which take every shape
};

constexpr auto enum_names(LibraryKernels) {
  return names_in_order("library", "own");
}

/// Choices for a GPU's operations; each changes bits.
struct CudaOptions {
  Float32Products float32_products = Float32Products::kFull;
  /// Whether the library may cut the sum of a product's terms into parts. It then adds them in a
  /// fixed order, in a kernel of their own.
  Switch split_k = Switch::kOff;
  LibraryKernels convolution_kernels = LibraryKernels::kLibrary;
  /// For attention in bfloat16, forward and backward.
  LibraryKernels attention_kernels = LibraryKernels::kLibrary;
};

/// Which kernels run products, by product, and operations that cuDNN implements too, by operation
/// and shape: one of the library's, or own ones and why.
using KernelsUsed = std::map<std::string, std::string, std::less<>>;

/// The state that operations share: a device and stream, scratch memory and cached library
/// primitives. A rank has one. Operations of one Context must not run concurrently; operations of
/// different Contexts may. An operation's tensors are in the memory of its Context's device.
class Context {
 public:
  /// A CPU context. Pre: threads >= 1.
  explicit Context(int threads);
  /// A context of a GPU. Operations are enqueued on its stream in order; most return before the GPU
  /// has executed them (docs/cuda.md lists those that wait).
  /// Throws: Error(kPeer) where the GPU fails. Pre: `device` is a GPU.
  [[nodiscard]] static Context cuda(const device::Device& device, const CudaOptions& options = {});
  /// A context that computes nothing: its operations do no more than tell `observer` of their work.
  /// Its device's memory is not there. Pre: the observer leaves out every operation, and outlives
  /// the context.
  [[nodiscard]] static Context planned(Observer& observer);
  /// Device memory that a GPU's context allocates at construction: cuBLASLt's workspace.
  static constexpr std::int64_t kCudaBytes = std::int64_t{32} << 20;
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  Context(Context&& other) noexcept;
  Context& operator=(Context&& other) noexcept;

  [[nodiscard]] const device::Device& device() const { return stream_.device(); }
  /// Threads on the CPU; 1 where the device is a GPU.
  [[nodiscard]] int threads() const { return threads_; }
  /// The threads of parallel_for(). Pre: the device is the CPU.
  [[nodiscard]] ThreadPool& pool();
  /// The stream on which operations are enqueued.
  [[nodiscard]] device::Stream& stream() { return stream_; }
  /// Waits for all enqueued operations. Throws: Error(kPeer) where one failed.
  void synchronize() { stream_.synchronize(); }

  /// Enqueues the operations that `work` calls on another stream of the GPU. They may run beside
  /// those on the context's own stream, so they must need no scratch memory.
  /// Throws: std::logic_error where one needs it.
  void on_stream(device::Stream& other, const std::function<void()>& work);
  [[nodiscard]] bool is_on_own_stream() const { return is_on_own_stream_; }

  /// Tells `observer` of each operation from now on; null: nobody.
  void set_observer(Observer* observer) { observer_ = observer; }
  [[nodiscard]] bool is_observed() const { return observer_ != nullptr; }
  /// The begin and the end of an operation, which may consist of others. Returns: whether to leave
  /// it out, as all that it consists of.
  [[nodiscard]] bool begin_operation(const OperationWork& work);
  void end_operation();

  /// Device memory allocated for scratch so far; 0 on the CPU.
  [[nodiscard]] std::int64_t scratch_bytes() const;

  /// Of the operations so far; empty on the CPU.
  [[nodiscard]] KernelsUsed kernels() const;

  /// The CPU's cache of oneDNN primitives; the type is internal to ops.
  /// Throws: std::logic_error where the device is a GPU.
  [[nodiscard]] PrimitiveCache& primitives();
  /// The GPU's scratch memory and libraries; the type is internal to ops.
  /// Throws: std::logic_error where the device is the CPU.
  [[nodiscard]] CudaResources& cuda_resources();

 private:
  Context(device::Stream stream, const CudaOptions& options);
  explicit Context(Observer& observer);

  int threads_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<PrimitiveCache> primitives_;
  std::unique_ptr<CudaResources> cuda_resources_;
  bool is_on_own_stream_ = true;
  Observer* observer_ = nullptr;
  /// Operations that have begun and not ended, each part of the one before.
  int depth_ = 0;
  /// Whether the first of them is left out, and so all.
  bool leaves_out_ = false;
  // Destroyed first: its pending work may use the memory above.
  device::Stream stream_;
};

}  // namespace strata::ops
