#!/usr/bin/env python3
"""Local steps (parallel.sync = local) against synchronous training: losses, bytes between islands, times over a slow link.

    bench/local_steps.py build/release/bin/strata input.txt --output=local-steps.json
    bench/local_steps.py build/release/bin/strata input.txt --only link --steps 400

Trains jobs/shakespeare-char.ini on the characters of a text (Tiny Shakespeare for the figures of bench/README.md), on
four ranks. `loss`: test loss after as many tokens, and what ranks send over emulated links that hold nothing back. `link`:
the time until the test loss that both reach over a link of --rate Mbit/s and --delay ms, and the time of a step against
the formula of docs/strategies.md. Ends with 1 where a bar is not met.
"""
import argparse, json, pathlib, re, shutil, statistics, subprocess, tempfile

import measure

JOB = pathlib.Path(__file__).resolve().parent.parent / "jobs" / "shakespeare-char.ini"
RANKS, ROUND, FRAGMENTS = 4, 20, 4
BATCH = ["--parallel.data=4", "--numerics.lanes=4", "--numerics.shards=1", "--batch.global=16", "--batch.micro=4"]
LOCAL = ["--parallel.sync=local", "--parallel.islands=4", f"--local.steps={ROUND}"]
STREAMING = [*LOCAL, f"--local.fragments={FRAGMENTS}", "--local.exchange=int4"]
OVERLAPPED = [*STREAMING, "--local.delay=1"]
KINDS = {"step": [], "local": LOCAL, "streaming": STREAMING, "overlapped": OVERLAPPED}
PACKED = 4 / (0.5 + 4 / 128)  # int4: bytes of a float32 over those of four bits and their part of a scale


