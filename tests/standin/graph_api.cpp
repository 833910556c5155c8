#include <algorithm>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <cudnn.h>

#include "cudnn_library.hpp"
#include "graph.hpp"
#include "graph_node.hpp"
#include "library_work.hpp"
#include "record.hpp"

// The stand-in for cuDNN's graphs. It refuses attributes that a descriptor does not have, values of
// another type than the attribute's, what is not finished, and what cuDNN does not know. Its
// heuristic names three kernels for a graph: one whose results depend on the order in which threads
// add, one that is not supported after all, and one that is as asked for. Plans of the MPI rank
// that STRATA_STANDIN_CUDNN_OUT_OF_MEMORY names find no memory.

namespace {

using standin::Engine;
using standin::GraphRun;
using standin::Handle;
using standin::Node;
using standin::node_of;

int graphs_put = 0;
bool refuses_next_graph = false;
bool keeps_no_weights = false;

std::int64_t workspace_of(const Node& plan) {
  constexpr std::int64_t kLeast = 256;
  return keeps_no_weights ? kLeast : plan.graph.workspace_bytes();
}

/// Fills in the addresses; false where one is missing, too many, or not as promised.
bool take_addresses(const Node& pack, GraphRun& run) {
  constexpr std::int64_t kAlignmentBytes = 16;
  const auto is_aligned = [](const void* at, std::int64_t bytes) {
    return at != nullptr &&
           reinterpret_cast<std::uintptr_t>(at) % static_cast<std::uintptr_t>(bytes) == 0;
  };
  const auto ids = pack.values<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.values<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  const auto given = run.graph.given();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto tensor = given.find(ids[i]);
    if (tensor == given.end()) {
      return false;
    }
    if (tensor->second.is_value) {
      run.values[ids[i]] = *static_cast<const float*>(pointers[i]);
    } else if (is_aligned(pointers[i], tensor->second.alignment_bytes)) {
      run.addresses[ids[i]] = pointers[i];
    }
  }
  run.workspace = pack.value<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  return is_aligned(run.workspace, kAlignmentBytes) &&
         run.values.size() + run.addresses.size() == given.size() && ids.size() == given.size();
}

template <typename T>
cudnnStatus_t give(const std::vector<T>& values, std::int64_t most, std::int64_t* count, void* to) {
  *count = static_cast<std::int64_t>(values.size());
  std::copy_n(values.begin(), std::min(most, *count), static_cast<T*>(to));
  return CUDNN_STATUS_SUCCESS;
}

/// Lets descriptors that the caller made describe parts of `node`.
cudnnStatus_t give_nodes(const Node& node, std::span<const Engine> engines,
                         cudnnBackendDescriptorType_t type, std::int64_t most, std::int64_t* count,
                         void* to) {
  const auto raw = static_cast<cudnnBackendDescriptor_t*>(to);
  *count = std::min(most, static_cast<std::int64_t>(engines.size()));
  for (std::int64_t i = 0; i < *count; ++i) {
    Node& filled = node_of(raw[i]);
    if (filled.type != type) {
      return CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE;
    }
    filled.engine = engines[static_cast<std::size_t>(i)];
    filled.graph = node.graph;
    filled.is_finished = true;
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

// Of the stand-in alone.
/// Graphs that were put on streams.
int standin_cudnn_graphs() {
  return graphs_put;
}
/// The next run of a graph is not supported, though it has a plan.
void standin_cudnn_refuse_next_graph() {
  refuses_next_graph = true;
}
/// Whether plans say that they have no workspace for weights, as those do that add in any order.
void standin_cudnn_keep_no_weights(bool keep_none) {
  keeps_no_weights = keep_none;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t descriptorType,
                                           cudnnBackendDescriptor_t* descriptor) {
  auto node = std::make_shared<Node>();
  node->type = descriptorType;
  *descriptor = new Handle(std::move(node));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Handle*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t attributeName,
                                       cudnnBackendAttributeType_t attributeType,
                                       int64_t elementCount, const void* arrayOfElements) {
  return standin::set_attribute(node_of(descriptor), attributeName, attributeType, elementCount,
                                arrayOfElements);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Node& node = node_of(descriptor);
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const auto names_me = [&](const char* variable) {
    const char* const named = std::getenv(variable);
    return named != nullptr && std::string_view(named) == (rank == nullptr ? "0" : rank);
  };
  if (node.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    if (names_me("STRATA_STANDIN_CUDNN_OUT_OF_MEMORY")) {
      return CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    }
    if (names_me("STRATA_STANDIN_CUDNN_UNSUPPORTED")) {
      return CUDNN_STATUS_NOT_SUPPORTED;
    }
  }
  return standin::finish(node);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t attributeName,
                                       cudnnBackendAttributeType_t attributeType,
                                       int64_t requestedElementCount, int64_t* elementCount,
                                       void* arrayOfElements) {
  const Node& node = node_of(descriptor);
  if (!node.is_finished) {
    return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  }
  const auto asks_for = [&](cudnnBackendDescriptorType_t of, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type) {
    return node.type == of && attributeName == name && attributeType == type;
  };
  if (asks_for(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_RESULTS,
               CUDNN_TYPE_BACKEND_DESCRIPTOR)) {
    constexpr Engine kEngines[] = {Engine::kInAnyOrder, Engine::kUnsupported, Engine::kGood};
    return give_nodes(node, kEngines, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, requestedElementCount,
                      elementCount, arrayOfElements);
  }
  if (asks_for(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE,
               CUDNN_TYPE_BACKEND_DESCRIPTOR)) {
    return give_nodes(node, std::span(&node.engine, 1), CUDNN_BACKEND_ENGINE_DESCRIPTOR,
                      requestedElementCount, elementCount, arrayOfElements);
  }
  if (asks_for(CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
               CUDNN_TYPE_NUMERICAL_NOTE)) {
    std::vector notes{CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
    if (node.engine == Engine::kInAnyOrder) {
      notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    }
    return give(notes, requestedElementCount, elementCount, arrayOfElements);
  }
  if (asks_for(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
               CUDNN_TYPE_INT64)) {
    return give(std::vector{workspace_of(node)}, requestedElementCount, elementCount,
                arrayOfElements);
  }
  return CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t executionPlan,
                                  cudnnBackendDescriptor_t variantPack) {
  const Node& plan = node_of(executionPlan);
  const Node& pack = node_of(variantPack);
  GraphRun run;
  run.graph = plan.graph;
  if (plan.type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || plan.engine != Engine::kGood ||
      !plan.is_finished || !pack.is_finished || standin::ours(handle).stream == nullptr ||
      !take_addresses(pack, run)) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  if (std::exchange(refuses_next_graph, false)) {
    return CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT;
  }
  standin_describe(run.graph.is_backward() ? "cuDNN attention backward" : "cuDNN attention forward",
                   run.graph.flops());
  if (!standin::put_library_work(standin::ours(handle).stream, [run] { run.run(); })) {
    return CUDNN_STATUS_EXECUTION_FAILED;
  }
  ++graphs_put;
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
