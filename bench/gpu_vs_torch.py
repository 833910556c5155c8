#!/usr/bin/env python3
"""strata against PyTorch on one GPU: GPT-2 and ResNet-50; the last lines are a table.

    bench/gpu_vs_torch.py build/release/bin/strata
    bench/gpu_vs_torch.py build/release/bin/strata --python=/opt/torch/bin/python --rounds=5
    bench/gpu_vs_torch.py build/release/bin/strata --only gpt2-1558m       # not in the default
    bench/gpu_vs_torch.py build/release/bin/strata --device=cpu --smoke    # tiny: does it run?

PyTorch's side is bench/peers: GPT-2 compiled, with its fused attention and AdamW, once with
autocast and once with bfloat16 weights and float32 masters; ResNet-50 compiled, channels last. Each
comparison takes the first of its batches that every side has memory for, then all sides run in
turn; a side's figure is the median over the rounds of the median step after the warm-up.

PyTorch's samples lie on the GPU before the first step; strata reads its from a data set, and "data"
is the share of its step that it waited for them. MFU is strata's own count of the model's FLOPs
over the measured peak of matrix products, for both sides.
"""
import argparse, json, os, pathlib, random, shutil, signal, statistics, struct, subprocess, sys
import tempfile, time

import measure

PEERS = pathlib.Path(__file__).resolve().parent / "peers"
DEVICE_FAILED = 5  # exit code of strata; of the scripts in peers: out of memory
# What strata says where its arenas, or CUDA, did not get memory. An illegal access is none of them.
MEMORY_WORDS = ("of memory on", "GPU's memory", "out of memory")

GPT = {"full": {"preset": "gpt2-124m", "blocks": 12, "heads": 12, "width": 768, "context": 1024,
                "vocabulary": 50257, "batches": [64, 48, 32, 16, 8, 4], "tokens": 1_000_000},
       "smoke": {"preset": "gpt", "blocks": 1, "heads": 2, "width": 32, "context": 32,
                 "vocabulary": 64, "batches": [4, 2], "tokens": 4000}}
GPT_LARGE = {"full": GPT["full"] | {"preset": "gpt2-1558m", "blocks": 48, "heads": 25,
                                    "width": 1600, "batches": [16, 8, 4, 2]},
             "smoke": GPT["smoke"] | {"blocks": 2}}
IMAGES = {"full": {"side": 224, "classes": 1000, "batches": [128, 64, 32], "samples": 1024},
          "smoke": {"side": 32, "classes": 10, "batches": [2], "samples": 16}}
STEPS = {"full": (20, 5), "smoke": (2, 1)}
PEAK = {"full": [], "smoke": ["--sizes", 128, 256, "--repeats", 3, "--warmup", 1]}


class OutOfMemory(Exception):
    """A side has not the memory for a batch."""


class Failed(Exception):
    """A side ended otherwise than it should; the text says how."""


def finish(command, limit_seconds):
    """Runs a command to its end; gives its exit code, output and messages."""
    command = list(map(str, command))
    process = subprocess.Popen(command, env=measure.environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    try:
        output, messages = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        # With all that it started: the compiler's workers would keep the pipes open.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Failed(f"{' '.join(command)} took more than {limit_seconds} s; "
                     "raise --limit or lower --steps") from None
    return process.returncode, output, messages


def refuse(command, code, text):
    raise Failed(f"{' '.join(map(str, command))} ended with {code}:\n{text[-3000:]}")


class Peer:
    """PyTorch's side: a script of bench/peers and its options.

    Where PyTorch cannot compile, for want of a C compiler say, it runs without, and the table says
    so.
    """

    def __init__(self, options, name, script, *words):
        self.name = name
        self.options = options
        self.compile = options.compile
        self.reason = ""  # why it does not compile
        self.command = [options.python, PEERS / script, f"--device={options.torch_device}",
                        "--steps", options.steps, "--warmup", options.warmup, *words]

    def run(self, batch):
        command = [*self.command, "--batch", batch, "--compile", self.compile]
        code, output, messages = finish(command, self.options.limit)
        if code == DEVICE_FAILED:
            raise OutOfMemory(self.name)
        if code != 0 and self.compile != "off":
            self.compile = "off"
            self.reason = ": " + (messages.strip().splitlines() or ["no message"])[-1]
            return self.run(batch)
        if code != 0:
            refuse(command, code, messages)
        result = json.loads(output.splitlines()[-1])
        result["compile"] += self.reason
        if not result["loss_finite"]:
            raise Failed(f"{self.name}: the loss is not finite")
        return result


class Strata:
    """strata's side: a config file, and options of the comparison."""

    def __init__(self, options, config, name="strata", *words):
        self.name = name
        self.options = options
        self.config = config
        self.words = words

    def run(self, batch):
        run = self.config.parent / "run"
        shutil.rmtree(run, ignore_errors=True)
        command = [self.options.strata, "train", self.config, f"--run.dir={run}",
                   f"--batch.global={batch}", f"--batch.micro={batch}", *self.words]
        code, output, messages = finish(command, self.options.limit)
        if code == DEVICE_FAILED and any(words in messages for words in MEMORY_WORDS):
            raise OutOfMemory(self.name)
        if code != 0:
            refuse(command, code, output + messages)
        result = measure.medians(run, skip=self.options.warmup)
        shutil.rmtree(run)  # its checkpoint is large
        return result


