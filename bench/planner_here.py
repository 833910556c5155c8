#!/usr/bin/env python3
"""What strata plan predicts on this machine against what runs take.

    bench/planner_here.py build/release/bin/strata [--machine=FILE] [--only=gpt,mlp] [--search] [--output=FILE.json]

Measures the machine with --calibrate on two ranks unless a file is given, then trains each model for some steps on grids of
all three axes, on 1, 2 and 4 ranks (4 share 2 cores), in float32 and bfloat16. Prints for each the step and the memory of
the largest rank, predicted and measured, and the errors' median and most. --search: for 2 ranks, the fastest measured grid
and the one that strata plan --search picks. Ends with 1 where a bar is missed."""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import measure

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
GRIDS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (4, 1, 1), (1, 4, 1), (1, 1, 4), (2, 2, 1), (2, 1, 2), (1, 2, 2)]
# Of each its grids, its batch, its microbatch and the steps to run.
MODELS = {
    "gpt": {"model": {"preset": "gpt", "blocks": 6, "width": 384, "heads": 8, "context": 256}, "batch": (16, 2),
            "grids": GRIDS[:4] + GRIDS[5:], "steps": 5, "data": "tokens"},
    "gpt2-124m": {"model": {"preset": "gpt2-124m", "context": 256}, "batch": (4, 1), "grids": GRIDS[:4] + GRIDS[7:],
                  "steps": 4, "data": "tokens"},
    "cifar10-cnn": {"model": {"preset": "cifar10-cnn"}, "batch": (64, 8),
                    "grids": [(1, 1, 1), (2, 1, 1), (1, 2, 1), (4, 1, 1), (2, 2, 1)], "steps": 8, "data": "pictures"},
    "mlp": {"layers": ["dense 1024 relu parallel=column", "dense 1024 relu parallel=row"] * 3 + ["dense 10"],
            "batch": (256, 32), "grids": GRIDS, "steps": 30, "data": "features"},
}