class Bench:
    def __init__(self, options, directory):
        self.options = options
        self.directory = directory
        subprocess.run([options.strata, "data", "import", "--format=text", "--tokenizer=chars",
                        f"--files={options.text}", "--split=0.9,0.1", "--output=data/shakespeare-char"],
                       cwd=directory, check=True, capture_output=True)
        self.failed = []

    def train(self, kind, *settings, link=""):
        """Trains over a link, RATE:DELAY, and gives the records of metrics.jsonl, the parameters, and the bytes sent and of the busiest second."""
        shutil.rmtree(self.directory / "run", ignore_errors=True)
        command = ["mpirun", "-n", str(RANKS), measure.rig(self.options.strata), "train", str(JOB), "--run.dir=run",
                   "--run.threads=1", "--checkpoint.every=0", *BATCH, *KINDS[kind], *settings]
        finished = subprocess.run(command, cwd=self.directory, env=measure.environment() | {"STRATA_RIG_LINK": link},
                                  capture_output=True, text=True)
        if finished.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with {finished.returncode}:\n{finished.stdout}{finished.stderr}")
        text = finished.stdout + finished.stderr
        records = [json.loads(line) for line in (self.directory / "run" / "metrics.jsonl").read_text().splitlines()]
        sent = re.findall(r"sent (\d+) bytes over an emulated link, at most (\d+) in", text)
        return {"steps": [record for record in records if record["kind"] == "train"],
                "losses": {record["step"]: record["loss"] for record in records if record["kind"] == "evaluate"},
                "parameters": int(re.search(r"^([\d,]+) parameters", text, re.MULTILINE)[1].replace(",", "")),
                "sent": sum(int(rank[0]) for rank in sent), "peak": max((int(rank[1]) for rank in sent), default=0)}

    def bar(self, what, value, most):
        met = value <= most
        print(f"{what}: {value:.3f} ({'met' if met else 'NOT MET'}: at most {most:g})", flush=True)
        if not met:
            self.failed.append(what)

    def compare_losses(self):
        found = {}
        for kind in KINDS:
            # So fast a link holds nothing back, and counts.
            run = self.train(kind, f"--train.steps={self.options.steps}", "--train.evaluate_every=0",
                             "--train.evaluate_batches=0", link="1e9:0")
            found[kind] = {"loss": run["losses"][self.options.steps], "sent": run["sent"], "peak": run["peak"]}
            print(f"{kind}: test loss {found[kind]['loss']:.4f}, {run['sent'] / 1e6:.1f} MB sent, at most "
                  f"{run['peak'] / 1e6:.2f} MB of a rank in a second", flush=True)
        step, local = found["step"], found["local"]
        self.bar("local: loss above synchronous", local["loss"] - step["loss"], 0.03)
        # The losses of the round are a little more than the weights alone.
        self.bar("local: bytes over 1/20 of synchronous", local["sent"] * ROUND / step["sent"], 1.01)
        for kind in ("streaming", "overlapped"):
            self.bar(f"{kind}: loss above synchronous", found[kind]["loss"] - step["loss"], 0.05)
            self.bar(f"{kind}: bytes of the busiest second over 1/8 of local's", 8 * found[kind]["peak"] / local["peak"], 1.0)
        return found

    def predicted(self, kind, compute, parameters):
        """The time of a step, as docs/strategies.md has it."""
        rate, delay = self.options.rate * 1e6 / 8, self.options.delay / 1e3
        whole = 2 * 4 * parameters * (RANKS - 1) / RANKS / rate
        if kind == "step":
            return compute + whole + 3 * delay
        if kind == "local":
            return compute + (whole + 3 * delay) / ROUND
        if kind == "streaming":
            return compute + (whole / PACKED + (2 * FRAGMENTS + 1) * delay) / ROUND
        exchange = whole / PACKED / FRAGMENTS + 2 * delay
        return compute + (FRAGMENTS * max(0.0, exchange - compute) + delay) / ROUND

    def step_seconds(self, run):
        """The mean of the fastest round but the first: exchanges are at the end of one, and other work on the machine
        lengthens some."""
        seconds = [record["step_seconds"] for record in run["steps"]][ROUND:]
        return min(statistics.fmean(seconds[first:first + ROUND]) for first in range(0, len(seconds), ROUND))

    def compare_times(self):
        found = {}
        link = f"{self.options.rate}:{self.options.delay}"
        length = [f"--train.steps={self.options.steps}", f"--train.evaluate_every={2 * ROUND}"]
        for kind in KINDS:
            short = [f"--train.steps={6 * ROUND}", "--train.evaluate_every=0", f"--schedule.decay_steps={6 * ROUND}"]
            before = self.step_seconds(self.train(kind, *short))
            run = self.train(kind, *length, link=link)
            compute = min(before, self.step_seconds(self.train(kind, *short)))
            seconds, model = self.step_seconds(run), self.predicted(kind, compute, run["parameters"])
            found[kind] = {"losses": run["losses"], "seconds": [record["step_seconds"] for record in run["steps"]],
                           "step": seconds, "compute": compute, "predicted": model}
            print(f"{kind}: {1e3 * seconds:.1f} ms a step, {1e3 * compute:.1f} ms without the link, predicted "
                  f"{1e3 * model:.1f} ms", flush=True)
            self.bar(f"{kind}: formula against measured", abs(model / seconds - 1), 0.15)
        for kind in list(KINDS)[1:]:
            both = (found["step"], found[kind])
            target = max(min(one["losses"].values()) for one in both)
            times = []
            for one in both:
                step = next(step for step, loss in one["losses"].items() if loss <= target)
                times.append(sum(one["seconds"][:step]))
            print(f"{kind}: test loss {target:.4f} after {times[1]:.1f} s, synchronous after {times[0]:.1f} s")
            self.bar(f"{kind}: time to the loss over synchronous", times[1] / times[0], 0.5)
            found[kind].update(target=target, time=times[1], synchronous=times[0])
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--only", choices=["loss", "link"])
    parser.add_argument("--steps", type=int, help="of a run; default 2000 for loss, 400 for link")
    parser.add_argument("--rate", type=float, default=100.0, help="of the link, Mbit/s")
    parser.add_argument("--delay", type=float, default=20.0, help="of the link, ms")
    parser.add_argument("--output", type=pathlib.Path, help="JSON")
    options = parser.parse_args()
    options.strata, options.text = options.strata.resolve(), options.text.resolve()
    given, result = options.steps, {"machine": measure.machine()}
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(options, pathlib.Path(directory))
        for part, steps, run in (("loss", 2000, bench.compare_losses), ("link", 400, bench.compare_times)):
            if options.only in (None, part):
                options.steps = given or steps
                result[part] = run()
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    raise SystemExit(1 if bench.failed else 0)


if __name__ == "__main__":
    main()
