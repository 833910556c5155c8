#!/usr/bin/env python3
"""A training step of GPT-2 on a GPU, on paper: what the stand-in for CUDA counts, times data-sheet peaks.

    bench/gpu_paper.py build/release/bin/strata_standin [--preset=gpt2-124m] [--batch=32] [--gpu=h100] [--replicas=8]
                       [--launches] [--smoke]

The stand-in (docs/gpu.md) trains one step of two blocks on one rank, once with two samples and once with four, and records
each launch and library call with its FLOPs and the bytes of device memory that it touches. Both are linear in the samples,
so the two runs give them for any batch; the second block stands for all. A launch takes the longer of FLOPs over peak and
bytes over bandwidth, each times an efficiency of the table below. Nothing here ran on a GPU: "on paper" says so."""
import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import measure

# Data-sheet peaks: bfloat16 FLOP/s, bytes/s of memory, bytes/s to the other GPUs of a node and direction.
GPUS = {"a100": (312e12, 2.039e12, 300e9), "h100": (989.5e12, 3.35e12, 450e9), "h200": (989.5e12, 4.8e12, 450e9),
        "b200": (2250e12, 8.0e12, 900e9)}

# Efficiencies: of peak FLOPs for products, of bandwidth for the rest. Measured ones are of an H100 (bench/README.md,
# rooflines): time over a roofline with 725 TFLOP/s and 3,009 GB/s.
PRODUCTS, BANDWIDTH, LINK = 0.75, 0.85, 0.75
MEASURED_PEAK, MEASURED_BANDWIDTH = 725 / 989.5, 3009 / 3350
MEASURED = [("cuDNN attention forward", MEASURED_PEAK / 2.8), ("cuDNN attention backward", MEASURED_PEAK / 4.4),
            ("NormForward", MEASURED_BANDWIDTH / 2.0), ("norm_backward", MEASURED_BANDWIDTH / 2.1),
            ("Elements<", MEASURED_BANDWIDTH / 1.7), ("PartsOfRow", MEASURED_BANDWIDTH / 1.8),
            ("GradientOfRow", MEASURED_BANDWIDTH / 1.8), ("_pieces_kernel", MEASURED_BANDWIDTH / 6.0),
            ("Adam<", MEASURED_BANDWIDTH / 1.6)]

# Blocks, width, context and vocabulary.
SIZES = {"gpt2-124m": (12, 768, 1024, 50257), "gpt2-355m": (24, 1024, 1024, 50257), "gpt2-774m": (36, 1280, 1024, 50257),
         "gpt2-1558m": (48, 1600, 1024, 50257), "smoke": (4, 64, 512, 64)}
RECORDED_BLOCKS = 2

Launch = collections.namedtuple("Launch", "range kind flops read written")


def kernels_of(program):
    """Names of the program's functions by address."""
    names = {}
    for line in subprocess.run(["nm", "-C", "--defined-only", program], check=True, capture_output=True,
                               text=True).stdout.splitlines():
        address, _, name = line.split(" ", 2)
        names[int(address, 16)] = name
    return names


def record(program, preset, samples, loss_pieces, directory):
    """What a step of `samples` samples puts on streams, in order."""
    run = directory / f"run-{samples}"
    path = directory / f"record-{samples}"
    data = measure.import_tokens(program, directory / f"data-{samples}", 20000, 64)
    done = subprocess.run(
        [program, "train", str(write_config(directory, preset, samples, loss_pieces, data)), f"--run.dir={run}"],
        env=dict(os.environ, STRATA_STANDIN_GPUS="1", STRATA_STANDIN_RECORD=str(path), STRATA_STANDIN_MEMORY=str(1 << 36)),
        capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"gpu_paper.py: the stand-in's run failed:\n{done.stdout}{done.stderr}")
    names = kernels_of(program)
    touched, puts = {}, []
    for line in path.read_text().splitlines():
        fields = line.split("\t")
        if fields[0] == "done":
            touched[fields[1], fields[2]] = int(fields[3]), int(fields[4])
        elif fields[7].startswith("step 1"):
            puts.append(fields[1:])
    launches = []
    compute = collections.Counter(put[0] for put in puts).most_common(1)[0][0]
    for stream, index, kind, flops, _, _, where in puts:
        # New scratch memory is filled on a stream of its own, in the first step alone.
        if kind in ("wait", "time", "other") or (kind == "fill" and stream != compute):
            continue
        if kind.startswith("kernel "):
            kind = names.get(int(kind.split()[1], 16), kind)
        launches.append(Launch(where.split(" / ")[1:], kind, float(flops), *touched.get((stream, index), (0, 0))))
    return launches


