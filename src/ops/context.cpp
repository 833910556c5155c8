#include "strata/ops/context.hpp"

#include <limits>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/ops/thread_pool.hpp"

#include "cuda/dispatch.hpp"
#include "cuda/launch_context.hpp"
#include "cuda/resources.hpp"
#include "onednn/primitive_cache.hpp"

namespace strata::ops {

Context::Context(int threads) : threads_(threads), stream_(device::Device::cpu()) {
  require(threads >= 1, "a context with {} threads", threads);
  pool_ = std::make_unique<ThreadPool>(threads);
  primitives_ = std::make_unique<PrimitiveCache>(threads);
}

Context::Context(device::Stream stream, const CudaOptions& options)
    : threads_(1), stream_(std::move(stream)) {
  cuda_resources_ = std::make_unique<CudaResources>(stream_.device(), options);
}

Context Context::cuda(const device::Device& device, const CudaOptions& options) {
  require(device.kind() == device::DeviceKind::kCuda, "a GPU's context on {}", device.text());
  return {device::Stream(device), options};
}

Context::Context(Observer& observer)
    : threads_(1), observer_(&observer), stream_(device::Device::planned()) {}

Context Context::planned(Observer& observer) {
  return Context(observer);
}

bool Context::begin_operation(const OperationWork& work) {
  if (depth_ == 0) {
    leaves_out_ = observer_->begin(work);
  }
  ++depth_;
  return leaves_out_;
}

void Context::end_operation() {
  --depth_;
  if (depth_ == 0 && !leaves_out_ && observer_ != nullptr) {
    observer_->end();
  }
}

ThreadPool& Context::pool() {
  require(pool_ != nullptr, "an operation of a planned context, or of a GPU's, on the CPU");
  return *pool_;
}

PrimitiveCache& Context::primitives() {
  require(primitives_ != nullptr, "a CPU operation got a context of {}", device().text());
  return *primitives_;
}

CudaResources& Context::cuda_resources() {
  require(cuda_resources_ != nullptr, "a GPU operation got a context of {}", device().text());
  return *cuda_resources_;
}

void Context::on_stream(device::Stream& other, const std::function<void()>& work) {
  class Exchange {
   public:
    Exchange(Context& context, device::Stream& other) : context_(context), other_(other) { swap(); }
    ~Exchange() { swap(); }
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

   private:
    void swap() {
      std::swap(context_.stream_, other_);
      context_.is_on_own_stream_ = !context_.is_on_own_stream_;
    }

    Context& context_;
    device::Stream& other_;
  };
  require(is_on_own_stream_ && other.device() == device(), "a context of {} on a stream of {}",
          device().text(), other.device().text());
  const Exchange exchange(*this, other);
  work();
}

std::int64_t Context::scratch_bytes() const {
  return cuda_resources_ == nullptr ? 0 : cuda_resources_->scratch_bytes();
}

KernelsUsed Context::kernels() const {
  return cuda_resources_ == nullptr ? KernelsUsed() : cuda_resources_->kernels();
}

Context::~Context() = default;
Context::Context(Context&& other) noexcept = default;
Context& Context::operator=(Context&& other) noexcept = default;

bool on_gpu(const Context& context) {
  return context.device().kind() == device::DeviceKind::kCuda;
}

namespace cuda {

Queue queue_of(Context& context) {
  return {static_cast<int>(context.device().index()), context.stream().raw()};
}

std::byte* scratch_bytes_of(Context& context, std::int64_t bytes) {
  require(context.is_on_own_stream(), "scratch memory on another stream than the context's");
  return context.cuda_resources().scratch(bytes);
}

const ReductionStep* additions_of(Context& context, std::span<const ReductionStep> steps) {
  return context.cuda_resources().additions(steps);
}

void require_blocks(const char* name, std::int64_t blocks) {
  require(blocks > 0 && blocks <= std::numeric_limits<std::int32_t>::max(), "{} on {} blocks", name,
          blocks);
}

void require_rows(const char* name, std::int64_t columns, std::int64_t longest) {
  require(columns <= longest, "{} of rows of {} elements", name, columns);
}

void refuse_head(std::int64_t largest, std::int64_t elements) {
  fail(ExitCode::kUsage,
       "attention on a GPU has heads of at most {} elements, these have {}; use more heads, or "
       "run.device = cpu",
       largest, elements);
}

}  // namespace cuda

}  // namespace strata::ops
