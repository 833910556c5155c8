#pragma once

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <cudnn.h>

#include "graph.hpp"

// What a descriptor of the stand-in for cuDNN is.
namespace standin {

struct Node;
using Held = std::shared_ptr<const Node>;

struct Attribute {
  cudnnBackendAttributeType_t type;
  std::vector<std::byte> bytes;
  std::vector<Held> nodes;
};

/// The kernels that the heuristic names, in order.
enum class Engine { kInAnyOrder, kUnsupported, kGood };

struct Node {
  cudnnBackendDescriptorType_t type;
  bool is_finished = false;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes;
  Engine engine = Engine::kGood;
  Graph graph;

  [[nodiscard]] bool has(cudnnBackendAttributeName_t name) const {
    return attributes.contains(name);
  }
  template <typename T>
  [[nodiscard]] T value(cudnnBackendAttributeName_t name) const {
    T value{};
    std::memcpy(&value, attributes.at(name).bytes.data(), sizeof(T));
    return value;
  }
  template <typename T>
  [[nodiscard]] std::span<const T> values(cudnnBackendAttributeName_t name) const {
    const std::vector<std::byte>& bytes = attributes.at(name).bytes;
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  [[nodiscard]] const Node& node(cudnnBackendAttributeName_t name) const {
    return *attributes.at(name).nodes.at(0);
  }
};

/// A descriptor is a pointer to one of these, so that others may hold what it describes.
using Handle = std::shared_ptr<Node>;

inline Node& node_of(cudnnBackendDescriptor_t descriptor) {
  return **static_cast<Handle*>(descriptor);
}

/// Gives an attribute to a descriptor that is not finished; refuses one that it does not have.
cudnnStatus_t set_attribute(Node& node, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, std::int64_t count,
                            const void* values);
/// What a descriptor with the attributes that it has is worth; then it knows its graph.
cudnnStatus_t finish(Node& node);

}  // namespace standin
