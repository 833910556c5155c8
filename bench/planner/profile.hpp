#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "strata/forecast/machine.hpp"

namespace strata::bench {

/// How a system places the layers on stages.
enum class Placing {
  kEven,       ///< as many layers everywhere
  kEndsLess,   ///< one layer less on the first and the last stage (zero-bubble's runs)
  kCumulated,  ///< blocks in order, until a stage has its share of the cost (nanotron)
};

/// In what a published system differs from the planner's machine and schedule. Units: seconds,
/// bytes; shares are of 1.
struct Profile {
  std::string name;
  Placing placing = Placing::kEven;
  bool flash = true;         ///< attention is one operation; else its scores go through memory
  double pass_factor = 1.0;  ///< bytes of memory-bound operations, to those of fused ones
  double loss_forward_bytes = 30.0;  ///< of one logit; float32 and not fused
  double loss_backward_bytes = 14.0;
  double gradient_bytes = 4.0;      ///< of an element that is reduced
  double accumulation_bytes = 8.0;  ///< moved for one parameter and microbatch
  double optimizer_bytes = 32.0;    ///< moved for one parameter and step
  double host_layer = 1e-3;         ///< of the host for the passes of a layer (Python, launches)
  double host_peer = 0.0;           ///< of a layer and tensor rank in jobs larger than a node
  double host_peer_network = 0.0;   ///< the same where the tensor group crosses nodes
  double hop_share = 0.25;          ///< of a node's link, for one pair of GPUs
  double hop_network_share = 1.0;   ///< of the network's, for the same
  double row_messages = 8.0;        ///< gathers and scatters of a layer where ranks share rows
  double all_reduce = 2.0;          ///< bytes of an all-reduce in a node, to those of a gather
  double bucket_step = 2e-6;        ///< of a ring's step of a bucket that follows others
  double bucket_bytes = 50e6;
  double zero_factor = 1.0;       ///< time of ZeRO-1's scatter and gather, to a ring's
  double tensor_hidden = 0.0;     ///< share of a layer's tensor messages beside products
  double reduction_hidden = 0.0;  ///< share of the last backward pass beside the reduction
  double gather_hidden = 0.0;     ///< share of the first forward pass beside ZeRO-1's gather
  /// Observed, cause unknown: a microbatch's wait for each neighbouring stage of some jobs, which
  /// have it from so many GPUs or tensor ranks on.
  double stall = 0.0;
  std::int64_t stall_gpus = 0;
  std::int64_t stall_tensor = 0;
};

/// Memory of nanotron's ranks, in bytes.
struct MemoryModel {
  double hidden = 16.92;      ///< kept for a token and hidden element of a layer, sharded
  double hidden_whole = 4.0;  ///< the same; sharded where ranks share rows
  double ffn = 9.364;         ///< kept for a token and feed-forward element, sharded
  double logit_head = 1.679;  ///< of a logit of each microbatch under way: bfloat16
  double logit_loss = 5.534;  ///< of a logit on the stage of the loss: bfloat16 and float32
  double parameter = 6.706;   ///< never sharded by ZeRO-1: weight, float32 gradient
  double optimizer = 12.0;    ///< of a parameter: float32 weight, two moments
  double rest = 3.098e8;      ///< workspace
  double most = 74e9;         ///< of 80 GB, less the context, NCCL's buffers and fragmentation
};

/// All that the fit may change.
struct Constants {
  std::map<std::string, forecast::Machine> machines;
  std::map<std::string, Profile> profiles;
};

/// The shipped machines and the profiles of this directory.
[[nodiscard]] Constants constants();

/// A constant of the fit and where it is.
struct Knob {
  std::string name;
  std::vector<double*> values;  ///< kept in proportion
  double least = 0.0;
  double most = 0.0;
};
/// Those that are fitted. The constants outlive them.
[[nodiscard]] std::vector<Knob> knobs(Constants& constants);

}  // namespace strata::bench
