#!/usr/bin/env python3
"""Samples a second of strata against PyTorch: one rank, one thread, the MLP of jobs/mnist-mlp.ini.

    bench/mlp_vs_torch.py build/release/bin/strata torch_baseline.py

torch_baseline.py is a script that trains the same network (784-128 relu-dropout-10, AdamW, norm
clipped to 1, batch 128) and prints, last, a JSON line with "step_s". Both run in turn, and the
medians of their step times are compared. Debian's PyTorch computes with whatever libblas.so.3 is:
the reference BLAS is slow, so give the directory of a fast one (OpenBLAS) with --blas.
"""
import json, pathlib, statistics, tempfile

import measure


def strata_parts(options, config, run_dir):
    measure.finish(measure.start(options.strata, config, run_dir))
    return measure.medians(run_dir, skip=options.steps // 10)


def main():
    options = measure.torch_options(__doc__, steps=600, lanes=1)

    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        data = measure.import_images(options.strata, directory)
        config = directory / "mlp.ini"
        measure.write_config(
            config, ["flatten", "dense 128 relu", "dropout 0.2", "dense 10"],
            data={"train": data}, batch={"global": 128}, numerics={"lanes": options.lanes},
            optimizer={"kind": "adamw", "learning_rate": 0.001, "beta2": 0.95, "weight_decay": 0.1,
                       "clip_norm": 1},
            train={"steps": options.steps})
        for turn in range(options.rounds):
            theirs.append(measure.torch_seconds(options, "mlp", "--steps", options.steps))
            ours.append(strata_parts(options, config, directory / f"run{turn}"))
    steps = [one["step_seconds"] for one in ours]
    print(json.dumps({
        "machine": measure.machine(), "batch": 128, "lanes": options.lanes,
        "blas": options.blas or "the system's",
        "strata": {key: statistics.median(one[key] for one in ours)
                   for key in ours[0] if key.endswith("_seconds")},
        "strata_step_seconds": steps, "torch_step_seconds": theirs,
        "strata_samples_per_second": round(128 / statistics.median(steps)),
        "torch_samples_per_second": round(128 / statistics.median(theirs)),
        "ratio": round(statistics.median(theirs) / statistics.median(steps), 2),
        "ratio_of_fastest": round(min(theirs) / min(steps), 2)}, indent=1))


if __name__ == "__main__":
    main()
