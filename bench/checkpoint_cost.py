#!/usr/bin/env python3
"""What a checkpoint in the background costs a run, and how fast it is written.

    bench/checkpoint_cost.py build/release/bin/strata --directory DIR

Trains GPT-2 124M (Adam, float32, random tokens) on two ranks and saves several times. Prints the
median of the steps without a save, that step plus the time that training waited for a save, and
their ratio; then the rate of the writing threads beside that of two `dd` with fsync, which write
the same bytes to the same directory in turn with the runs.
"""
import argparse, json, os, pathlib, shutil, statistics, subprocess, tempfile, time

import measure

RANKS = 2


def write_by_dd(directory, size):
    """Seconds of two processes that write half of `size` bytes each."""
    began = time.monotonic()
    files = [directory / f"dd-{rank}" for rank in range(RANKS)]
    writers = [subprocess.Popen(["dd", "if=/dev/zero", f"of={file}", "bs=1M", "conv=fsync",
                                 f"count={size // RANKS >> 20}"], stderr=subprocess.DEVNULL)
               for file in files]
    for writer in writers:
        writer.wait()
    seconds = time.monotonic() - began
    for file in files:
        file.unlink()
    return seconds


def train(options, directory, data):
    run = directory / "run"
    shutil.rmtree(run, ignore_errors=True)
    command = ["mpirun", "-n", str(RANKS), options.strata, "train", directory / "config.ini",
               f"--data.train={data}", f"--run.dir={run}"]
    subprocess.run(command, check=True, env=measure.environment(), stderr=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(run)
    return [[line for line in lines if line["kind"] == kind] for kind in ("train", "checkpoint")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("strata", type=os.path.abspath)
    parser.add_argument("--directory", help="where to write; default: the system's for temporary files")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, default=6, help="steps between checkpoints")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = pathlib.Path(name)
        data = measure.import_tokens(options.strata, directory / "tokens", 100000, 50257)
        measure.write_config(
            directory / "config.ini", [], model={"preset": "gpt2-124m", "context": 64},
            batch={"global": RANKS, "micro": 1}, optimizer={"kind": "adamw", "learning_rate": 1e-4},
            train={"steps": 3 * options.every + 1, "log_every": 1},
            checkpoint={"every": options.every, "keep": 1}, run={"threads": 1})
        plain, with_save, strata_rates, dd_rates = [], [], [], []
        for _ in range(options.rounds):
            steps, saves = train(options, directory, data)
            # The first step warms up; those within two of a save share the cores with the thread.
            saved = {save["step"] for save in saves}
            quiet = [step["step_seconds"] for step in steps[1:]
                     if not saved & {step["step"] - n for n in (1, 2)}]
            plain.append(statistics.median(quiet))
            with_save += [steps[save["step"] - 1]["step_seconds"] + save["blocked_seconds"]
                          for save in saves]
            strata_rates += [save["bytes"] / save["write_seconds"] for save in saves]
            dd_rates.append(saves[0]["bytes"] / write_by_dd(directory, saves[0]["bytes"]))
        plain, with_save = statistics.median(plain), statistics.median(with_save)
        ours, theirs = statistics.median(strata_rates), statistics.median(dd_rates)
        print(f"step {plain:.3f} s, with a save {with_save:.3f} s: {with_save / plain:.2f} x")
        print(f"written at {ours / 2**20:.0f} MiB/s, dd with fsync {theirs / 2**20:.0f} MiB/s: "
              f"{ours / theirs:.2f} x")


if __name__ == "__main__":
    main()