def write_config(directory, preset, samples, loss_pieces, data):
    _, width, context, _ = SIZES[preset]
    model = f"{preset}\n" if preset != "smoke" else f"gpt\nwidth = {width}\nheads = 1\ncontext = {context}\n"
    path = directory / f"config-{samples}.ini"
    path.write_text(f"[model]\npreset = {model}blocks = {RECORDED_BLOCKS}\n[data]\ntrain = {data}\n"
                    f"[batch]\nglobal = {samples}\nmicro = {samples}\n[train]\nsteps = 1\n[numerics]\ndtype = bfloat16\n"
                    f"loss_pieces = {loss_pieces}\n"
                    "[optimizer]\nkind = adamw\nclip_norm = 1\n[run]\ndevice = cuda\n")
    return path


def extrapolated(two, four, samples):
    """A launch of `samples` samples, of those of two and four."""
    def at(a, b):
        return a + (b - a) * (samples - 2) / 2
    return Launch(two.range, two.kind, at(two.flops, four.flops), at(two.read, four.read), at(two.written, four.written))


def seconds_of(launch, gpu, measured):
    peak, bandwidth, _ = GPUS[gpu]
    by_flops, by_bytes = PRODUCTS, BANDWIDTH
    for word, efficiency in MEASURED if measured else ():
        if word in launch.kind:
            by_flops = by_bytes = efficiency
    return max(launch.flops / (peak * by_flops), (launch.read + launch.written) / (bandwidth * by_bytes))


def part_of(launch):
    """The layer and pass that a launch belongs to, blocks without their numbers."""
    if not launch.range or launch.range == ["update"]:
        return "update" if launch.range else "gradient norm and copies"
    action = "forward" if launch.range[0].startswith("forward") else "backward"
    layer = launch.range[1] if len(launch.range) > 1 else "other"
    return f"{re.sub(r'blocks.[0-9]+', 'block', layer)}, {action}"


def counted(launches, blocks):
    """Launches of a whole model, and how often: the last recorded block stands for all."""
    for launch in launches:
        found = re.match(r"blocks.([0-9]+)", launch.range[1]) if len(launch.range) > 1 else None
        if found is None:
            yield launch, 1
        elif int(found.group(1)) == RECORDED_BLOCKS - 1:
            yield launch, blocks


def exposed_seconds(parts, gradient_bytes, replicas, gpu, backward):
    """Reduction of whole layers in buckets of 64 MiB, beside the backward pass; what is left at its end. `parts`: bytes of
    gradients and seconds of backward of each layer, in the order of the backward pass."""
    link = GPUS[gpu][2] * LINK
    ready = busy = waiting = 0.0
    for layer_bytes, seconds in parts:
        ready += seconds
        waiting += layer_bytes
        if waiting >= 64 << 20:
            busy = max(busy, ready) + waiting * (replicas - 1) / replicas / link
            waiting = 0.0
    busy = max(busy, ready) + waiting * (replicas - 1) / replicas / link
    assert abs(sum(layer for layer, _ in parts) - gradient_bytes) < 1e-3 * gradient_bytes
    return max(0.0, busy - backward)


