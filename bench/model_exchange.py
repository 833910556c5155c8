#!/usr/bin/env python3
"""How fast a model of 10 GB comes in and goes out, and in how much memory.

    bench/model_exchange.py build/release/bin/strata --directory DIR [--model=gpt2] [--gigabytes=10]

Writes a Llama (or GPT-2) of random float32 numbers as Hugging Face's files, imports it, and
exports the checkpoint with --format=safetensors and --format=huggingface, in turn with `dd` with
fsync of the checkpoint's files. Prints the median seconds and rates, and the peak resident memory.
Each begins with an empty page cache where this may be dropped (root). DIR needs four times the
size of the model.
"""
import argparse, json, os, pathlib, shutil, statistics, struct, subprocess, tempfile, time

import numpy

WIDTH, VOCABULARY, CONTEXT = 2560, 32000, 2048


def config_of(model, blocks):
    if model == "gpt2":
        return {"model_type": "gpt2", "n_layer": blocks, "n_embd": WIDTH, "n_head": WIDTH // 128,
                "n_positions": CONTEXT, "vocab_size": VOCABULARY}
    return {"model_type": "llama", "num_hidden_layers": blocks, "hidden_size": WIDTH,
            "num_attention_heads": WIDTH // 128, "intermediate_size": 6912,
            "max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY}


def tensors_of(model, blocks):
    """Names and shapes as Hugging Face's files have them."""
    norms = lambda name: [(f"{name}.weight", [WIDTH]), (f"{name}.bias", [WIDTH])]
    linear = lambda name, inputs, outputs: [(f"{name}.weight", [inputs, outputs]),
                                            (f"{name}.bias", [outputs])]
    if model == "gpt2":
        tensors = [("wte.weight", [VOCABULARY, WIDTH]), ("wpe.weight", [CONTEXT, WIDTH])]
        for block in range(blocks):
            h = f"h.{block}."
            tensors += norms(h + "ln_1") + linear(h + "attn.c_attn", WIDTH, 3 * WIDTH)
            tensors += linear(h + "attn.c_proj", WIDTH, WIDTH) + norms(h + "ln_2")
            tensors += linear(h + "mlp.c_fc", WIDTH, 4 * WIDTH)
            tensors += linear(h + "mlp.c_proj", 4 * WIDTH, WIDTH)
        return tensors + norms("ln_f")
    tensors = [("model.embed_tokens.weight", [VOCABULARY, WIDTH]),
               ("lm_head.weight", [VOCABULARY, WIDTH]), ("model.norm.weight", [WIDTH])]
    for block in range(blocks):
        layer = f"model.layers.{block}."
        tensors += [(layer + f"self_attn.{part}_proj.weight", [WIDTH, WIDTH]) for part in "qkvo"]
        tensors += [(layer + f"mlp.{part}_proj.weight", [6912, WIDTH]) for part in ("gate", "up")]
        tensors += [(layer + "mlp.down_proj.weight", [WIDTH, 6912])]
        tensors += [(layer + f"{norm}_layernorm.weight", [WIDTH])
                    for norm in ("input", "post_attention")]
    return tensors


def count_of(tensors):
    return sum(int(numpy.prod(shape)) for _, shape in tensors)


def write_model(directory, model, size):
    """A model of about `size` bytes; gives the bytes of its weights."""
    block = count_of(tensors_of(model, 2)) - count_of(tensors_of(model, 1))
    blocks = max(1, (size // 4 - count_of(tensors_of(model, 0))) // block)
    tensors = tensors_of(model, blocks)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config_of(model, blocks)))
    header, end = {}, 0
    for name, shape in tensors:
        begin, end = end, end + 4 * int(numpy.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    draw = numpy.random.default_rng(1)
    with open(directory / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for begin in range(0, end, 1 << 26):
            numbers = draw.random(1 << 24, dtype=numpy.float32)
            file.write(numbers.tobytes()[:end - begin])
    return end


def measured(command):
    """Seconds and peak resident bytes of a command that begins with an empty page cache."""
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        print("the page cache cannot be dropped: files may be in memory already")
    began = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    while child.poll() is None:
        # Not rusage, whose peak includes this program's before exec.
        lines = pathlib.Path(f"/proc/{child.pid}/status").read_text().splitlines()
        peak = max([peak] + [int(line.split()[1]) << 10 for line in lines
                             if line.startswith("VmHWM:")])
        time.sleep(0.05)
    if child.returncode != 0:
        raise SystemExit(f"failed: {' '.join(map(str, command))}")
    return time.monotonic() - began, peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("strata", type=os.path.abspath)
    parser.add_argument("--directory", help="where to write; default: the system's for temporary files")
    parser.add_argument("--model", choices=("llama", "gpt2"), default="llama")
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = pathlib.Path(name)
        size = write_model(directory / "model", options.model, int(options.gigabytes * 1e9))
        run, out = directory / "run", directory / "out"

        def report(what, results, base=None):
            seconds = statistics.median(result[0] for result in results)
            print(f"{what:20} {seconds:7.1f} s {size / seconds / 1e6:7.0f} MB/s, peak "
                  f"{max(result[1] for result in results) / 1e6:6.0f} MB"
                  + (f", {base / seconds:.2f} x dd" if base else ""), flush=True)
            return seconds

        print(f"{options.model} of {size / 1e9:.1f} GB")
        came = [measured([options.strata, "checkpoint", "import", directory / "model",
                          f"--output={run}"])]
        shutil.rmtree(directory / "model")
        report("import", came)
        parts = sorted(run.glob("checkpoints/*/part-*"))
        results = {"dd": [], "safetensors": [], "huggingface": []}
        for _ in range(options.rounds):
            for what, times in results.items():
                if what == "dd":
                    out.mkdir()
                    copies = " && ".join(f"dd if={part} of={out / part.name} bs=8M conv=fsync"
                                         for part in parts)
                    times.append(measured(["sh", "-c", copies]))
                else:
                    times.append(measured([options.strata, "checkpoint", "export", run,
                                           f"--format={what}", f"--output={out}"]))
                shutil.rmtree(out)
        base = report("dd", results["dd"])
        for what in ("safetensors", "huggingface"):
            report(f"export {what}", results[what], base)


if __name__ == "__main__":
    main()
