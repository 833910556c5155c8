#!/usr/bin/env python3
"""How an MLP scales on this machine: data parallel, pipeline parallel, and what bounds them.

    bench/mlp_scaling.py build/release/bin/strata --output=scaling.json
    bench/mlp_scaling.py build/release/bin/strata --grids 2x1 4x1 2x2 --rounds 5

A compute-bound MLP (4 hidden layers of width 2048), one thread a rank, grids in turn, medians;
where others use the cores too, the ratios of the fastest steps tell more:
- grids DATAxPIPELINE with --batch samples for each replica (weak scaling): efficiency is the
  samples a second of the grid over those of as many single ranks;
- "together": two single-rank runs at once. It is what sharing the machine's memory, caches and
  clock costs before any message is sent, the honest bound of what two ranks can reach;
- the pipeline: 1x2 against 1x1 with the same global batch and microbatches, and the bound of its
  schedule, which `strata schedule simulate` computes from the stages' work.
"""
import argparse, json, pathlib, shutil, statistics, tempfile

import measure

FEATURES = 2048


class Bench:
    def __init__(self, options, directory):
        self.options = options
        self.directory = directory
        self.data = measure.import_features(options.strata, directory, 4 * options.batch, FEATURES)

    def config(self, name, batch, micro, lanes):
        path = self.directory / f"{name}.ini"
        hidden = [f"dense {self.options.width} relu"] * self.options.hidden
        measure.write_config(
            path, [*hidden, "dense 10"], data={"train": self.data},
            batch={"global": batch, "micro": micro}, numerics={"lanes": lanes},
            train={"steps": self.options.steps},
            optimizer={"kind": self.options.optimizer, "learning_rate": 1e-5})
        return path

    def start(self, config, run_dir, grid):
        shutil.rmtree(run_dir, ignore_errors=True)
        data, pipeline = grid
        return measure.start(self.options.strata, config, run_dir, data * pipeline,
                             f"--parallel.data={data}", f"--parallel.pipeline={pipeline}",
                             *self.options.option)

    def run(self, name, grid, batch, micro, lanes):
        run_dir = self.directory / "run"
        measure.finish(self.start(self.config(name, batch, micro, lanes), run_dir, grid))
        return measure.medians(run_dir, skip=2)

    def weak(self, grid):
        batch = self.options.batch * grid[0]
        micro = self.options.batch // (2 * grid[1]) if grid[1] > 1 else self.options.batch
        return self.run(f"weak-{grid[0]}x{grid[1]}", grid, batch, micro, grid[0])

    def together(self, count):
        """Single-rank runs at the same time: medians of the steps, of all of them."""
        config = self.config("weak-1x1", self.options.batch, self.options.batch, 1)
        dirs = [self.directory / f"run{i}" for i in range(count)]
        runs = [self.start(config, run_dir, (1, 1)) for run_dir in dirs]
        for one in runs:
            measure.finish(one)
        medians = [measure.medians(run_dir, skip=2) for run_dir in dirs]
        return {key: statistics.median(one[key] for one in medians) for key in medians[0]}

    def pipeline(self, stages):
        return self.run(f"pipeline-{stages}", (1, stages),
                        self.options.microbatches * self.options.micro, self.options.micro, 1)

    def bound(self):
        """Of two stages, in units of a layer's product; the first layer needs no input gradient."""
        first = self.options.hidden // 2
        rest = self.options.hidden - first
        costs = {"forward": (first, rest), "backward-input": (first - 1, rest), "backward-weight": (first, rest)}
        makespan = measure.simulated_ms(self.options.strata, "1f1b", 2, self.options.microbatches, costs)
        return self.options.microbatches * sum(map(sum, costs.values())) / (2 * makespan)


def brief(medians):
    return {key: round(value, 6) for key, value in medians.items() if key.endswith("_seconds")}


def efficiency(rounds, alone, case, share):
    """Step time alone over that of a case, times the case's work for each rank over that alone."""
    def of(alone_seconds, case_seconds):
        return round(share * alone_seconds / case_seconds, 3)

    every = [of(one[alone]["step_seconds"], one[case]["step_seconds"]) for one in rounds]
    return {"efficiency": statistics.median(every), "rounds": every,
            "fastest steps": of(min(one[alone]["least_step_seconds"] for one in rounds),
                                min(one[case]["least_step_seconds"] for one in rounds))}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata", type=lambda text: pathlib.Path(text).absolute())
    parser.add_argument("--grids", nargs="*", default=["2x1"], help="besides 1x1, as DATAxPIPELINE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--batch", type=int, default=256, help="samples a replica, weak scaling")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=4)
    parser.add_argument("--micro", type=int, default=64, help="samples a microbatch, pipeline")
    parser.add_argument("--microbatches", type=int, default=8,
                        help="of a step, pipeline; 0: no pipeline runs")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--option", action="append", default=[],
                        help="for every run, as in --option=--parallel.bucket=8")
    options = parser.parse_args()

    grids = [tuple(map(int, text.split("x"))) for text in options.grids]
    rounds = []
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(options, pathlib.Path(name))
        for _ in range(options.rounds):
            one = {"1x1": bench.weak((1, 1))}
            for grid in grids:
                one["{}x{}".format(*grid)] = bench.weak(grid)
            one["together"] = bench.together(2)
            if options.microbatches:
                one["pipeline 1x1"] = bench.pipeline(1)
                one["pipeline 1x2"] = bench.pipeline(2)
            one["load"] = measure.machine()["load"][0]
            rounds.append(one)
    report = {"machine": measure.machine(), "loads": [one["load"] for one in rounds],
              "batch": options.batch, "width": options.width, "hidden": options.hidden,
              "optimizer": options.optimizer,
              "step_seconds": {case: statistics.median(one[case]["step_seconds"] for one in rounds)
                               for case in rounds[0] if case != "load"},
              "parts": {case: brief(one) for case, one in rounds[-1].items() if case != "load"},
              "together": efficiency(rounds, "1x1", "together", 1)}
    for grid, text in zip(grids, options.grids):
        report[text] = efficiency(rounds, "1x1", text, 1 / grid[1])
        report[text]["of together"] = efficiency(rounds, "together", text, 1 / grid[1])
    if options.microbatches:
        report["pipeline 1x2"] = efficiency(rounds, "pipeline 1x1", "pipeline 1x2", 0.5)
        report["pipeline 1x2"]["bound"] = round(bench.bound(), 3)
    text = json.dumps(report, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
