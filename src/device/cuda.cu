#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>
#ifdef STRATA_HAVE_CUDNN
#include <cudnn.h>
#endif
#ifdef STRATA_HAVE_NCCL
#include <nccl.h>
#endif

#include "strata/device/buffer.hpp"
#include "strata/device/failure.hpp"
#include "strata/device/pinned_buffer.hpp"
#include "strata/device/profile_range.hpp"
#include "strata/device/shared_library.hpp"

#include "cuda_calls.hpp"

namespace strata::device::cuda {
namespace {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    // Clears the sticky error, which the next launch would report.
    static_cast<void>(cudaGetLastError());
    cuda_failed(what, cudaGetErrorString(status));
  }
}

/// Of a query, which does not wait.
bool is_done(cudaError_t status, const char* what) {
  if (status == cudaErrorNotReady) {
    // Not an error, but CUDA keeps it as the last error.
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check(status, what);
  return true;
}

void use(std::int64_t device) {
  check(cudaSetDevice(static_cast<int>(device)), "choosing the device");
}

constexpr const char* kMissing = "built for, but not found on this node";

/// The streams of make_stream().
class OpenStreams {
 public:
  void add(cudaStream_t stream) {
    const std::scoped_lock lock(mutex_);
    streams_.insert(stream);
  }
  void remove(cudaStream_t stream) {
    const std::scoped_lock lock(mutex_);
    streams_.erase(stream);
  }

  void limit_waits(double seconds) { limit_seconds_ = seconds; }
  /// Waits until each stream has been seen without work. Returns false where the time is up:
  /// kernels that wait for a lost peer may never end, and the library's own waits would wait with
  /// them.
  [[nodiscard]] bool end_work() {
    const auto begin = std::chrono::steady_clock::now();
    cudaStream_t seen = nullptr;
    for (;;) {
      {
        const std::scoped_lock lock(mutex_);
        const auto next = streams_.upper_bound(seen);
        if (next == streams_.end()) {
          return true;
        }
        if (!is_busy(*next)) {
          seen = *next;
          continue;
        }
      }
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
      if (waited.count() > limit_seconds_) {
        limit_seconds_ = 0.0;
        return false;
      }
      std::this_thread::yield();
    }
  }

 private:
  static bool is_busy(cudaStream_t stream) {
    const cudaError_t status = cudaStreamQuery(stream);
    if (status != cudaSuccess) {
      // Else CUDA keeps it as the last error. The work of a stream that failed has ended.
      static_cast<void>(cudaGetLastError());
    }
    return status == cudaErrorNotReady;
  }

  std::mutex mutex_;
  std::set<cudaStream_t> streams_;
  std::atomic<double> limit_seconds_ = std::numeric_limits<double>::infinity();
};

/// Never destroyed: buffers may be released later.
OpenStreams& open_streams() {
  static auto* const streams = new OpenStreams;
  return *streams;
}

/// A version number in which the major counts `major_unit` and the minor `minor_unit`.
std::string dotted(std::size_t version, std::size_t major_unit, std::size_t minor_unit) {
  return std::to_string(version / major_unit) + "." +
         std::to_string(version % major_unit / minor_unit) + "." +
         std::to_string(version % minor_unit);
}

}  // namespace

const char* absence_reason() noexcept {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  return status == cudaSuccess ? "this node has fewer GPUs than that" : cudaGetErrorString(status);
}

void* allocate(std::int64_t device, std::int64_t bytes) {
  use(device);
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    // Clears the sticky error, which the next call would report again.
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  check(status, "allocating memory");
  check(cudaMemset(memory, 0, static_cast<std::size_t>(bytes)), "clearing memory");
  // Our streams do not wait for the default stream, on which memory is cleared.
  check(cudaStreamSynchronize(nullptr), "clearing memory");
  return memory;
}

void release(std::int64_t device, void* memory) noexcept {
  static_cast<void>(cudaSetDevice(static_cast<int>(device)));
  // What is under way may still use it; and cudaFree() waits for that without a limit.
  if (open_streams().end_work()) {
    static_cast<void>(cudaFree(memory));
  }
}

void* make_stream(std::int64_t device, StreamPriority priority) {
  use(device);
  int lowest = 0;
  int highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "asking for priorities of streams");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                     priority == StreamPriority::kHigh ? highest : lowest),
        "making a stream");
  open_streams().add(stream);
  return stream;
}

void destroy_stream(std::int64_t device, void* stream) noexcept {
  static_cast<void>(cudaSetDevice(static_cast<int>(device)));
  open_streams().remove(static_cast<cudaStream_t>(stream));
  static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(stream)));
}

