#!/usr/bin/env python3
"""Asynchronous workers (parallel.sync = async) against synchronous training, with one slow worker.

    bench/async_workers.py build/release/bin/strata

Four workers train an MLP on random images. The slow one sleeps after each gradient for four times as long as a gradient
takes, which makes it five times as slow. Samples a second of both kinds, in turn; medians of --rounds runs. Ends with 1
where the asynchronous rate is less than twice the synchronous one.
"""
import argparse, json, pathlib, shutil, statistics, subprocess, sys, tempfile

import measure

WORKERS, SLOW, FACTOR, BATCH = 4, 2, 5, 256


def rate(strata, directory, kind, steps, delay):
    """Samples a second from the first recorded step to the last, and the median seconds of a synchronous gradient."""
    shutil.rmtree(directory / "run", ignore_errors=True)
    command = ["mpirun", "-n", str(WORKERS), measure.rig(strata), "train", "mlp.ini", "--run.dir=run",
               f"--parallel.sync={kind}", f"--train.steps={steps}"]
    finished = subprocess.run(command, cwd=directory, capture_output=True, text=True,
                              env={**measure.environment(), "STRATA_RIG_DELAY": f"{SLOW}:{delay}"})
    if finished.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {finished.returncode}:\n{finished.stderr}")
    records = [json.loads(line) for line in (directory / "run" / "metrics.jsonl").read_text().splitlines()]
    times = [record["time"] for record in records if record["kind"] == "train"]
    compute = statistics.median(record["compute_seconds"] for record in records if record["kind"] == "train")
    return (len(times) - 1) * BATCH / (times[-1] - times[0]), compute


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    strata = str(pathlib.Path(options.strata).resolve())
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        data = measure.import_images(strata, directory)
        measure.write_config(directory / "mlp.ini", ["flatten", "dense 1024 relu", "dense 1024 relu", "dense 10"],
                             data={"train": data}, batch={"global": BATCH, "micro": BATCH // WORKERS},
                             numerics={"lanes": WORKERS}, run={"threads": 1},
                             optimizer={"kind": "sgd", "learning_rate": 0.01})
        _, compute = rate(strata, directory, "step", options.steps, 0)
        delay = (FACTOR - 1) * compute
        print(f"a gradient takes {1e3 * compute:.1f} ms; the slow worker sleeps {1e3 * delay:.1f} ms after each", flush=True)
        rates = {"step": [], "async": []}
        for _ in range(options.rounds):
            for kind, found in rates.items():
                found.append(rate(strata, directory, kind, options.steps, delay)[0])
    medians = {kind: statistics.median(found) for kind, found in rates.items()}
    ratio = medians["async"] / medians["step"]
    print(f"samples a second: synchronous {medians['step']:.0f}, asynchronous {medians['async']:.0f}: {ratio:.2f} x")
    sys.exit(0 if ratio >= 2 else 1)


if __name__ == "__main__":
    main()
