#include "run.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace strata::bench {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string profile_of(const Run& run) {
  if (has(run.model, "nanotron")) {
    return "nanotron";
  }
  if (has(run.source, "2401.10241")) {
    return "zero-bubble";
  }
  if (has(run.source, "2104.04473") && run.zero == 0) {
    return "megatron-2021";
  }
  return run.zero == 3 ? "fsdp" : "megatron-2024";
}

std::string machine_of(const std::string& gpu) {
  return has(gpu, "A100-40") ? "a100-40"
         : has(gpu, "A100")  ? "a100-80"
         : has(gpu, "H200")  ? "h200"
                             : "h100";
}

/// Micro batches that the tables do not print: assumed.
std::int64_t assumed_micro(const Run& run) {
  if (run.profile == "megatron-2021") {
    return run.hidden < 6000 ? 4 : run.hidden < 9000 ? 2 : 1;
  }
  return 1;
}

/// What both tables have.
Run common(const Table& table, std::size_t i) {
  const auto whole = [&](const std::string& name, std::int64_t otherwise = 0) {
    return table.text(i, name).empty() ? otherwise
                                       : static_cast<std::int64_t>(table.number(i, name));
  };
  Run run{.source = table.text(i, "source"), .model = table.text(i, "model")};
  run.zero = whole("zero");
  run.profile = profile_of(run);
  run.machine = machine_of(table.text(i, "gpu_type"));
  run.layers = whole("layers");
  run.hidden = whole("hidden");
  run.heads = whole("heads");
  run.kv_heads = whole("kv_heads", run.heads);
  run.ffn = whole("ffn");
  // Vocabularies that tables do not print: assumed.
  run.vocabulary = whole("vocab", has(run.model, "Nemotron") ? 256000 : 50304);
  run.sequence = whole("seq", 4096);
  run.gpus = whole("gpus");
  run.data = std::max<std::int64_t>(1, whole("dp"));
  run.tensor = std::max<std::int64_t>(1, whole("tp"));
  run.pipeline = std::max<std::int64_t>(1, whole("pp"));
  run.micro = whole("micro_batch", assumed_micro(run));
  run.gated = run.profile == "nanotron" || has(run.model, "Llama");
  run.tied = run.profile == "zero-bubble" || run.profile == "megatron-2021" || run.ffn < 10000;
  return run;
}

void set_batch(Run& run, std::int64_t global) {
  run.global = global;
  run.microbatches = std::max<std::int64_t>(
      1, std::llround(static_cast<double>(global) / static_cast<double>(run.data * run.micro)));
}

/// The seconds of a step that a line prints, or that follow from the speed that it prints.
double seconds_of(const Table& table, std::size_t i, const Run& run) {
  if (const double step = table.number(i, "step_time_s"); step > 0.0) {
    return step;
  }
  const auto d = [](std::int64_t n) { return static_cast<double>(n); };
  if (const double tflops = table.number(i, "tflops_per_gpu"); tflops > 0.0) {
    // FLOPs of a step as Megatron-LM counts them. Source: arXiv 2104.04473, equation 2, without
    // recomputation.
    const double flops = 72.0 * d(run.global * run.sequence * run.layers) * d(run.hidden) *
                         d(run.hidden) *
                         (1.0 + d(run.sequence) / (6.0 * d(run.hidden)) +
                          d(run.vocabulary) / (12.0 * d(run.hidden * run.layers)));
    return flops / (tflops * 1e12 * d(run.gpus));
  }
  const double tokens = table.number(i, "tokens_per_s_per_gpu");
  return tokens > 0.0 ? d(run.global * run.sequence) / d(run.gpus) / tokens : 0.0;
}

std::string outside_of(const Table& table, std::size_t i, const Run& run) {
  const auto above_one = [&](const char* name) { return table.number(i, name) > 1.0; };
  return above_one("cp")                          ? "context parallelism"
         : above_one("ep")                        ? "experts"
         : has(table.text(i, "precision"), "fp8") ? "FP8"
         : run.zero > 1                           ? "sharded gradients or weights"
         : run.seconds <= 0.0                     ? "no speed printed, MFU alone"
                                                  : "";
}

std::string key_of(const Table& table, std::size_t i) {
  std::string key = table.text(i, "model");
  for (const char* name : {"gpus", "dp", "tp", "pp", "vpp", "micro_batch", "global_batch"}) {
    key += "|" + table.text(i, name);
  }
  return key;
}

bool is_judged(const std::string& key) {
  return (fnv1a(key) >> 32U & 1U) == 1U;
}

void mark(Run& run, Outlier outlier) {
  run.outlier = run.outlier == Outlier::kNone ? outlier : run.outlier;
}