class Timeline:
    """The compute stream of a rank and its link to the tensor group: each does one thing after the other."""

    def __init__(self):
        self.compute = self.link = self.computing = self.sending = 0.0

    def product(self, seconds, after=0.0):
        self.compute = max(self.compute, after) + seconds
        self.computing += seconds
        return self.compute

    def message(self, seconds, after):
        self.link = max(self.link, after) + seconds
        self.sending += seconds
        return self.link


def tensor_account(gpu, ranks, width, hidden, kv, rows, pieces, sum_bytes):
    """One block (SwiGLU, `kv` elements of keys) on a tensor group with sequence parallelism, in the order of nn::Sublayer:
    seconds of the compute stream, of messages, and of both. Rows travel in bfloat16, partial sums in `sum_bytes` an
    element. Attention itself, norms and additions are left out: they would hide more messages."""
    peak, _, link = GPUS[gpu]

    def product(columns, parts=pieces):
        return 2 * rows / parts * width * columns / ranks / (peak * PRODUCTS)

    def message(bytes_an_element):
        return rows / pieces * width * bytes_an_element * (ranks - 1) / ranks / (link * LINK)
    time = Timeline()
    attention, mlp = (width + 2 * kv, width), (2 * hidden, hidden)
    for direction, sublayers in (("forward", (attention, mlp)), ("backward", (mlp, attention))):
        for inner, outer in sublayers:
            first, second = (inner, outer) if direction == "forward" else (outer, inner)
            gathers = [time.message(message(2), time.compute) for _ in range(pieces)]
            for gather in gathers:
                time.product(product(first), gather)
            sums = [time.message(message(sum_bytes), time.product(product(second))) for _ in range(pieces)]
            if direction == "backward":
                time.product(product(inner + outer, parts=1))
            time.product(0.0, sums[-1])
    return time.computing, time.sending, time.compute


