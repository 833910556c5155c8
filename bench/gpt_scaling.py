#!/usr/bin/env python3
"""What tensor and data parallelism, and the virtual grid, cost a GPT on this machine.

    bench/gpt_scaling.py build/release/bin/strata
    bench/gpt_scaling.py build/release/bin/strata --size small --steps 60

One thread a rank, all in turn, medians of step times:
- "tensor": the same batch on one rank and on two tensor ranks: tokens a second over one rank's;
- "data": as many samples again for a second replica; and over two single ranks that run at once and
  exchange nothing, which share the machine's memory, caches and clock as two replicas do;
- "virtual grid": two ranks whose sums are strata's against numerics.mode = fast, data and tensor
  parallel, and one rank that computes two lanes of two shards against one with one of each.
"""
import argparse, json, os, pathlib, statistics, tempfile

import measure

TOGETHER = "two single ranks at once"
SIZES = {"small": dict(blocks=4, heads=4, width=128, vocabulary=65, micro=12),
         "124m": dict(blocks=12, heads=12, width=768, vocabulary=50257, micro=4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata")
    parser.add_argument("--size", choices=SIZES, default="124m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--microbatches", type=int, default=4,
                        help="of one replica in a step of the data-parallel comparison")
    parser.add_argument("--micro", type=int, help="samples of a microbatch")
    parser.add_argument("--context", type=int, default=64, help="tokens of a sample")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", choices=["tensor", "data", "emulated"],
                        help="one of the comparisons")
    parser.add_argument("--emulate", type=float, metavar="MS",
                        help="each pass over a microbatch takes so long more (tests/support/rig.cpp): with few tokens, two "
                        "ranks hardly take cores, caches and memory from each other")
    options = parser.parse_args()
    options.strata = os.path.abspath(options.strata)
    size = dict(SIZES[options.size])
    smallest = size.pop("micro")
    micro = options.micro or smallest
    replica = micro * options.microbatches

    # name: ranks, settings, samples of a step
    cases = {
        "one": (1, ["--numerics.lanes=1"], micro),
        "tensor": (2, ["--parallel.tensor=2"], micro),
        "tensor fast": (2, ["--parallel.tensor=2", "--numerics.mode=fast"], micro),
        "one, several microbatches": (1, ["--numerics.lanes=1"], replica),
        "data": (2, ["--parallel.data=2"], 2 * replica),
        "data fast": (2, ["--parallel.data=2", "--numerics.mode=fast"], 2 * replica),
        "one, two microbatches": (1, ["--numerics.lanes=1"], 2 * micro),
        "one, two lanes of two shards": (1, ["--numerics.lanes=2", "--numerics.shards=2"], 2 * micro),
    }
    cases[TOGETHER] = cases["one, several microbatches"]
    comparisons = {
        "tensor": [("tensor over one rank", "tensor", "one"),
                   ("invariant over fast, tensor", "tensor", "tensor fast")],
        "data": [("data over one rank", "data", "one, several microbatches"),
                 ("data over two single ranks at once", "data", TOGETHER),
                 ("invariant over fast, data", "data", "data fast")],
        "emulated": [("two lanes of two shards on one rank", "one, two lanes of two shards",
                      "one, two microbatches")]}
    wanted = [ratio for name, ratios in comparisons.items() for ratio in ratios
              if options.only in (None, name)]
    needed = {case for _, left, right in wanted for case in (left, right)}
    cases = {name: case for name, case in cases.items() if name in needed}
    times = {"TIMES": ":".join(3 * [str(options.emulate)])} if options.emulate else {}
    rates = {name: [] for name in cases}
    parts = {}
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        data = measure.import_tokens(options.strata, directory, 100000, size["vocabulary"])
        config = directory / "gpt.ini"
        measure.write_config(
            config, [], model={"preset": "gpt", "context": options.context, **size}, data={"train": data},
            batch={"micro": micro}, numerics={"dtype": options.dtype},
            optimizer={"kind": "adamw", "learning_rate": 0.001, "weight_decay": 0.1, "clip_norm": 1},
            train={"steps": options.steps + 2}, checkpoint={"every": 0} if options.emulate else {"keep": 1})
        for turn in range(options.rounds):
            for case, (ranks, settings, samples) in cases.items():
                copies = 2 if case == TOGETHER else 1
                dirs = [directory / f"run-{turn}-{case.replace(' ', '-').replace(',', '')}-{copy}"
                        for copy in range(copies)]
                started = [measure.start(options.strata, config, run, ranks, *settings, f"--batch.global={samples}", **times)
                           for run in dirs]
                for process in started:
                    measure.finish(process)
                found = [measure.medians(run, skip=2) for run in dirs]
                step = statistics.median(one["step_seconds"] for one in found)
                rates[case].append(copies * samples * options.context / step)
                parts[case] = {key: round(value, 4) for key, value in found[0].items()
                               if key.endswith("_seconds")}
                for path in sorted(path for run in dirs for path in run.rglob("*.h5")):
                    path.unlink()
    middle = {case: statistics.median(values) for case, values in rates.items()}
    print(json.dumps({
        "machine": measure.machine(), "size": options.size, "dtype": options.dtype,
        "tokens_per_second": {case: [round(value) for value in values]
                              for case, values in rates.items()},
        "parts": parts,
        **{name: round(middle[left] / middle[right], 3) for name, left, right in wanted}}, indent=1))


if __name__ == "__main__":
    main()