void synchronize_stream(std::int64_t device, void* stream) {
  use(device);
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "waiting for a stream");
}

bool is_idle(std::int64_t device, void* stream) {
  use(device);
  return is_done(cudaStreamQuery(static_cast<cudaStream_t>(stream)), "work on a stream");
}

void* make_event(std::int64_t device, EventTiming timing) {
  use(device);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(
            &event, timing == EventTiming::kOn ? cudaEventDefault : cudaEventDisableTiming),
        "making an event");
  return event;
}

void destroy_event(std::int64_t device, void* event) noexcept {
  static_cast<void>(cudaSetDevice(static_cast<int>(device)));
  static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(event)));
}

void record_event(std::int64_t device, void* event, void* stream) {
  use(device);
  check(cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)),
        "recording an event");
}

void stream_waits_for(std::int64_t device, void* stream, void* event) {
  use(device);
  check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event)),
        "waiting for an event");
}

void host_waits_for(std::int64_t device, void* event) {
  use(device);
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "waiting for an event");
}

bool is_reached(std::int64_t device, void* event) {
  use(device);
  return is_done(cudaEventQuery(static_cast<cudaEvent_t>(event)), "work before an event");
}

void* record_graph(std::int64_t device, void* stream, const std::function<void()>& work) {
  use(device);
  // Thread-local capture mode: other threads, such as a library's, are not restricted.
  check(cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeThreadLocal),
        "beginning to record work");
  cudaGraph_t recorded = nullptr;
  try {
    work();
  } catch (...) {
    static_cast<void>(cudaSetDevice(static_cast<int>(device)));
    if (cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &recorded) == cudaSuccess) {
      static_cast<void>(cudaGraphDestroy(recorded));
    }
    // A failed capture stays as the last error.
    static_cast<void>(cudaGetLastError());
    throw;
  }
  use(device);
  check(cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &recorded), "recording work");
  cudaGraphExec_t ready = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&ready, recorded, 0);
  static_cast<void>(cudaGraphDestroy(recorded));
  check(status, "making a graph of recorded work");
  return ready;
}

void destroy_graph(std::int64_t device, void* graph) noexcept {
  static_cast<void>(cudaSetDevice(static_cast<int>(device)));
  // A running graph is destroyed after it completes.
  static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
}

void launch_graph(std::int64_t device, void* graph, void* stream) {
  use(device);
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), static_cast<cudaStream_t>(stream)),
        "launching recorded work");
}

double seconds_between(std::int64_t device, void* first, void* second) {
  use(device);
  float milliseconds = 0.0F;
  check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(first),
                             static_cast<cudaEvent_t>(second)),
        "asking for the time between events");
  return 1e-3 * static_cast<double>(milliseconds);
}

void copy(void* to, const void* from, std::int64_t bytes) {
  // The default stream is of the thread's GPU, which need not be that of the memory.
  for (const void* const address : {static_cast<const void*>(to), from}) {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, address), "asking for the GPU of memory");
    if (attributes.type == cudaMemoryTypeDevice) {
      use(attributes.device);
    }
  }
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, nullptr),
        "copying memory");
  check(cudaStreamSynchronize(nullptr), "copying memory");
}

void copy(std::int64_t device, void* to, const void* from, std::int64_t bytes, void* stream) {
  use(device);
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault,
                        static_cast<cudaStream_t>(stream)),
        "copying memory");
}

GpuInfo gpu_info(std::int64_t device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, static_cast<int>(device)), "asking what it is");
  char bus_id[32] = {};
  check(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, static_cast<int>(device)),
        "asking for its bus");
  // As nvidia-smi writes it.
  std::string uuid = "GPU-";
  for (int i = 0; i < 16; ++i) {
    constexpr const char* kDigits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(properties.uuid.bytes[i]);
    uuid += i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
    uuid += kDigits[byte / 16];
    uuid += kDigits[byte % 16];
  }
  return {.name = properties.name,
          .bus_id = bus_id,
          .uuid = uuid,
          .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
          .capability = std::to_string(properties.major) + "." + std::to_string(properties.minor),
          .multiprocessors = properties.multiProcessorCount};
}

}  // namespace strata::device::cuda