def size_of(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


class Bench:
    def __init__(self, options, directory):
        self.options = options
        self.directory = directory
        self.machine = pathlib.Path(options.machine).resolve() if options.machine else directory / "machine.ini"
        # Four ranks share two cores: measured with as many.
        self.crowded = directory / "crowded.ini"
        self.data = {}

    def run(self, ranks, *arguments):
        launch = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        done = subprocess.run([*launch, self.options.strata, *map(str, arguments)], env=measure.environment(),
                              capture_output=True, text=True, cwd=self.directory)
        if done.returncode != 0:
            sys.exit(f"strata {' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def calibrate(self):
        if not self.options.machine:
            for ranks, machine in ((2, self.machine), (4, self.crowded)):
                print(self.run(ranks, "plan", f"--calibrate={machine}", "--threads=1", "--cores=2"), flush=True)

    def data_of(self, kind):
        makers = {"tokens": lambda d: measure.import_tokens(self.options.strata, d, 60000, 65),
                  "pictures": lambda d: measure.import_pictures(self.options.strata, d, 1024),
                  "features": lambda d: measure.import_features(self.options.strata, d, 4096, 256)}
        if kind not in self.data:
            directory = self.directory / kind
            directory.mkdir()
            self.data[kind] = makers[kind](directory)
        return self.data[kind]

    def config(self, name, dtype, steps):
        of = MODELS[name]
        path = self.directory / f"{name}-{dtype}.ini"
        batch, micro = of["batch"]
        measure.write_config(path, of.get("layers", []), of.get("model"), data={"train": self.data_of(of["data"])},
                             batch={"global": batch, "micro": micro}, numerics={"dtype": dtype},
                             optimizer={"kind": "adamw", "clip_norm": 1}, train={"steps": steps, "repeat_every": 0},
                             checkpoint={"minutes": 0}, run={"threads": 1})
        return path

    def predicted(self, path, grid, *options):
        ranks = grid[0] * grid[1] * grid[2]
        machine = self.crowded if ranks > 2 and self.crowded.exists() else self.machine
        text = self.run(1, "plan", path, f"--machine={machine}", "--nodes=1", f"--ranks-per-node={ranks}",
                        *self.settings(grid), *options)
        step = re.search(r"^step: ([\d.e-]+) (\w+)", text, re.MULTILINE)
        sizes = re.search(r"^total((?:\s+[\d.]+ [KMG]?i?B)+)\s*$", text, re.MULTILINE)
        planned = max(size_of(size) for size in re.findall(r"[\d.]+ [KMG]?i?B", sizes[1])) if sizes else 0.0
        return float(step[1]) * SECONDS[step[2]], planned

    def measured(self, path, grid, *options):
        ranks = grid[0] * grid[1] * grid[2]
        run = self.directory / f"run-{path.stem}-{'x'.join(map(str, grid))}"
        text = self.run(ranks, "train", path, f"--run.dir={run}", *self.settings(grid), *options)
        steps = [step["step_seconds"] for step in measure.train_steps(run)][2:]
        peak = re.search(r"peak memory of a rank: ([\d.]+ \w+), of which ([\d.]+ \w+)", text)
        return statistics.median(steps), size_of(peak[1]) - size_of(peak[2])

    @staticmethod
    def settings(grid):
        return [f"--parallel.{axis}={size}" for axis, size in zip(("data", "pipeline", "tensor"), grid)]

    def program_bytes(self):
        """Of a rank, outside its arenas."""
        return 1e9 * float(re.search(r"^reserved_gb = (\S+)", self.machine.read_text(), re.MULTILINE)[1])


def report(name, errors, most_median, most):
    middle = statistics.median(errors)
    worst = max(errors)
    passed = middle <= most_median and worst <= most
    print(f"{name}: error {100 * middle:.1f} % in the median (bar {100 * most_median:.0f} %), {100 * worst:.1f} % at most "
          f"(bar {100 * most:.0f} %): {'pass' if passed else 'MISS'}", flush=True)
    return passed


def steps(bench, options):
    rows, chosen = [], []
    for name in options.only.split(",") if options.only else MODELS:
        for dtype in ("float32", "bfloat16"):
            path = bench.config(name, dtype, MODELS[name]["steps"])
            best = {}
            for grid in MODELS[name]["grids"]:
                predicted, planned = bench.predicted(path, grid)
                seconds, peak = bench.measured(path, grid)
                row = {"model": name, "dtype": dtype, "grid": grid, "predicted": predicted, "measured": seconds,
                       "error": predicted / seconds - 1, "planned": planned, "peak": peak,
                       "memory_error": (planned + bench.program_bytes()) / peak - 1}
                rows.append(row)
                print(f"{name:<12} {dtype:<9} {'x'.join(map(str, grid)):<6} {1e3 * predicted:10.2f} ms "
                      f"{1e3 * seconds:10.2f} ms {100 * row['error']:+7.1f} %   {planned / 2**20:9.1f} MiB "
                      f"{peak / 2**20:9.1f} MiB {100 * row['memory_error']:+6.1f} %", flush=True)
                if grid[0] * grid[1] * grid[2] == 2:
                    best[grid] = seconds
            if options.search:
                text = bench.run(1, "plan", path, f"--machine={bench.machine}", "--nodes=1", "--ranks-per-node=2",
                                 "--search", "--train.recompute=none", "--parallel.schedule=1f1b")
                pick = tuple(map(int, re.search(r"^(\d+) x (\d+) x (\d+) ", text, re.MULTILINE).groups()))
                loss = best.get(pick, float("inf")) / min(best.values()) - 1
                chosen.append(loss)
                print(f"{name:<12} {dtype:<9} picks {'x'.join(map(str, pick))}, {100 * loss:.1f} % slower than the fastest",
                      flush=True)
    passed = report("step", [abs(row["error"]) for row in rows], 0.10, 0.20)
    passed &= report("memory", [abs(row["memory_error"]) for row in rows], 0.05, 0.05)
    for ranks in (1, 2, 4):
        part = [abs(row["error"]) for row in rows if row["grid"][0] * row["grid"][1] * row["grid"][2] == ranks]
        if part:
            print(f"  {ranks} ranks: median {100 * statistics.median(part):.1f} %, at most {100 * max(part):.1f} %")
    if chosen:
        passed &= report("choice", chosen, 0.05, 0.05)
    return rows, passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata")
    parser.add_argument("--machine", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    options.strata = os.path.abspath(options.strata)
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(options, pathlib.Path(directory))
        bench.calibrate()
        rows, passed = steps(bench, options)
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps({"machine": measure.machine(), "rows": rows}, indent=1))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
