#!/usr/bin/env python3
"""How long the GPU is idle within a step of GPT-2 124M on one GPU; bar: at most 3 %.

    bench/gpu_idle.py build/release/bin/strata
    bench/gpu_idle.py build/release/bin/strata --library=build/release/lib/libgpu_idle.so --batch=16
    bench/gpu_idle.py build/release/bin/strata --run.cuda_graphs=on    # further settings of strata's

strata trains twice with the same config. The first run is not watched: its median step is the step.
Into the second, CUDA loads the library, which records when each kernel and copy began and ended.
"Busy" is the time within the later half of its steps in which at least one of them was under way,
on any stream. Idle is what is left of the watched steps; "of the unwatched step" holds the same
busy time against the step that nobody watched, for watching makes launches slower.
"""
import argparse, json, os, pathlib, shutil, statistics, subprocess, sys, tempfile

import measure

SIZES = {"full": {"preset": "gpt2-124m", "blocks": 12, "heads": 12, "width": 768, "context": 1024},
         "smoke": {"preset": "gpt", "blocks": 1, "heads": 2, "width": 32, "context": 32}}
TOKENS = {"full": (1_000_000, 50257), "smoke": (4000, 64)}
# What a step ends with: updates of AdamW.
STEP_END = "::Adam<"
BAR = 0.03
WIDTH = 100


def train(options, config, watched):
    """A run; gives its training lines, and the report of what the GPU did where it was watched."""
    run = config.parent / "run"
    reports = config.parent / "reports"
    shutil.rmtree(run, ignore_errors=True)
    reports.mkdir(exist_ok=True)
    variables = measure.environment()
    if watched:
        variables |= {"CUDA_INJECTION64_PATH": options.injected, "GPU_IDLE_STEP_END": STEP_END,
                      "GPU_IDLE_REPORT": str(reports / "report")}
    done = subprocess.run([options.strata, "train", config, f"--run.dir={run}", *options.settings],
                          env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise SystemExit(f"gpu_idle.py: strata ended with {done.returncode}:\n"
                         + done.stdout + done.stderr)
    steps = measure.train_steps(run)
    shutil.rmtree(run)  # its checkpoint is large
    if not watched:
        return steps, None
    found = list(reports.iterdir())
    if len(found) != 1:
        raise SystemExit(f"gpu_idle.py: {len(found)} reports instead of one; the library needs "
                         f"libcupti where the loader finds it: ldd {options.injected}\n{done.stderr}")
    return steps, json.loads(found[0].read_text())


def measured(options, directory):
    size = SIZES[options.size]
    tokens, vocabulary = TOKENS[options.size]
    config = directory / "gpt.ini"
    measure.write_config(
        config, [], model=size,
        data={"train": measure.import_tokens(options.strata, directory, tokens, vocabulary)},
        batch={"global": options.batch, "micro": options.batch}, numerics={"dtype": "bfloat16"},
        optimizer={"kind": "adamw", "learning_rate": 0.0006, "beta2": 0.95, "weight_decay": 0.1,
                   "decay": "matrices", "clip_norm": 1},
        train={"steps": options.steps}, checkpoint={"keep": 1},
        run={"device": "cuda", "threads": 1})
    half = options.steps // 2
    plain, _ = train(options, config, watched=False)
    watched, report = train(options, config, watched=True)
    if not report["step_ends"] or report["step_ends"] % options.steps:
        raise SystemExit(f"gpu_idle.py: {report['step_ends']} kernels \"{STEP_END}\" in "
                         f"{options.steps} steps; each step should have as many")
    busy = report["busy_seconds"] / half
    step = statistics.median(line["step_seconds"] for line in plain[half:])
    return {"model": size["preset"], "batch": options.batch, "steps": options.steps,
            "settings": options.settings, "step_seconds": step, "busy_seconds": busy,
            "idle_share": report["idle_share"],
            "idle_share_of_unwatched": 1 - busy / step,
            "same_losses": [line["loss"] for line in plain] == [line["loss"] for line in watched],
            "watched_step_seconds": report["window_seconds"] / half, "report": report}


def lines_of(found):
    yield (f"{found['model']}, bfloat16, batch {found['batch']}, steps {found['steps'] // 2 + 1} to "
           f"{found['steps']}: step {1e3 * found['step_seconds']:.2f} ms, watched "
           f"{1e3 * found['watched_step_seconds']:.2f} ms, GPU busy "
           f"{1e3 * found['busy_seconds']:.2f} ms")
    met = "met" if found["idle_share"] <= BAR else "not met"
    yield (f"idle {100 * found['idle_share']:.2f} % of the watched step (bar: {100 * BAR:.0f} %, "
           f"{met}), {100 * found['idle_share_of_unwatched']:.2f} % of the unwatched step")
    if found["report"]["lost"]:
        yield f"{found['report']['lost']} activities were lost: the GPU was idle less than that"
    if not found["same_losses"]:
        yield "the two runs have other losses"
    half = found["steps"] // 2
    yield f"{'a step':>8} {'ms':>9} {'busy':>6}"
    for kernel in found["report"]["kernels"]:
        seconds = kernel["seconds"] / half
        yield (f"{kernel['count'] / half:>8.1f} {1e3 * seconds:>9.3f} "
               f"{100 * seconds / found['busy_seconds']:>5.1f}% {kernel['name'][:WIDTH]}")
    yield f"{'a step':>8} {'idle ms':>9}"
    for gap in found["report"]["gaps"]:
        before, after = (gap[key][:WIDTH // 2] for key in ("before", "after"))
        yield f"{gap['count'] / half:>8.1f} {1e3 * gap['seconds'] / half:>9.3f} {before} > {after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata")
    parser.add_argument("--library", dest="injected", help="default: ../lib/libgpu_idle.so beside strata")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20, help="an even number")
    parser.add_argument("--smoke", dest="size", action="store_const", const="smoke",
                        default="full", help="a tiny model: the figures mean nothing")
    parser.add_argument("--output", type=pathlib.Path, help="a JSON file of everything found")
    options, options.settings = parser.parse_known_args()
    unknown = [word for word in options.settings if "." not in word.split("=")[0]]
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)}; strata's settings are --section.key=value")
    if options.steps < 2 or options.steps % 2:
        raise SystemExit(f"gpu_idle.py: --steps={options.steps}; give an even number")
    options.strata = os.path.abspath(options.strata)
    beside = pathlib.Path(options.strata).parent.parent / "lib" / "libgpu_idle.so"
    options.injected = os.path.abspath(options.injected or beside)
    if not os.path.exists(options.injected):
        raise SystemExit(f"gpu_idle.py: there is no {options.injected}; it is built where the CUDA "
                         "toolkit has cupti.h")
    with tempfile.TemporaryDirectory() as name:
        found = measured(options, pathlib.Path(name))
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(lines_of(found)))
    if options.size == "smoke":
        print("a tiny model: these figures mean nothing")
    sys.exit(0 if found["same_losses"] and found["report"]["lost"] == 0 else 1)


if __name__ == "__main__":
    main()
