#include "profile.hpp"

namespace strata::bench {

// "Fitted": on the part of the runs that is not judged, by bench_planner --fit. "Assumed": neither
// fitted nor looked up. The machines' constants are in src/plan/machines/*.ini.
Constants constants() {
  Constants result;
  for (const std::string& name : plan::shipped_machines()) {
    result.machines[name] = plan::read_machine(name);
  }
  for (const Profile& profile : {
           // huggingface/nanotron, the runs of the Ultra-Scale Playbook on AWS p5.
           Profile{
               .name = "nanotron",
       .placing = Placing::kCumulated,        // its models/base.py
               .pass_factor = 1.724,          // fitted: norms in float32, rotary not fused, casts
               .accumulation_bytes = 10.0,    // its code: reads 2 + 4, writes 4
               .optimizer_bytes = 146.5,      // fitted: clip, AdamW, casts, tensor by tensor
               .host_layer = 4.48e-3,         // fitted
               .host_peer = 2.28e-3,          // fitted; OBSERVED: cause unknown
               .host_peer_network = 2.81e-3,  // fitted; OBSERVED: cause unknown
               .hop = 7.8e-5,                 // fitted; metadata messages first
               .hop_share = 0.17,             // fitted; few channels
               .all_reduce = 1.15,            // collective-bandwidth.csv: the switch adds
               .bucket_step = 1.67e-6,        // fitted
               .zero_factor = 2.755,          // fitted; weakest in physics: pieces are copied
               .stall = 0.632,                // fitted; OBSERVED: cause unknown
               .stall_gpus = 512,             // seen on the fitted part
               .stall_tensor = 32,            // seen on the fitted part
           },
           // arXiv 2104.04473 on Selene: float16, full recomputation, attention not fused.
           Profile{
               .name = "megatron-2021",
       .flash = false,
       .gradient_bytes = 2.0,            // assumed
               .optimizer_bytes = 40.0,  // assumed
           },
           // NVIDIA/Megatron-LM and NeMo of 2024: overlap of tensor and data messages is on.
           Profile{
               .name = "megatron-2024",
       .gradient_bytes = 2.0,            // assumed
               .all_reduce = 1.15,       // as above
               .tensor_hidden = 0.7,     // assumed
               .reduction_hidden = 1.0,  // its options
               .gather_hidden = 1.0,     // its options
           },
           // arXiv 2401.10241, a fork of Megatron-LM; data and tensor groups of one.
           Profile{.name = "zero-bubble", .placing = Placing::kEndsLess},
           // PyTorch FSDP and JAX: weights sharded over all replicas. Out of scope; assumed.
           Profile{.name = "fsdp"},
       }) {
    result.profiles[profile.name] = profile;
  }
  return result;
}

std::vector<Knob> knobs(Constants& constants) {
  plan::Machine& h100 = constants.machines.at("h100");
  plan::Machine& a100 = constants.machines.at("a100-80");
  Profile& n = constants.profiles.at("nanotron");
  return {
      {"h100 product.efficiency", {&h100.product_efficiency}, 0.4, 0.9},
      {"a100-80 product.efficiency", {&a100.product_efficiency}, 0.4, 0.9},
      {"h100 link.node.bandwidth_gbs (a100-80 in proportion)",
       {&h100.node.bytes_per_second, &a100.node.bytes_per_second},
       2e11,
       4.5e11},
      {"link.node.latency_us",
       {&h100.node.latency_seconds, &a100.node.latency_seconds},
       5e-7,
       2e-5},
      {"link.network.latency_us",
       {&h100.network.latency_seconds, &a100.network.latency_seconds},
       5e-6,
       2e-4},
      {"nanotron pass_factor", {&n.pass_factor}, 0.9, 4.0},
      {"nanotron optimizer_bytes", {&n.optimizer_bytes}, 30.0, 400.0},
      {"nanotron host_layer", {&n.host_layer}, 1e-3, 1e-2},
      {"nanotron host_peer", {&n.host_peer}, 1e-4, 1e-2},
      {"nanotron host_peer_network", {&n.host_peer_network}, 1e-4, 1e-2},
      {"nanotron hop", {&n.hop}, 1e-5, 1e-2},
      {"nanotron hop_share", {&n.hop_share}, 0.02, 1.0},
      {"nanotron bucket_step", {&n.bucket_step}, 1e-7, 1e-4},
      {"nanotron zero_factor", {&n.zero_factor}, 1.0, 5.0},
      {"nanotron stall", {&n.stall}, 0.2, 1.5},
  };
}

}  // namespace strata::bench
