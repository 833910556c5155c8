#include "profile.hpp"

namespace strata::bench {

namespace {

// "Fitted": on the part of the runs that is not judged, by bench_planner --fit. "Assumed": neither
// fitted nor looked up. "Observed": it is in the measurements, and its cause is not known. The
// machines' constants are in src/forecast/machines/*.ini.

/// huggingface/nanotron: the runs of the Ultra-Scale Playbook on AWS p5.
Profile nanotron() {
  Profile p{.name = "nanotron", .placing = Placing::kCumulated};  // its models/base.py
  p.pass_factor = 1.933;          // fitted: norms in float32, rotary not fused, casts
  p.accumulation_bytes = 10.0;    // its code: reads 2 + 4, writes 4
  p.optimizer_bytes = 166.9;      // fitted: clip, AdamW, casts, tensor by tensor
  p.host_layer = 4.47e-3;         // fitted
  p.host_peer = 2.28e-3;          // fitted; observed
  p.host_peer_network = 2.82e-3;  // fitted; observed
  p.hop_share = 0.349;            // fitted: few channels
  p.hop_network_share = 1.17;     // a message of stages has all 50 GB/s of a port
  p.all_reduce = 1.15;            // collective-bandwidth.csv, one node: the switch adds
  p.bucket_step = 1.424e-6;       // fitted
  p.zero_factor = 3.005;          // fitted: pieces are copied; physically the weakest
  p.row_messages = 10.0;          // its code: inputs are gathered again
  p.stall = 0.6386;               // fitted; observed
  p.stall_gpus = 512;             // observed on the fitted part
  p.stall_tensor = 32;            // observed on the fitted part
  return p;
}

/// arXiv 2104.04473 on Selene: float16, full recomputation, attention not fused.
Profile megatron_2021() {
  Profile p{.name = "megatron-2021", .flash = false};
  p.gradient_bytes = 2.0;    // assumed
  p.optimizer_bytes = 40.0;  // assumed
  return p;
}

/// NVIDIA/Megatron-LM and NeMo of 2024, which overlap messages of tensor and data groups.
Profile megatron_2024() {
  Profile p{.name = "megatron-2024"};
  p.gradient_bytes = 2.0;    // assumed
  p.all_reduce = 1.15;       // as nanotron's
  p.tensor_hidden = 0.7;     // assumed
  p.reduction_hidden = 1.0;  // its options
  p.gather_hidden = 1.0;     // its options
  return p;
}

}  // namespace

Constants constants() {
  Constants result;
  for (const std::string& name : forecast::shipped_machines()) {
    result.machines[name] = forecast::read_machine(name);
  }
  for (const Profile& profile :
       {nanotron(), megatron_2021(), megatron_2024(),
        // arXiv 2401.10241, a fork of Megatron-LM; tensor groups of one.
        Profile{.name = "zero-bubble", .placing = Placing::kEndsLess},
        // PyTorch FSDP and JAX: weights sharded over all replicas. Out of scope; assumed.
        Profile{.name = "fsdp"}}) {
    result.profiles[profile.name] = profile;
  }
  return result;
}

std::vector<Knob> knobs(Constants& constants) {
  forecast::Machine& h100 = constants.machines.at("h100");
  forecast::Machine& a100 = constants.machines.at("a100-80");
  Profile& n = constants.profiles.at("nanotron");
  return {
      {"h100 product.efficiency", {&h100.product_efficiency}, 0.4, 0.9},
      {"a100-80 product.efficiency", {&a100.product_efficiency}, 0.4, 0.9},
      {"h100 link.node.bandwidth_gbs (a100-80 in proportion)",
       {&h100.node.bytes_per_second, &a100.node.bytes_per_second},
       2e11,
       4.5e11},
      {"link.network.latency_us",
       {&h100.network.latency_seconds, &a100.network.latency_seconds},
       5e-6,
       2e-4},
      {"nanotron pass_factor", {&n.pass_factor}, 0.9, 4.0},
      {"nanotron optimizer_bytes", {&n.optimizer_bytes}, 30.0, 400.0},
      {"nanotron host_layer", {&n.host_layer}, 1e-3, 1e-2},
      {"nanotron host_peer", {&n.host_peer}, 1e-4, 1e-2},
      {"nanotron host_peer_network", {&n.host_peer_network}, 1e-4, 1e-2},
      {"nanotron hop_share", {&n.hop_share}, 0.02, 1.2},
      {"nanotron bucket_step", {&n.bucket_step}, 1e-7, 1e-4},
      {"nanotron zero_factor", {&n.zero_factor}, 1.0, 5.0},
      {"nanotron stall", {&n.stall}, 0.2, 1.5},
  };
}

}  // namespace strata::bench