namespace strata::device {
namespace {

/// Or why it does not compile. cuDNN compiles kernels with it; without it own kernels run instead,
/// with other bits.
std::string nvrtc_version() {
  const SharedLibrary nvrtc = nvrtc_library(CUDART_VERSION / 1000);
  const auto version = nvrtc.function<int (*)(int*, int*)>("nvrtcVersion");
  int major = 0;
  int minor = 0;
  if (version == nullptr || version(&major, &minor) != 0) {
    return cuda::kMissing;
  }
  // As nvrtc.h declares them; a build without that header needs them too.
  using Program = void*;
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*) =
      nvrtc.find("nvrtcCreateProgram");
  int (*compile)(Program, int, const char* const*) = nvrtc.find("nvrtcCompileProgram");
  int (*destroy)(Program*) = nvrtc.find("nvrtcDestroyProgram");
  const char* (*error_text)(int) = nvrtc.find("nvrtcGetErrorString");
  Program program = nullptr;
  int status = create(&program, "", "empty.cu", 0, nullptr, nullptr);
  if (status == 0) {
    status = compile(program, 0, nullptr);
    destroy(&program);
  }
  const std::string text = std::to_string(major) + "." + std::to_string(minor);
  return status == 0 ? text
                     : text + ", which does not compile an empty program (" + error_text(status) +
                           "); put its directory into LD_LIBRARY_PATH";
}

}  // namespace

std::int64_t cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string gpu_trouble() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  int driver = 0;
  const bool has_driver = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  return status == cudaSuccess || status == cudaErrorNoDevice || !has_driver
             ? ""
             : cudaGetErrorString(status);
}

void limit_release_waits(double seconds) {
  cuda::open_streams().limit_waits(seconds);
}

PinnedBuffer::PinnedBuffer(const Device& device, std::int64_t bytes) : bytes_(bytes) {
  // Else a thread that has not chosen a GPU would make a context on the first one.
  cuda::use(device.index());
  void* memory = nullptr;
  cuda::check(cudaMallocHost(&memory, static_cast<std::size_t>(bytes)), "allocating pinned memory");
  data_ = static_cast<std::byte*>(memory);
}

PinnedBuffer::~PinnedBuffer() {
  if (cuda::open_streams().end_work()) {
    static_cast<void>(cudaFreeHost(data_));
  }
}

ProfileRange::ProfileRange(const std::string& name) {
  static_cast<void>(nvtxRangePushA(name.c_str()));
}

ProfileRange::~ProfileRange() {
  static_cast<void>(nvtxRangePop());
}

std::vector<LibraryVersion> cuda_libraries() {
  std::vector<LibraryVersion> found;
  int runtime = 0;
  cuda::check(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version");
  found.push_back(
      {"CUDA", std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10)});

  const SharedLibrary cublas("libcublasLt.so." + std::to_string(CUDART_VERSION / 1000));
  const auto cublas_version = cublas.function<decltype(&cublasLtGetVersion)>("cublasLtGetVersion");
  found.push_back({"cuBLAS", cublas_version == nullptr
                                 ? cuda::kMissing
                                 : cuda::dotted(cublas_version(), 10000, 100)});
#ifdef STRATA_HAVE_CUDNN
  const SharedLibrary cudnn("libcudnn.so." + std::to_string(CUDNN_MAJOR));
  const auto cudnn_version = cudnn.function<decltype(&cudnnGetVersion)>("cudnnGetVersion");
  found.push_back({"cuDNN", cudnn_version == nullptr ? cuda::kMissing
                                                     : cuda::dotted(cudnn_version(), 10000, 100)});
  found.push_back({"NVRTC", nvrtc_version()});
#endif
#ifdef STRATA_HAVE_NCCL
  const SharedLibrary nccl("libnccl.so." + std::to_string(NCCL_MAJOR));
  const auto nccl_version = nccl.function<decltype(&ncclGetVersion)>("ncclGetVersion");
  int version = 0;
  if (nccl_version == nullptr || nccl_version(&version) != ncclSuccess) {
    found.push_back({"NCCL", cuda::kMissing});
  } else {
    found.push_back({"NCCL", cuda::dotted(static_cast<std::size_t>(version), 10000, 100)});
  }
#endif
  if (const std::string driver = driver_version(); !driver.empty()) {
    found.push_back({"driver", driver});
  }
  return found;
}

std::int64_t free_memory_bytes(std::int64_t index) {
  cuda::use(index);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  cuda::check(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for its memory");
  return static_cast<std::int64_t>(free_bytes);
}

bool has_peer_access(std::int64_t index, std::int64_t other) {
  int access = 0;
  cuda::check(cudaDeviceCanAccessPeer(&access, static_cast<int>(index), static_cast<int>(other)),
              "asking for access to another GPU");
  return access != 0;
}

CudaVersions cuda_versions() {
  int driver = 0;
  int runtime = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  return {.driver = driver, .runtime = runtime};
}

}  // namespace strata::device