void mark_twins(std::vector<Run>& runs) {
  std::map<std::string, std::vector<Run*>> groups;
  for (Run& run : runs) {
    groups[run.source + run.key + run.note].push_back(&run);
  }
  for (auto& [key, twins] : groups) {
    const auto [least, most] =
        std::ranges::minmax_element(twins, {}, [](const Run* run) { return run->seconds; });
    if ((*least)->seconds > 0.0 && (*most)->seconds > 1.6 * (*least)->seconds) {
      std::ranges::for_each(twins, [](Run* run) { mark(*run, Outlier::kTwin); });
    }
  }
}

void mark_replicas(std::vector<Run*>& runs) {
  const auto place = [](const Run& run, std::int64_t data) {
    return std::tuple(run.model, run.tensor, run.pipeline, run.micro, run.global, data);
  };
  std::map<
      std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>,
      double>
      fastest;
  for (const Run* run : runs) {
    double& speed = fastest[place(*run, run->data)];
    speed = std::max(speed, run->tokens_per_second);
  }
  for (Run* run : runs) {
    const auto half = fastest.find(place(*run, run->data / 2));
    if (run->data % 2 == 0 && half != fastest.end() &&
        run->tokens_per_second * 4.0 < half->second) {
      mark(*run, Outlier::kReplicas);
    }
  }
}

/// Compares pipelined runs of one model, tensor and pipeline size: a microbatch that is not larger
/// has less to do.
void mark_stalls(std::vector<Run*>& runs) {
  const auto per_microbatch = [](const Run& run) {
    return run.seconds * static_cast<double>(run.data * run.micro) /
           static_cast<double>(run.global);
  };
  for (Run* run : runs) {
    for (const Run* other : runs) {
      if (run->pipeline > 1 && other->model == run->model && other->tensor == run->tensor &&
          other->pipeline == run->pipeline && other->micro >= run->micro &&
          per_microbatch(*run) > 2.0 * per_microbatch(*other)) {
        mark(*run, Outlier::kStall);
      }
    }
  }
}

}  // namespace

std::uint64_t fnv1a(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  return hash;
}

std::vector<Run> measured_runs(const Table& table) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < table.lines.size(); ++i) {
    Run run = common(table, i);
    run.note = table.text(i, "note");
    run.key = key_of(table, i);
    run.judged = is_judged(run.key);
    run.recompute = table.text(i, "recompute") == "full";
    run.chunks = std::max<std::int64_t>(1, static_cast<std::int64_t>(table.number(i, "vpp")));
    if (has(run.source, "2104.04473 table 1") && run.pipeline > 1) {
      run.chunks = 2;  // interleaved, how often is not printed: assumed
    }
    set_batch(run, static_cast<std::int64_t>(table.number(i, "global_batch")));
    run.seconds = seconds_of(table, i, run);
    run.tokens_per_second = table.number(i, "tokens_per_s_per_gpu");
    run.memory_bytes = 1e9 * table.number(i, "memory_gb");
    if (run.chunks > 1 && run.pipeline > 1) {
      run.schedule = pipeline::ScheduleKind::kInterleaved;
    } else {
      run.chunks = 1;
      // The paper's ZB-1p and ZB-2p are made to measure within the memory of these two.
      run.schedule = has(run.note, "ZB-1p")   ? pipeline::ScheduleKind::kZbH1
                     : has(run.note, "ZB-2p") ? pipeline::ScheduleKind::kZbH2
                                              : pipeline::ScheduleKind::k1f1b;
    }
    run.mode = run.profile == "megatron-2021" ? TensorMode::kAllReduce : TensorMode::kShareRows;
    run.outside = outside_of(table, i, run);
    run.unknown = run.outside == "sharded gradients or weights" ? "" : run.outside;
    if (run.seconds <= 0.0) {
      run.unknown = "no speed printed, MFU alone";
    } else if (run.unknown.empty() && (run.global == 0 || table.text(i, "seq").empty())) {
      run.unknown = "the batch or the sequence is not printed";
    }
    runs.push_back(std::move(run));
  }
  std::vector<Run> scope;
  std::ranges::copy_if(runs, std::back_inserter(scope),
                       [](const Run& run) { return run.outside.empty(); });
  mark_twins(scope);
  std::vector<Run*> nanotron;
  for (Run& run : scope) {
    if (run.profile == "nanotron") {
      nanotron.push_back(&run);
    }
  }
  mark_replicas(nanotron);
  mark_stalls(nanotron);
  std::ranges::copy_if(runs, std::back_inserter(scope),
                       [](const Run& run) { return !run.outside.empty(); });
  return scope;
}

std::vector<Run> failed_runs(const Table& table) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < table.lines.size(); ++i) {
    Run run = common(table, i);
    set_batch(run, static_cast<std::int64_t>(table.number(i, "grad_acc")) * run.micro * run.data);
    run.key = run.model;
    for (const char* name : {"gpus", "dp", "tp", "pp"}) {
      run.key += "|" + table.text(i, name);
    }
    run.key += "|1|" + table.text(i, "micro_batch") + "|" + std::to_string(run.global);
    run.judged = is_judged(run.key);
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace strata::bench
