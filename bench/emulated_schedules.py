#!/usr/bin/env python3
"""Step times of pipeline schedules on emulated devices against the simulator's.

    bench/emulated_schedules.py build/release/bin/strata --output=emulated.json
    bench/emulated_schedules.py build/release/bin/strata --ranks 4 --schedules 1f1b zb-h1 --steps 6

Each action of each rank takes a given time longer (tests/support/rig.cpp); the network is tiny. For
each number of ranks p and 2p microbatches: the median step of a run, the simulator's, and both relative to 1f1b. Ends
with 1 where a step takes more than --bound longer than the simulator's, or less. `made` is what strata schedule make
finds within 1.5 times the activations of 1f1b, `made-v` the same with two chunks a rank, whose actions take half the time.
"""
import argparse, json, pathlib, re, shutil, statistics, subprocess, tempfile

import measure

# Of each the chunks a rank, where it has several, and whether it is a file.
SCHEDULES = {"gpipe": {}, "1f1b": {}, "zb-h1": {}, "zb-h2": {}, "interleaved": {"chunks": 2},
             "zb-v": {"chunks": 2}, "made": {"file": True}, "made-v": {"file": True, "chunks": 2}}
FEATURES = 8


class Bench:
    def __init__(self, options, directory):
        self.options = options
        self.directory = directory
        self.data = measure.import_features(options.strata, directory, 64, FEATURES)

    def schedule(self, *arguments):
        return subprocess.run([self.options.strata, "schedule", *map(str, arguments)], check=True, capture_output=True,
                              text=True).stdout

    def times(self, chunks):
        """Of a chunk: those of a rank divided by its chunks."""
        given = {"forward": self.options.forward, "backward-input": self.options.backward_input,
                 "backward-weight": self.options.backward_weight}
        return {key: ",".join(f"{float(value) / chunks:g}" for value in values.split(","))
                for key, values in given.items()}

    def simulated(self, name, ranks):
        """The step in seconds, and the value of parallel.schedule."""
        size = [f"--stages={ranks}", f"--microbatches={2 * ranks}"]
        chunks = SCHEDULES[name].get("chunks", 1)
        if chunks > 1:
            size.append(f"--chunks={chunks}")
        times = [f"--{key}={value}" for key, value in self.times(chunks).items()]
        value = name
        if SCHEDULES[name].get("file"):
            path = self.directory / f"{name}-{ranks}.csv"
            self.schedule("make", *size[:2], *times, f"--chunks={chunks}", f"--memory={3 * ranks // 2}", f"--output={path}")
            name, value, size = path, f"file:{path}", []
        text = self.schedule("simulate", name, *size, *times)
        return float(re.search(r"^step ([\d.e+]+) ms", text, re.MULTILINE)[1]) / 1e3, value

    def measured(self, value, ranks, chunks):
        """The seconds of all steps but the first two."""
        config = self.directory / "config.ini"
        run_dir = self.directory / "run"
        shutil.rmtree(run_dir, ignore_errors=True)
        measure.write_config(
            config, [f"dense {FEATURES} relu"] * (chunks * ranks - 1) + ["dense 10"], data={"train": self.data},
            batch={"global": 2 * ranks, "micro": 1}, numerics={"lanes": 1}, train={"steps": self.options.steps},
            parallel={"pipeline": ranks, "schedule": value}, optimizer={"kind": "sgd", "learning_rate": 0.01})
        measure.finish(measure.start(self.options.strata, config, run_dir, ranks, TIMES=":".join(self.times(chunks).values())))
        return [step["step_seconds"] for step in measure.train_steps(run_dir)][2:]

    def row(self, name, ranks):
        simulated, value = self.simulated(name, ranks)
        steps = self.measured(value, ranks, SCHEDULES[name].get("chunks", 1))
        step = statistics.median(steps)
        return {"ranks": ranks, "schedule": name, "simulated_seconds": round(simulated, 6),
                "step_seconds": round(step, 6), "ratio": round(step / simulated, 4),
                "fastest": round(min(steps) / simulated, 4), "slowest": round(max(steps) / simulated, 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata", type=lambda text: pathlib.Path(text).absolute())
    parser.add_argument("--ranks", nargs="*", type=int, default=[8, 16])
    parser.add_argument("--schedules", nargs="*", default=list(SCHEDULES), choices=list(SCHEDULES))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--forward", default="10", help="ms; one time, or one for each rank")
    parser.add_argument("--backward-input", default="10")
    parser.add_argument("--backward-weight", default="10")
    parser.add_argument("--bound", type=float, default=0.05, help="share of the simulator's step")
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()

    rows = []
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(options, pathlib.Path(name))
        print(f"{'ranks':>5} {'schedule':>10} {'simulated':>10} {'measured':>10} {'ratio':>6} "
              f"{'of 1f1b, simulated':>19} {'measured':>9}")
        for ranks in options.ranks:
            rows += [bench.row(schedule, ranks) for schedule in options.schedules]
            base = next((row for row in rows if row["ranks"] == ranks and row["schedule"] == "1f1b"), None)
            for row in rows[-len(options.schedules):]:
                for key in ("simulated_seconds", "step_seconds"):
                    row["of_1f1b_" + key.split("_")[0]] = round(row[key] / base[key], 4) if base else float("nan")
                print(f"{ranks:>5} {row['schedule']:>10} {1e3 * row['simulated_seconds']:>7.1f} ms "
                      f"{1e3 * row['step_seconds']:>7.1f} ms {row['ratio']:>6.3f} "
                      f"{row['of_1f1b_simulated']:>19.3f} {row['of_1f1b_step']:>9.3f}")
    report = {"machine": measure.machine(), "milliseconds": bench.times(1), "steps": options.steps, "rows": rows}
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    if any(abs(row["ratio"] - 1) > options.bound for row in rows):
        raise SystemExit(f"a step is more than {100 * options.bound:g} % off the simulator's")


if __name__ == "__main__":
    main()