def print_tensor(gpu):
    print(f"llama3-70b, 8 tensor ranks in a node of {gpu.upper()}, 8192 rows, a block forward and backward, on paper:")
    for name, sum_bytes in (("float32", 4), ("bfloat16", 2)):
        # A gather and a reduce-scatter a sublayer and direction. Megatron's are bfloat16, and it gathers x again for
        # weight gradients.
        bytes_an_element = 4 * (2 + sum_bytes)
        for pieces in (1, 2, 4, 8):
            computing, sending, step = tensor_account(gpu, 8, 8192, 28672, 1024, 8192, pieces, sum_bytes)
            print(f"  sums in {name:8} {pieces} pieces of rows: computes {1e3 * computing:.2f} ms, sends {1e3 * sending:.2f} ms "
                  f"({bytes_an_element / 20:.1f} x the bytes of Megatron's, {bytes_an_element / 16:.1f} x without its gather "
                  f"for weight gradients), takes {1e3 * step:.2f} ms: {100 * (step - computing) / sending:.0f} % of the "
                  "messages exposed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--preset", default="gpt2-124m")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--gpu", choices=GPUS, default="h100")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--loss-pieces", type=int, default=1, help="numerics.loss_pieces")
    parser.add_argument("--launches", action="store_true", help="each launch of a block")
    parser.add_argument("--smoke", action="store_const", dest="preset", const="smoke", help="a tiny model")
    options = parser.parse_args()
    if options.preset not in SIZES:
        sys.exit(f"gpu_paper.py: --preset is \"{options.preset}\"; give one of {', '.join(SIZES)}")
    model_blocks, width, context, vocabulary = SIZES[options.preset]
    program = str(pathlib.Path(options.program).resolve())
    with tempfile.TemporaryDirectory() as directory:
        two, four = (record(program, options.preset, samples, options.loss_pieces, pathlib.Path(directory)) for samples in (2, 4))
    if [launch.range for launch in two] != [launch.range for launch in four]:
        sys.exit("gpu_paper.py: the launches of two and of four samples differ")
    launches = [extrapolated(a, b, options.batch) for a, b in zip(two, four)]
    # Bytes of the optimizer and of copies of weights do not depend on the blocks' number alone: scale the update.
    block = 12 * width * width + 13 * width
    rest = vocabulary * width + context * width + 2 * width
    scale = (model_blocks * block + rest) / (RECORDED_BLOCKS * block + rest)
    rows, seconds = collections.OrderedDict(), {False: 0.0, True: 0.0}
    for launch, times in counted(launches, model_blocks):
        factor = scale if not launch.range or launch.range == ["update"] else 1.0
        launch = launch._replace(read=launch.read * factor, written=launch.written * factor)
        row = rows.setdefault(part_of(launch), [times, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0])
        library = launch.kind.startswith("cu")
        row[1 + library] += 1
        for i, value in enumerate((launch.read, launch.written, launch.flops, seconds_of(launch, options.gpu, False),
                                   seconds_of(launch, options.gpu, True))):
            row[3 + i] += value
        for measured in (False, True):
            seconds[measured] += times * seconds_of(launch, options.gpu, measured)
        if options.launches and part_of(launch).startswith("block"):
            kind = re.sub(r"strata::ops::cuda::|\(anonymous namespace\)::|void ", "", launch.kind)[:58]
            print(f"{part_of(launch):26} {kind:58} {launch.read / 1e6:8.1f} {launch.written / 1e6:8.1f} MB "
                  f"{launch.flops / 1e9:8.1f} GFLOP {1e6 * seconds_of(launch, options.gpu, False):7.1f} us")
    print(f"\n{options.preset}, {options.batch} x {context} tokens, bfloat16, one {options.gpu.upper()}, on paper")
    print(f"{'part':28}{'times':>6}{'kernels':>9}{'calls':>7}{'read MB':>10}{'written':>9}{'GFLOP':>10}"
          f"{'us':>9}{'us, measured':>14}")
    for part, (times, own, library, read, written, flops, default, found) in rows.items():
        print(f"{part:28}{times:6}{own:9}{library:7}{read / 1e6:10.1f}{written / 1e6:9.1f}{flops / 1e9:10.1f}"
              f"{1e6 * default:9.1f}{1e6 * found:14.1f}")
    tokens = options.batch * context
    parameters = model_blocks * block + rest
    model_flops = tokens * (6 * (parameters - context * width) + 6 * model_blocks * width * context)
    for measured, name in ((False, "default efficiencies"), (True, "measured ones where there are")):
        mfu = model_flops / seconds[measured] / GPUS[options.gpu][0]
        print(f"step with {name}: {1e3 * seconds[measured]:.1f} ms, MFU {100 * mfu:.1f} % (on paper)")
    per_token = sum(row[3] + row[4] for part, row in rows.items() if part.startswith("block")) / tokens
    counts = {action: sum(row[1] + row[2] for part, row in rows.items()
                          if part.startswith("block") and part.endswith(action)) for action in ("forward", "backward")}
    print(f"a block: {counts['forward']} launches forward, {counts['backward']} backward, {per_token:.0f} bytes a token")
    for measured in (False, True):
        column = 7 if measured else 6
        backward = {part: row[column] for part, row in rows.items() if part.endswith("backward")}
        layers = [(4 * vocabulary * width, backward["head, backward"] + backward.get("loss, backward", 0.0))]
        block_seconds = sum(value for part, value in backward.items() if part.startswith("block"))
        layers += [(4 * block, block_seconds)] * model_blocks
        layers += [(4 * (context * width + 2 * width), backward["embedding, backward"] + backward["norm, backward"])]
        exposed = exposed_seconds(layers, 4 * parameters, options.replicas, options.gpu,
                                  sum(value for _, value in layers))
        print(f"{options.replicas} replicas in a node, {'measured' if measured else 'default'} efficiencies: gradients "
              f"exposed {1e3 * exposed:.2f} ms, {100 * exposed / (seconds[measured] + exposed):.1f} % of the step (on paper)")
    print_tensor(options.gpu)


if __name__ == "__main__":
    main()
