"""Faults that the tests should find: one line each, as a slip could make it. run.py applies them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str  # occurs once in the file
    new: str
    breaks: str
    tests: str  # labels or beginnings of names, cheap ones first; those that a suite lacks are passed over
    preset: str = "release"


MUTANTS = [
    # core, grid
    Mutant("philox-counter-32-bits", "src/core/random.cpp",
           "counters[g] = {low, low >> 32, Lanes{} + high", "counters[g] = {low, Lanes{}, Lanes{} + high",
           "random words beyond block 2^32 repeat the first ones",
           "unit.core unit.ops"),
    Mutant("joint-tree-rounds-up", "src/grid/tree.cpp",
           "      const std::int64_t middle = node.begin + node.count() / 2;\n"
           "      const std::int64_t left = reduce({node.begin, middle});\n"
           "      const std::int64_t right = reduce({middle, node.end});\n"
           "      reduction.after.back()",
           "      const std::int64_t middle = node.begin + (node.count() + 1) / 2;\n"
           "      const std::int64_t left = reduce({node.begin, middle});\n"
           "      const std::int64_t right = reduce({middle, node.end});\n"
           "      reduction.after.back()",
           "batch statistics of all lanes and lanes that are no power of two: another tree on few ranks",
           "unit.grid unit.optim unit.nn grids mpi.conv_grids"),
    # ops
    Mutant("pool-waits-for-two", "src/ops/thread_pool.cpp",
           "(closing & kJoined) > 0", "(closing & kJoined) > 1",
           "2 threads: a parallel loop ends before the other thread has",
           "unit.ops unit.nn grids mpi.grids mpi.lm_grids mpi.conv_grids"),
    Mutant("dropout-origin-on-gpu", "src/ops/elementwise/dropout.cu",
           "  runs.first_row.sample -= state.sample_origin();\n", "",
           "GPU, CUDA graphs: dropout counts the first sample of a microbatch twice",
           "standin.ops gpu.ops standin.train"),
    # comm
    Mutant("received-parts-overlap", "src/comm/ordered_reduction.cpp",
           "(pending.received.flat_slice(offset, slice));\n      offset += slice;\n",
           "(pending.received.flat_slice(offset, slice));\n",
           "3 and more parts of a reduction: those that are received overwrite each other",
           "unit.comm unit.optim unit.nn grids mpi.comm_4 mpi.comm_6 mpi.grids mpi.lm_grids"),
    Mutant("stale-group-of-lanes", "src/comm/partitioned_group.cpp",
           "  group_ = &group;\n  own_ = grid", "  own_ = grid",
           "batch statistics of all lanes, data > 1, a repeated step: lanes in the order of other steps",
           "unit.comm unit.nn grids mpi.conv_grids mpi.faults"),
    # io
    Mutant("runs-of-a-shard", "io/checkpoint/checkpoint_slices.cpp",
           "common.count[inner] == a.count[inner] &&\n         common.count[inner] == b.count[inner]) {",
           "common.count[inner] == a.count[inner]) {",
           "resume with a larger tensor size: a shard gets elements of its neighbour",
           "unit.io grids mpi.lm_resume mpi.resume mpi.conv_grids"),
    Mutant("directory-not-synced", "io/checkpoint/checkpoint_write.cpp",
           "  sync_file(directory, ExitCode::kCheckpoint);\n", "",
           "a checkpoint is renamed before its directory is on the disk",
           "unit.io mpi.checkpoint_errors mpi.fault_sweep mpi.kill"),
    Mutant("virtual-offset", "io/checkpoint/checkpoint_write.cpp",
           "      offset += elements;\n", "",
           "data > 1: h5py reads the wrong elements of slices that are no whole rows",
           "unit.io grids mpi.grids mpi.lm_grids mpi.resume mpi.reader mpi.lm_resume"),
    Mutant("loader-lock", "io/loader/loader.cpp",
           "bool Loader::Reader::ready() {\n  const std::scoped_lock lock(mutex_);\n",
           "bool Loader::Reader::ready() {\n",
           "a data race between the loader's threads and the question whether a step is read",
           "unit.io", preset="tsan"),
    # nn
    Mutant("dropout-rows-of-shard", "src/nn/layers/embedding_layer.cpp",
           "{pass.first_sample, input_shape()[0], first}, y,",
           "{pass.first_sample, input_shape()[0], piece.local.begin}, y,",
           "sequence parallelism, tensor > 1: all ranks drop like the first",
           "unit.nn grids mpi.lm_grids reference.nn mpi.golden_bits"),
    # optim
    Mutant("weights-not-awaited", "src/optim/weight_gather.cpp",
           "return gather.first_layer <= layer;", "return gather.first_layer < layer;",
           "data > 1: a layer computes before its weights have been gathered",
           "unit.optim unit.nn unit.pipeline grids mpi.grids mpi.lm_grids mpi.conv_grids"),
    Mutant("average-of-all-islands", "src/optim/outer_optimizer.cpp",
           "update(fragment_, all, std::ssize(present_));", "update(fragment_, all, islands_.count);",
           "a round that lacks an island: the average counts it nevertheless",
           "unit.optim grids mpi.local mpi.train"),
    # pipeline
    Mutant("first-sample-of-later-stages", "src/pipeline/executor.cpp",
           ".first_sample = source_.first_row(number),",
           ".first_sample = chunk.stage.is_first() ? source_.first_row(number) : 0,",
           "pipeline > 1: dropout of later stages ignores the sample",
           "unit.pipeline grids mpi.grids mpi.lm_grids mpi.conv_grids"),
    Mutant("tag-without-kind", "src/pipeline/executor.cpp",
           "return comm::tag_of(kind_of(action), receiver_of(",
           "return comm::tag_of(comm::Tag::kActivation, receiver_of(",
           "2 stages of several chunks: an activation is taken for a gradient",
           "unit.pipeline grids mpi.grids mpi.lm_grids mpi.conv_grids"),
    Mutant("slot-of-a-pending-send", "src/pipeline/executor.cpp",
           "  void forward(Chunk& chunk, std::int64_t m) {\n"
           "    wait_for_slot(chunk.activation_sends, m, chunk.stage.slots().activations);\n",
           "  void forward(Chunk& chunk, std::int64_t m) {\n",
           "pipeline > 1: activations are overwritten while they are sent",
           "unit.pipeline grids mpi.grids mpi.lm_grids mpi.conv_grids"),
    # plan
    Mutant("tied-buffers-not-planned", "src/plan/rank_plan.cpp",
           "    add({optim::TiedExchange::memory(rank.buckets, rank.coordinates.pipeline, *tie,\n"
           "                                     c.numerics.dtype)});\n", "",
           "a tied table, pipeline > 1: its receive buffers are not in the plan",
           "unit.plan grids mpi.memory mpi.plan"),
    Mutant("samples-of-islands", "src/plan/rank_plan.cpp",
           "part * plan.lanes.tree().leaves() + plan.lanes.leaf(coordinates.data, round);",
           "part + plan.parts * plan.lanes.leaf(coordinates.data, round);",
           "islands > 1 with data > 1: an island trains on another one's samples",
           "unit.plan grids mpi.local mpi.plan"),
    # train
    Mutant("loader-starts-anew", "src/train/replication/step_runner.cpp",
           "training_loader(plan_, rank_, step)", "training_loader(plan_, rank_, 0)",
           "resume: the samples begin again",
           "grids mpi.resume mpi.lm_resume"),
    Mutant("state-of-the-first-rank", "src/train/state/stored_state.cpp",
           "read_slice(checkpoint, states[i], placed, piece.range.begin, owned_.state(i, piece));",
           "read_slice(checkpoint, states[i], placed, 0, owned_.state(i, piece));",
           "resume with data > 1: all ranks read the optimizer state of the first",
           "grids mpi.resume mpi.lm_resume"),
    Mutant("norm-counts-replicas", "src/train/state/step_summary.cpp",
           "i >= first_square && slots.is_split(i - first_square);", "i >= first_square;",
           "tensor > 1: the gradient norm counts replicated parameters on every rank",
           "grids mpi.lm_grids mpi.conv_grids"),
    Mutant("save-without-agreement", "src/train/checkpoint/checkpoint_writer.cpp",
           "comm::agree_texts(world_, [&] {\n    std::string mine;\n    as_part_of_save([&] { mine = result(); });\n"
           "    return mine;\n  });",
           "[&] {\n    std::string mine;\n    as_part_of_save([&] { mine = result(); });\n"
           "    return world_.all_gather_texts(mine);\n  }();",
           "several ranks: a part that cannot be written ends the run, which should go on",
           "unit.train mpi.checkpoint_errors mpi.fault_sweep mpi.kill"),
    # app
    Mutant("exit-code-of-an-abort", "src/app/app.cpp",
           "      watchdog.write_report(message);\n      comm::MpiSession::abort(static_cast<int>(failure.code));",
           "      watchdog.write_report(message);\n      comm::MpiSession::abort(static_cast<int>(ExitCode::kPeer));",
           "several ranks: what one of them finds ends the job with exit code 5",
           "unit.app mpi.errors mpi.app mpi.run_directory mpi.lm_errors mpi.faults"),
    Mutant("watchdog-never-bites", "src/app/environment/watchdog.cpp",
           "void Watchdog::watch() {\n  const double gap_seconds = setup_.second;",
           "void Watchdog::watch() {\n  const double gap_seconds = 0.0;",
           "a rank that hangs within a library is never ended",
           "unit.app mpi.stall"),
]
