#!/usr/bin/python3
"""Shows that two builds of strata compute the same bits: for changes that must not change a number.

    same_bits.py record  PROGRAM RECORD [--only=REGEX] [--work=DIR]
    same_bits.py compare PROGRAM RECORD [--only=REGEX] [--work=DIR]

`record` trains every case below for 20 steps with one executable, on a grid of ranks and on one rank, and keeps in the
new directory RECORD the losses and gradient norms, the data sets, and the checkpoints of steps 10 and 20. `compare`
does the same with another executable and its own imports, then evaluates the recorded checkpoint of step 20 and
continues from the one of step 10, both on a third grid and with the recorded data sets. Numbers are compared as the
text of metrics.jsonl. Prints a line for each case; ends with 0 where all are equal, else with 1. Reads the data from
the directory that STRATA_DATA_DIR names (`record` alone).
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "mpi"))
import harness  # noqa: E402

JOBS = pathlib.Path(__file__).resolve().parents[1] / "jobs"
STEPS, MIDDLE = 20, 10
LIMIT = 300  # seconds for one command; harness.LENIENCE times as long on a slow machine

# As the head of each config in jobs/ imports it, with fewer pictures.
IMPORTS = {
    "line": "--format=csv --files sources/line.csv --label=y --split=0.8,0.2 --order=file",
    "file-kinds": "--format=csv --files sources/file-kinds.csv --label=kind --split=0.8,0.2 --order=file",
    "mnist": "--format=idx --images=sources/t10k-images-idx3-ubyte.gz --labels=sources/t10k-labels-idx1-ubyte.gz "
             "--split=8000,2000 --order=file",
    "cifar10": "--format=images --files sources/train --test-files sources/test --order=file",
    "shakespeare-char": "--format=text --tokenizer=chars --files=sources/input.txt --split=0.9,0.1",
    "gpt2-text": "--format=text --tokenizer=gpt2 --encoder=sources/encoder.json --merges=sources/vocab.bpe "
                 "--files=sources/input.txt --split=0.99,0.01",
}
FILES = ["mnist-10k/t10k-images-idx3-ubyte.gz", "mnist-10k/t10k-labels-idx1-ubyte.gz", "tinyshakespeare/input.txt",
         "gpt2-bpe/encoder.json", "gpt2-bpe/vocab.bpe"]

ALWAYS = [f"--train.steps={STEPS}", "--train.epochs=0", f"--train.evaluate_every={MIDDLE}",
          "--train.evaluate_batches=1", f"--checkpoint.every={MIDDLE}"]
# The warm-up of a long run would keep the weights where they are.
WARM = ["--schedule.warmup_steps=5"]
SEQUENCE = [*WARM, "--parallel.sequence=on"]
HALF = ["--model.blocks=2", "--model.context=32"]
BFLOAT16 = [*SEQUENCE, "--numerics.dtype=bfloat16"]
# Channels and features that stay split from layer to layer, norms among them.
SPLIT_CONV = [
    "--model.preset=none", *[f"--model.layer={line}" for line in (
        "conv 16 3 relu padding=same parallel=column", "conv 16 3 relu padding=same parallel=row", "max_pool 2",
        "conv 8 5 stride=2 parallel=column", "group_norm 4", "batch_norm relu", "dropout 0.1",
        "avg_pool 3 stride=2 padding=1", "flatten", "dense 12 parallel=row relu", "dense 10")],
    "--model.sync_batch_norm=on", "--data.crop_padding=2", "--data.cutout=3", "--optimizer.clip_norm=1"]


class Case(NamedTuple):
    name: str
    config: str
    data: str
    grid: tuple       # data x pipeline x tensor
    then: tuple       # where `compare` continues the recorded run; empty: the checkpoints are too large to keep
    settings: list


# The grid is that of the config or of its job script, made smaller where two cores cannot hold it.
CASES = [
    Case("linear-regression", "linear-regression", "line", (2, 1, 1), (4, 1, 1), []),
    Case("file-kinds", "file-kinds", "file-kinds", (2, 2, 1), (1, 3, 1), []),
    Case("mnist-mlp", "mnist-mlp", "mnist", (2, 2, 1), (4, 1, 1), []),
    Case("mnist-mlp adagrad", "mnist-mlp", "mnist", (1, 2, 1), (2, 1, 1),
         ["--optimizer.kind=adagrad", "--optimizer.learning_rate=0.01", "--schedule.kind=step", "--schedule.every=5",
          "--parallel.schedule=gpipe", "--numerics.dtype=float64"]),
    Case("mnist-mlp nesterov", "mnist-mlp", "mnist", (4, 1, 1), (1, 2, 1),
         ["--optimizer.kind=sgd", "--optimizer.learning_rate=0.05", "--optimizer.momentum=0.9",
          "--optimizer.nesterov=on", "--optimizer.weight_decay=0.001", "--schedule.kind=linear",
          "--numerics.dtype=bfloat16"]),
    Case("mnist-lenet", "mnist-lenet", "mnist", (2, 2, 1), (1, 4, 1), []),
    # CIFAR-10 on two nodes of four GPUs, a thirty-second of its samples.
    Case("cifar10-cnn", "cifar10-cnn", "cifar10", (8, 1, 1), (1, 2, 1),
         ["--numerics.lanes=8", "--batch.global=16", "--batch.micro=1"]),
    Case("cifar10 split", "cifar10-cnn", "cifar10", (2, 1, 2), (1, 2, 2),
         [*SPLIT_CONV, "--numerics.shards=2", "--batch.global=8", "--batch.micro=1"]),
    Case("cifar10 resnet20", "cifar10-cnn", "cifar10", (2, 2, 1), (4, 1, 1),
         ["--model.preset=resnet20", "--batch.global=8", "--batch.micro=1"]),
    Case("shakespeare-char", "shakespeare-char", "shakespeare-char", (2, 2, 2), (1, 3, 1), WARM),
    Case("shakespeare-char selective", "shakespeare-char", "shakespeare-char", (1, 2, 2), (2, 1, 1),
         [*SEQUENCE, *HALF, "--train.recompute=selective"]),
    Case("shakespeare-char full", "shakespeare-char", "shakespeare-char", (2, 1, 2), (1, 2, 1),
         [*SEQUENCE, *HALF, "--train.recompute=full", "--parallel.schedule=gpipe"]),
    Case("shakespeare-char bfloat16", "shakespeare-char", "shakespeare-char", (2, 2, 2), (1, 2, 2), BFLOAT16),
    Case("shakespeare-char bfloat16 selective", "shakespeare-char", "shakespeare-char", (2, 1, 2), (1, 1, 2),
         [*BFLOAT16, *HALF, "--train.recompute=selective"]),
    Case("shakespeare-char bfloat16 full", "shakespeare-char", "shakespeare-char", (1, 2, 2), (2, 2, 1),
         [*BFLOAT16, *HALF, "--train.recompute=full"]),
    Case("shakespeare-char-gpu", "shakespeare-char-gpu", "shakespeare-char", (2, 1, 1), (1, 3, 1),
         [*WARM, "--run.device=cpu", "--model.blocks=2", "--model.context=32", "--batch.global=4", "--batch.micro=1"]),
    # jobs/slurm-llama2-512.sbatch: its layers, far narrower and fewer.
    Case("llama2", "gpt2-124m", "shakespeare-char", (2, 2, 2), (1, 3, 1),
         [*SEQUENCE, "--model.preset=llama2-70b", "--model.blocks=2", "--model.width=128", "--model.heads=8",
          "--model.kv_heads=4", "--model.hidden=192", "--model.context=64", "--model.vocabulary=65",
          "--data.train=data/shakespeare-char/train.h5", "--data.test=data/shakespeare-char/test.h5",
          "--batch.global=8", "--batch.micro=2", "--numerics.lanes=2", "--numerics.shards=2",
          "--train.recompute=selective"]),
    # jobs/slurm-gpt2-64.sbatch with GPT-2's smallest size, two of its twelve blocks, and without its replicas.
    Case("gpt2-124m", "gpt2-124m", "gpt2-text", (1, 2, 2), (),
         [*SEQUENCE, "--model.blocks=2", "--model.context=16", "--batch.global=2", "--batch.micro=1",
          "--numerics.lanes=1", "--numerics.shards=2", "--data.test="]),
]


class Differs(Exception):
    """What is not the same, or did not run."""


def gather_sources(directory):
    """Puts what the imports read into `directory`, so that a record needs nothing else."""
    directory.mkdir()
    data = pathlib.Path(os.environ["STRATA_DATA_DIR"])
    for name in FILES:
        shutil.copy(data / name, directory)
    # 40 pictures of each class and split.
    subprocess.run(["tar", "-xf", data / "cifar10-images/cifar10-jpg.tar.xz", "-C", directory, "--wildcards",
                    "*/00[0-3]?.jpg"], check=True)
    with open(directory / "file-kinds.csv", "wb") as table:
        subprocess.run([JOBS / "setup" / "file-kinds.pl"], check=True, stdout=table, stderr=subprocess.DEVNULL)
    chance = random.Random(1)
    rows = ["a,b,y"]
    for _ in range(2000):
        a, b, noise = (chance.uniform(-1, 1) for _ in range(3))
        rows.append(f"{a:.6f},{b:.6f},{3 * a - 2 * b + 0.5 + 0.05 * noise:.6f}")
    (directory / "line.csv").write_text("\n".join(rows) + "\n")


def run(command, directory):
    """Runs a command to its end and returns what it printed."""
    try:
        finished = harness.Job(command, directory).wait(LIMIT)
    except AssertionError as slow:
        raise Differs(str(slow)) from None
    if finished.code != harness.DONE:
        raise Differs(f"exit code {finished.code} of {' '.join(map(str, command))}\n{finished.text[-2000:]}")
    return finished.text


def launch(program, verb, case, grid, directory, *further):
    """Runs `strata train` or `strata evaluate` of a case on a grid."""
    return run(["mpirun", "-n", harness.ranks_of(grid), program, verb, JOBS / f"{case.config}.ini", "--run.dir=run",
                *ALWAYS, *case.settings, *harness.grid_settings(grid), *further], directory)


def numbers(directory):
    """The rows of metrics.jsonl, numbers as text."""
    rows = [dict(row) for row in harness.metrics(directory / "run")]
    steps = [row["step"] for row in rows if row["kind"] == "train"]
    if steps != [str(step + 1) for step in range(STEPS)] or not all("grad_norm" in row for row in rows[:MIDDLE]):
        raise Differs(f"metrics.jsonl has the training steps {steps} instead of 1 to {STEPS}, each with its norm")
    return rows


def require_same(expected, rows, what):
    for left, right in zip(expected, rows):
        if left != right:
            raise Differs(f"{what}: was {left}\n{' ' * len(what)}   is {right}")
    if len(expected) != len(rows):
        raise Differs(f"{what}: was {len(expected)} rows, is {len(rows)}")


def fresh(path, data):
    """A new directory in which `data` is the directory of data sets."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    (path / "data").symlink_to(data)
    return path