def write_config(options, path, peak_tflops, numerics, **sections):
    measure.write_config(
        path, [], **sections,
        numerics=numerics, train={"steps": options.warmup + options.steps}, checkpoint={"keep": 1},
        run={"device": options.device, "threads": 1, "peak_tflops": peak_tflops})


def strata_sides(options, config):
    """strata as it is, and on a GPU with each pass given as a CUDA graph."""
    sides = [Strata(options, config)]
    if options.device == "cuda":
        sides.append(Strata(options, config, "strata, graphs", "--run.cuda_graphs=on"))
    return sides


def gpt_sides(options, directory, peaks, sizes):
    size = sizes[options.size]
    data = measure.import_tokens(options.strata, directory, size["tokens"], size["vocabulary"])
    widths = {key: size[key] for key in ("blocks", "heads", "width", "context")}
    config = directory / "gpt.ini"
    write_config(options, config, peaks["bfloat16"], {"dtype": "bfloat16"},
                 model={"preset": size["preset"], **widths}, data={"train": data},
                 optimizer={"kind": "adamw", "learning_rate": 0.0006, "beta2": 0.95,
                            "weight_decay": 0.1, "decay": "matrices", "clip_norm": 1})
    words = [word for key in (*widths, "vocabulary") for word in (f"--{key}", size[key])]
    return [*strata_sides(options, config),
            *(Peer(options, f"PyTorch {precision}", "gpt_torch.py", "--precision", precision,
                   *words) for precision in ("autocast", "masters"))]


def import_images(options, directory):
    """Random images of bytes as a data set; gives its master file."""
    size = IMAGES[options.size]
    draw = random.Random(1)
    samples, side = size["samples"], size["side"]
    content = b"".join(draw.randbytes(3 * side * side) for _ in range(samples))
    measure.write_npy(directory / "inputs.npy", "|u1", (samples, 3, side, side), content)
    labels = [draw.randrange(size["classes"]) for _ in range(samples)]
    measure.write_npy(directory / "targets.npy", "<i8", (samples,),
                      struct.pack(f"<{samples}q", *labels))
    return measure.import_data(options.strata, directory, "npy", "--inputs=inputs.npy",
                               "--targets=targets.npy", f"--classes={size['classes']}")


def resnet_sides(options, directory, peaks, precision):
    size = IMAGES[options.size]
    data = import_images(options, directory)
    numerics = {"dtype": "bfloat16"}
    if precision == "tf32":
        # CPUs know no tf32.
        numerics = {"dtype": "float32", "tf32": "off" if options.device == "cpu" else "on"}
    config = directory / "resnet.ini"
    write_config(options, config, peaks[precision], numerics, model={"preset": "resnet50"},
                 data={"train": data, "reader_threads": options.readers},
                 optimizer={"kind": "sgd", "learning_rate": 0.01, "momentum": 0.9,
                            "weight_decay": 0.0001})
    torch = "tf32" if precision == "tf32" else "autocast"
    return [*strata_sides(options, config),
            Peer(options, f"PyTorch {torch}", "resnet_torch.py", "--precision", torch,
                 "--side", size["side"], "--classes", size["classes"])]


COMPARISONS = {
    "gpt2": ("bfloat16", "tokens_per_second", GPT, lambda *words: gpt_sides(*words, GPT)),
    "resnet50": ("bfloat16", "images_per_second", IMAGES,
                 lambda *words: resnet_sides(*words, "bfloat16")),
    "resnet50-tf32": ("tf32", "images_per_second", IMAGES,
                      lambda *words: resnet_sides(*words, "tf32")),
    "gpt2-1558m": ("bfloat16", "tokens_per_second", GPT_LARGE,
                   lambda *words: gpt_sides(*words, GPT_LARGE))}


def rate_of(result, unit):
    # strata counts images as samples.
    return result.get(unit, result["samples_per_second"])


def compare(options, name, directory, peaks, end):
    """All sides in turn with the largest batch that all have memory for."""
    dtype, unit, sizes, make = COMPARISONS[name]
    directory.mkdir()
    sides = make(options, directory, peaks)
    refused, found = [], None
    for batch in options.batches or sizes[options.size]["batches"]:
        try:
            found = {side.name: [side.run(batch)] for side in sides}
            break
        except OutOfMemory as error:
            refused.append({"batch": batch, "side": str(error)})
    if found is None:
        raise Failed(f"no batch fits: {refused}; give smaller --batches")
    while len(found["strata"]) < options.rounds and time.monotonic() < end:
        for side in sides:
            found[side.name].append(side.run(batch))
    rates = {side: [rate_of(result, unit) for result in results]
             for side, results in found.items()}
    middle = {side: statistics.median(values) for side, values in rates.items()}
    fastest = max(value for side, value in middle.items() if not side.startswith("strata"))
    mfu = statistics.median(result["mfu"] for result in found["strata"])
    return {"name": name, "dtype": dtype, "unit": unit, "batch": batch, "refused": refused,
            "sides": {side: {
                "rate": middle[side], "rates": values,
                "of_fastest_pytorch": middle[side] / fastest,
                "mfu": mfu * middle[side] / middle["strata"],
                "results": found[side]} for side, values in rates.items()}}


