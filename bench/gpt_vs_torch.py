#!/usr/bin/env python3
"""Tokens a second of strata against PyTorch: a GPT on one rank and one thread.

    bench/gpt_vs_torch.py build/release/bin/strata torch_baseline.py
    bench/gpt_vs_torch.py build/release/bin/strata torch_baseline.py --size 124m --steps 5

torch_baseline.py is a script that trains the same network and prints, last, a JSON line with
"step_s": pre-norm blocks with biases, tanh gelu, a tied head, AdamW, norm clipped to 1. `small` is
the size that nanoGPT trains on a CPU (4 layers, 4 heads, width 128, 12 x 64 tokens, 65 ids), `124m`
GPT-2's (12 layers, 12 heads, width 768, 4 x 64 tokens, 50257 ids). PyTorch computes in float32;
strata in float32 and bfloat16. All run in turn, and the medians of their step times are compared.

With --products build/release/bin/bench_ops_matmul, the products of the step's dense layers are also
timed by themselves in every round, and the step is given as a share of them: dense-layer FLOPs of a
step over step time, over the rate of these products alone. Debian's PyTorch computes with whatever
libblas.so.3 is: the reference BLAS is slow, so give the directory of a fast one with --blas.
"""
import json, pathlib, re, statistics, subprocess, tempfile

import measure

SIZES = {"small": dict(layers=4, heads=4, width=128, batch=12, vocab=65),
         "124m": dict(layers=12, heads=12, width=768, batch=4, vocab=50257)}
CONTEXT = 64
TYPES = {"float32": "float", "bfloat16": "BFloat16"}


def dense_shapes(size):
    """(inputs, outputs): how often, of a step's dense layers."""
    width, layers = size["width"], size["layers"]
    return {(width, 3 * width): layers, (width, width): layers, (width, 4 * width): layers,
            (4 * width, width): layers, (width, size["vocab"]): 1}


def product_seconds(options, size, dtype):
    """The time of all products of the step's dense layers, forward and both gradients, alone."""
    rows = size["batch"] * CONTEXT
    command = [options.products, "--benchmark_format=json", "--benchmark_min_time=0.2",
               f"--benchmark_filter=dense<{TYPES[dtype]},.*rows:{rows}/.*threads:1"]
    result = subprocess.run(command, env=measure.environment(), check=True, capture_output=True,
                            text=True)
    seconds = 0.0
    shapes = dense_shapes(size)
    for case in json.loads(result.stdout)["benchmarks"]:
        shape = re.search(r"inputs:(\d+)/outputs:(\d+)", case["name"])
        seconds += shapes.get(tuple(map(int, shape.groups())), 0) * case["real_time"] * 1e-9
    return seconds


def flop(size):
    rows = size["batch"] * CONTEXT
    return sum(6 * rows * inputs * outputs * count
               for (inputs, outputs), count in dense_shapes(size).items())


def main():
    options = measure.torch_options(
        __doc__, products={"default": "", "help": "bench_ops_matmul"},
        size={"choices": SIZES, "default": "small"}, steps=60)
    size = SIZES[options.size]
    tokens = size["batch"] * CONTEXT

    theirs, ours, products = [], {dtype: [] for dtype in TYPES}, {dtype: [] for dtype in TYPES}
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        data = measure.import_tokens(options.strata, directory, 200 * tokens, size["vocab"])
        config = directory / "gpt.ini"
        measure.write_config(
            config, [],
            model={"preset": "gpt", "blocks": size["layers"], "heads": size["heads"],
                   "width": size["width"], "context": CONTEXT},
            data={"train": data}, batch={"global": size["batch"], "micro": size["batch"]},
            optimizer={"kind": "adamw", "learning_rate": 0.001, "beta2": 0.95, "weight_decay": 0.1,
                       "clip_norm": 1},
            train={"steps": options.steps + 3}, checkpoint={"keep": 1})
        for turn in range(options.rounds):
            theirs.append(measure.torch_seconds(
                options, "gpt", "--steps", options.steps, "--block", CONTEXT,
                *(word for key, value in size.items() for word in (f"--{key}", value))))
            for dtype in TYPES:
                run = directory / f"run-{dtype}-{turn}"
                measure.finish(measure.start(options.strata, config, run, 1,
                                             f"--numerics.dtype={dtype}"))
                ours[dtype].append(measure.medians(run, skip=3))
                if options.products:
                    products[dtype].append(product_seconds(options, size, dtype))
    torch = statistics.median(theirs)
    report = {"machine": measure.machine(), "size": options.size, "tokens_per_step": tokens,
              "blas": options.blas or "the system's", "torch_step_seconds": theirs,
              "torch_tokens_per_second": round(tokens / torch)}
    for dtype, runs in ours.items():
        steps = [run["step_seconds"] for run in runs]
        step = statistics.median(steps)
        report[dtype] = {
            "step_seconds": steps, "tokens_per_second": round(tokens / step),
            "ratio": round(torch / step, 2), "ratio_of_fastest": round(min(theirs) / min(steps), 2),
            "parts": {key: statistics.median(run[key] for run in runs)
                      for key in runs[0] if key.endswith("_seconds") and key != "step_seconds"}}
        if products[dtype]:
            alone = statistics.median(products[dtype])
            report[dtype]["products"] = {
                "seconds": products[dtype], "gflop_per_second": round(flop(size) / alone / 1e9, 1),
                "share_of_step": round(alone / step, 3),
                "share_of_fastest": round(min(products[dtype]) / min(steps), 3)}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