def train_twice(program, case, work, expected):
    """Trains a case on its grid and on one rank; returns the numbers and leaves the grid's run in work/grid."""
    one = fresh(work / "one", work / "data")
    launch(program, "train", case, (1, 1, 1), one)
    rows = numbers(one)
    shutil.rmtree(one)
    if expected is not None:
        require_same(expected, rows, "one rank")
    grid = fresh(work / "grid", work / "data")
    launch(program, "train", case, case.grid, grid)
    require_same(rows, numbers(grid), f"grid {case.grid}")
    return rows


def continue_recorded(program, case, work, recorded, expected):
    """Evaluates a recorded run's newest checkpoint, then trains on from the one before it."""
    old = fresh(work / "old", recorded / "data")
    shutil.copytree(recorded / "runs" / case.name, old / "run")
    text = launch(program, "evaluate", case, case.then, old)
    loss = float(expected[-1]["loss"])
    if loss not in [float(number) for number in re.findall(r"\d+\.\d+(?:e-?\d+)?", text)]:
        raise Differs(f"evaluated on {case.then}: no loss {loss} in\n{text}")
    shutil.rmtree(harness.checkpoints(old / "run")[-1])
    launch(program, "train", case, case.then, old, "--run.resume=must")
    require_same(expected, numbers(old), f"continued on {case.then}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["record", "compare"])
    parser.add_argument("program", type=lambda text: pathlib.Path(text).resolve(strict=True))
    parser.add_argument("record", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--only", default="", help="the cases whose name has this regular expression")
    parser.add_argument("--work", type=lambda text: pathlib.Path(text).resolve(), help="where runs go; kept if given")
    arguments = parser.parse_args()
    recording, record, program = arguments.verb == "record", arguments.record, arguments.program
    work = arguments.work or pathlib.Path(tempfile.mkdtemp(prefix="same-bits-"))
    work.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    if recording:
        record.mkdir()  # never over another record
        (record / "runs").mkdir()
        (record / "data").mkdir()
        gather_sources(record / "sources")
        held = [[case._asdict(), None] for case in CASES]
    else:
        held = json.loads((record / "record.json").read_text())
        shutil.rmtree(work / "data", ignore_errors=True)
        (work / "data").mkdir()
    for name in ["sources", *(["data"] if recording else [])]:
        (work / name).unlink(missing_ok=True)
        (work / name).symlink_to(record / name)
    held = [(Case(**case), rows) for case, rows in held if re.search(arguments.only, case["name"])]

    kept, imported = [], {}
    for case, expected in held:
        started = time.monotonic()
        try:
            if case.data not in imported:
                imported[case.data] = run([program, "data", "import", *IMPORTS[case.data].split(),
                                           f"--output=data/{case.data}"], work)
            rows = train_twice(program, case, work, expected)
            if recording and case.then:
                (work / "grid/run").rename(record / "runs" / case.name)
            elif case.then:
                continue_recorded(program, case, work, record, expected)
            kept.append((case._asdict(), rows))
            if recording:
                (record / "record.json").write_text(json.dumps(kept, indent=1))
            verdict = "recorded" if recording else "same"
        except Differs as error:
            verdict = f"FAILED: {error}"
        print(f"{case.name:36}{time.monotonic() - started:6.1f} s  {verdict}", flush=True)
    if arguments.work is None:
        shutil.rmtree(work)
    print(f"{len(kept)} of {len(held)} cases {'recorded' if recording else 'the same'}, "
          f"{time.monotonic() - begun:.0f} s")
    return 0 if held and len(kept) == len(held) else 1


if __name__ == "__main__":
    sys.exit(main())