def lines_of(report):
    """A comparison as lines of the table."""
    rounds = len(report["sides"]["strata"]["rates"])
    yield (f"{report['name']}, {report['dtype']}, batch {report['batch']}, rounds: {rounds}, "
           f"{report['unit'].replace('_per_', ' a ')}")
    for side, found in report["sides"].items():
        last = found["results"][-1]
        notes = []
        if "data_seconds" in last:
            notes.append(f"data {100 * last['data_seconds'] / last['step_seconds']:.1f} %")
        if last.get("peak_memory_bytes"):
            notes.append(f"peak {last['peak_memory_bytes'] / 2**30:.1f} GiB")
        if "compile" in last and last["compile"] != "default":
            notes.append(f"compile {last['compile']}")
        rates = found["rates"]
        spread = f"({min(rates):,.0f} to {max(rates):,.0f})"
        yield (f"  {side:<17} {found['rate']:>10,.0f} {spread:<23} "
               f"{found['of_fastest_pytorch']:>5.2f} x  MFU {100 * found['mfu']:5.1f} %  "
               + ", ".join(notes))
    for refusal in report["refused"]:
        yield f"  batch {refusal['batch']}: no memory in {refusal['side']}"


def matrix_peak(options):
    command = [options.python, PEERS / "matrix_peak.py", f"--device={options.torch_device}",
               *PEAK[options.size]]
    code, output, messages = finish(command, options.limit)
    if code != 0:
        refuse(command, code, messages)
    return json.loads(output.splitlines()[-1])


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata")
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--torch-device", choices=["cuda", "cpu"], help="default: --device")
    parser.add_argument("--smoke", dest="size", action="store_const", const="smoke",
                        default="full", help="tiny sizes: the figures mean nothing")
    parser.add_argument("--only", choices=COMPARISONS, nargs="+",
                        default=[name for name in COMPARISONS if name != "gpt2-1558m"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="that are timed in each run")
    parser.add_argument("--warmup", type=int, help="steps before those")
    parser.add_argument("--batches", type=int, nargs="+", help="to be tried, largest first")
    parser.add_argument("--compile", default="default", help="PyTorch's mode, or off",
                        choices=["default", "reduce-overhead", "max-autotune", "off"])
    parser.add_argument("--readers", type=int, default=4, help="strata's threads that read images")
    parser.add_argument("--limit", type=float, default=300, help="seconds a run may take")
    parser.add_argument("--seconds", type=float, default=1e9,
                        help="after which no further round begins; every comparison runs once")
    parser.add_argument("--output", type=pathlib.Path, help="a JSON file of everything found")
    options = parser.parse_args()
    options.strata = os.path.abspath(options.strata)
    options.torch_device = options.torch_device or options.device
    steps, warmup = STEPS[options.size]
    options.steps = steps if options.steps is None else options.steps
    options.warmup = warmup if options.warmup is None else options.warmup
    return options


def run_all(options, directory):
    """Runs the comparisons, shows each when it is done, and gives all that was found."""
    begin = time.monotonic()
    peak = matrix_peak(options)
    peaks = {dtype: peak[dtype]["peak_tflops"] for dtype in ("bfloat16", "tf32")}
    print(f"{peak['device']}, PyTorch {peak['torch']}; peak of matrix products: "
          + ", ".join(f"{value:.4g} TFLOP/s {dtype}" for dtype, value in peaks.items()), flush=True)
    report = {"machine": measure.machine(), "peak": peak, "comparisons": [], "failures": []}
    for index, name in enumerate(options.only):
        # Each comparison has its share of the time.
        end = begin + options.seconds * (index + 1) / len(options.only)
        try:
            found = compare(options, name, directory / name, peaks, end)
        except (Failed, subprocess.CalledProcessError) as error:
            text = (error.stderr or b"") if isinstance(error, subprocess.CalledProcessError) else ""
            text = text.decode(errors="replace") if isinstance(text, bytes) else text
            error = f"{error}\n{text}" if text else error
            report["failures"].append({"name": name, "text": str(error)})
            print(f"{name}: failed, which standard error shows", flush=True)
            print(f"gpu_vs_torch.py: {name}: {error}", file=sys.stderr, flush=True)
            continue
        report["comparisons"].append(found)
        if options.output:
            options.output.write_text(json.dumps(report, indent=1) + "\n")
        print("\n".join(lines_of(found)), flush=True)
    return report


def main():
    options = parse()
    with tempfile.TemporaryDirectory() as name:
        try:
            report = run_all(options, pathlib.Path(name))
        except Failed as error:
            raise SystemExit(f"gpu_vs_torch.py: {error}") from None
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    if options.size == "smoke":
        print("tiny sizes: these figures mean nothing")
    raise SystemExit(1 if report["failures"] else 0)


if __name__ == "__main__":
    main()
