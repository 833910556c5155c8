#!/usr/bin/env python3
"""Samples a second of strata against PyTorch: the network of jobs/cifar10-cnn.ini.

    bench/cnn_vs_torch.py build/release/bin/strata torch_baseline.py

torch_baseline.py is a script that trains the same network (AdamW, norm clipped to 1, batch 128) on
one thread and prints, last, a JSON line with "step_s". It, strata on one rank of one thread, and
strata on two replicas of 128 samples each run in turn, and the medians of their step times are
compared. Debian's PyTorch computes with whatever libblas.so.3 is: the reference BLAS is slow, so
give the directory of a fast one (OpenBLAS) with --blas.
"""
import json, pathlib, statistics, tempfile

import measure


def main():
    options = measure.torch_options(__doc__, steps=20, micro=128)

    theirs, ours = [], {1: [], 2: []}
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        data = measure.import_pictures(options.strata, directory)
        config = directory / "cnn.ini"
        measure.write_config(
            config, [], model={"preset": "cifar10-cnn"}, data={"train": data},
            batch={"micro": options.micro},
            optimizer={"kind": "adamw", "learning_rate": 0.001, "beta2": 0.95, "weight_decay": 0.1,
                       "clip_norm": 1},
            train={"steps": options.steps + 3}, checkpoint={"keep": 1})
        for turn in range(options.rounds):
            theirs.append(measure.torch_seconds(options, "cnn", "--steps", options.steps))
            for ranks, runs in ours.items():
                run = directory / f"run-{ranks}-{turn}"
                measure.finish(measure.start(options.strata, config, run, ranks,
                                             f"--parallel.data={ranks}",
                                             f"--batch.global={128 * ranks}"))
                runs.append(measure.medians(run, skip=3)["step_seconds"])
    torch = statistics.median(theirs)
    one, two = (statistics.median(runs) for runs in ours.values())
    print(json.dumps({
        "machine": measure.machine(), "batch": 128, "micro": options.micro,
        "blas": options.blas or "the system's", "torch_step_seconds": theirs,
        "strata_step_seconds": ours[1], "strata_two_replicas_step_seconds": ours[2],
        "strata_samples_per_second": round(128 / one),
        "torch_samples_per_second": round(128 / torch), "ratio": round(torch / one, 2),
        "two_replicas_over_one": round(2 * one / two, 2)}, indent=1))


if __name__ == "__main__":
    main()
