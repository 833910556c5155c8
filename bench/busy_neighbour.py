#!/usr/bin/env python3
"""Step times beside other work: what a step costs where other processes use the same cores.

    bench/busy_neighbour.py build/release/bin/strata --data DIRECTORY
    bench/busy_neighbour.py BEFORE AFTER --data DIRECTORY --rounds 3 --setting GOMP_SPINCOUNT=1000

Trains jobs/shakespeare-char.ini (its data set in --data) for --seconds beside 0, 1, 2 and 4 busy
processes: one rank with a thread per core, and two single-threaded ranks per core. Executables take
turns; medians of steps, then of rounds. The fair share is the idle step time times
(threads + busy processes) / cores, or the time of two ranks per core times
(ranks + busy processes) / ranks; "over fair" is the measured time over it.
"""
import argparse, json, os, pathlib, signal, statistics, subprocess, sys, tempfile, time

import measure

JOB = pathlib.Path(__file__).resolve().parent.parent / "jobs" / "shakespeare-char.ini"
CORES = len(os.sched_getaffinity(0))
LAUNCHES = {f"1 rank x {CORES} threads": (1, CORES), f"{2 * CORES} ranks x 1 thread": (2 * CORES, 1)}


def step_seconds(strata, options, ranks, threads, busy):
    """The median step of a run beside `busy` spinning processes."""
    with tempfile.TemporaryDirectory() as directory:
        neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        environment = measure.environment() | dict(word.split("=", 1) for word in options.setting)
        del environment["OMP_NUM_THREADS"]
        launch = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        run = subprocess.Popen(
            [*launch, strata, "train", JOB, f"--run.threads={threads}", f"--run.dir={directory}/run",
             f"--data.train={options.data}/train.h5", "--data.test=", "--train.steps=1000000",
             "--checkpoint.every=0", "--train.log_every=0",
             *(["--parallel.tensor=2", f"--parallel.pipeline={ranks // 4}"] if ranks >= 4 else [])],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        lines = pathlib.Path(directory, "run", "metrics.jsonl")
        end = time.monotonic() + 60
        while time.monotonic() < end and run.poll() is None and not (lines.exists() and '"train"' in lines.read_text()):
            time.sleep(0.05)
        time.sleep(options.seconds)
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
        steps = [json.loads(line) for line in lines.read_text().splitlines() if line.endswith("}")]
        seconds = [step["step_seconds"] for step in steps if step["kind"] == "train"]
        return statistics.median(seconds[1:] or seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("strata", nargs="+", type=pathlib.Path)
    parser.add_argument("--data", required=True, type=pathlib.Path)
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 1, 2, 4])
    parser.add_argument("--only", choices=["threads", "ranks"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--setting", action="append", default=[], help="NAME=VALUE in the runs' environment")
    options = parser.parse_args()
    options.data = options.data.resolve()
    for name, (ranks, threads) in LAUNCHES.items():
        if options.only and (options.only == "ranks") != (ranks > 1):
            continue
        times = {}
        for _ in range(options.rounds):
            for busy in options.busy:
                for strata in options.strata:
                    times.setdefault((strata, busy), []).append(
                        step_seconds(strata.resolve(), options, ranks, threads, busy))
        tasks = ranks * threads
        for strata in options.strata:
            idle = statistics.median(times[strata, options.busy[0]])
            for busy in options.busy:
                median = statistics.median(times[strata, busy])
                fair = idle * max(1.0, (tasks + busy) / tasks)
                print(f"{strata} {name}, {busy} busy: {1e3 * median:.1f} ms "
                      f"({', '.join(f'{1e3 * one:.1f}' for one in sorted(times[strata, busy]))}), "
                      f"over fair {median / fair:.2f}", flush=True)


if __name__ == "__main__":
    main()
