#!/usr/bin/env python3
"""Trains jobs/*.ini on one GPU and holds what they learn to what is expected; a line each.

    tests/gpu/accuracy.py build/release/bin/strata DATA_DIRECTORY [--only mnist-mlp nanogpt]

DATA_DIRECTORY has, in any folder, MNIST's t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz,
Shakespeare's plays as input.txt, and CIFAR-10 as cifar10-jpg.tar.xz, with train/CLASS/*.jpg and
test/CLASS/*.jpg. What it lacks is left out, with a line. The exit code is 1 where a run fails or
misses what is expected, 77 where nothing could be run.
"""
import argparse, json, os, pathlib, subprocess, sys, tarfile, tempfile, time

# Where this script lies in the repository.
JOBS = pathlib.Path(__file__).resolve().parents[2] / "jobs"
# What nanoGPT publishes for the two settings is 1.88 and 1.4697, over random batches.
SMALL_LOSS, LARGE_LOSS = 1.90, 1.48


class Missing(Exception):
    """A file is not there; the text names it."""


class Failed(Exception):
    """strata ended otherwise than it should."""


class Files:
    """The data, imported when they are first asked for."""

    def __init__(self, options, directory):
        self.options = options
        self.directory = directory

    def find(self, name):
        found = sorted(self.options.data.rglob(name))
        if not found:
            raise Missing(name)
        return found[0]

    def take(self, name, make):
        if not (self.directory / "data" / name).exists():
            run([self.options.strata, "data", "import", *make(), f"--output=data/{name}"],
                self.directory, self.options.limit)

    def mnist(self):
        self.take("mnist", lambda: [
            "--format=idx", f"--images={self.find('t10k-images-idx3-ubyte*')}",
            f"--labels={self.find('t10k-labels-idx1-ubyte*')}", "--split=8000,2000"])

    def cifar10(self):
        def unpacked():
            with tarfile.open(self.find("cifar10-jpg.tar.xz")) as archive:
                archive.extractall(self.directory / "cifar")
            return ["--format=images", "--files=cifar"]
        self.take("cifar10", unpacked)

    def shakespeare(self):
        self.take("shakespeare-char", lambda: [
            "--format=text", "--tokenizer=chars", f"--files={self.find('input.txt')}",
            "--split=0.9,0.1"])


def last_accuracy(evaluations):
    return evaluations[-1]["accuracy"]


def last_loss(evaluations):
    return evaluations[-1]["loss"]


def least_loss(evaluations):
    return min(row["loss"] for row in evaluations)


# Name: data, config, what is looked at, how it must stand to the bound, the bound.
CASES = {
    "mnist-mlp": (Files.mnist, "mnist-mlp.ini", last_accuracy, ">=", 0.955),
    "mnist-lenet": (Files.mnist, "mnist-lenet.ini", last_accuracy, ">=", 0.98),
    "cifar10": (Files.cifar10, "cifar10-cnn.ini", last_accuracy, ">=", 0.76),
    "shakespeare": (Files.shakespeare, "shakespeare-char.ini", last_loss, "<=", SMALL_LOSS),
    "nanogpt": (Files.shakespeare, "shakespeare-char-gpu.ini", least_loss, "<=", LARGE_LOSS)}


def run(command, directory, limit):
    """Runs a command in a directory, where its output stays as well."""
    with open(directory / "log.txt", "ab") as log:
        try:
            done = subprocess.run(list(map(str, command)), cwd=directory, stdin=subprocess.DEVNULL,
                                  stdout=log, stderr=log, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            raise Failed(f"took more than {limit:.0f} s; raise --limit") from None
    if done.returncode != 0:
        text = (directory / "log.txt").read_text(errors="replace").strip().splitlines()
        raise Failed(f"ended with {done.returncode}: " + (text or ["no message"])[-1])


def learn(options, files, name):
    """Trains and gives the line that says what came of it, and whether it is as expected."""
    data, config, quantity, relation, bound = CASES[name]
    began = time.monotonic()
    data(files)
    # One rank; the grid changes no bit.
    run([options.strata, "train", options.jobs / config, f"--run.device={options.device}",
         f"--run.dir={name}", "--parallel.pipeline=1", "--run.threads=1"],
        files.directory, options.limit)
    rows = map(json.loads, (files.directory / name / "metrics.jsonl").read_text().splitlines())
    evaluations = [row for row in rows if row["kind"] == "evaluate"]
    found = quantity(evaluations)
    met = found >= bound if relation == ">=" else found <= bound
    return (f"{name:<12} {quantity.__name__.replace('_', ' ')} {found:.4f}, expected {relation} "
            f"{bound}: {'ok' if met else 'MISSED'}, after {evaluations[-1]['step']} steps and "
            f"{time.monotonic() - began:.0f} s"), met


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata", type=os.path.abspath)
    parser.add_argument("data", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--jobs", type=lambda text: pathlib.Path(text).resolve(), default=JOBS)
    parser.add_argument("--only", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--limit", type=float, default=1800, help="seconds a command may take")
    options = parser.parse_args()
    missed = done = 0
    with tempfile.TemporaryDirectory() as name:
        files = Files(options, pathlib.Path(name))
        for case in options.only:
            try:
                line, met = learn(options, files, case)
            except Missing as error:
                print(f"{case:<12} left out: {options.data} has no {error}", flush=True)
                continue
            except Failed as error:
                line, met = f"{case:<12} {error}", False
            done += 1
            missed += not met
            print(line, flush=True)
    sys.exit(1 if missed else 0 if done else 77)


if __name__ == "__main__":
    main()
