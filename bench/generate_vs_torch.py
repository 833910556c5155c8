#!/usr/bin/env python3
"""Tokens a second that strata generates against PyTorch with a key-value cache, on one thread.

    bench/generate_vs_torch.py build/release/bin/strata bench/peers/generate_torch.py --blas=DIRECTORY
    bench/generate_vs_torch.py build/release/bin/strata bench/peers/generate_torch.py --size 124m --texts 1

A GPT and a Llama of one size, float32, each greedy and sampled at temperature 1, from one token on to the end of the context. Both
sides run in turn, and the medians of their rates are compared. Neither side counts the start of the process and the weights. --blas as
for gpt_vs_torch.py.
"""
import base64, json, pathlib, random, re, statistics, subprocess, tempfile

import measure

SIZES = {"small": {"blocks": 4, "heads": 4, "width": 128, "vocabulary": 257, "context": 256},
         "124m": {"blocks": 12, "heads": 12, "width": 768, "vocabulary": 50257, "context": 256}}
HIDDEN = {("small", "gpt"): 512, ("small", "llama"): 344, ("124m", "gpt"): 3072, ("124m", "llama"): 2048}
MODES = {"greedy": ([], ["--temperature=0"]), "sampled": (["--sampled"], ["--temperature=1"])}


def trained(options, directory, kind, size):
    """A run with a checkpoint of weights that are as good as random."""
    run = directory / kind
    config = directory / f"{kind}.ini"
    measure.write_config(
        config, [], model={"preset": kind, **size},
        data={"train": directory / "data/train.h5"}, batch={"global": 1},
        optimizer={"kind": "adamw", "learning_rate": 0.000001}, train={"steps": 1})
    measure.finish(measure.start(options.strata, config, run))
    return run


def text_data(options, directory, size):
    """A data set whose tokenizer has as many tokens, the last of them the separator."""
    ranks = [bytes([byte]) for byte in range(256)]
    ranks += [number.to_bytes(3, "big") for number in range(size["vocabulary"] - 257)]
    (directory / "ranks").write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranks)))
    (directory / "text").write_text("".join(random.Random(1).choices("abcdefgh ", k=20000)))
    measure.import_data(options.strata, directory, "text", "--tokenizer=ranks", "--split-pattern=gpt2", "--files=text")


def strata_rate(options, run, arguments):
    done = subprocess.run([options.strata, "generate", run, "--prompt=a", *arguments, "--batch=1", "--run.threads=1"],
                          env=measure.environment(), check=True, capture_output=True)
    found = re.search(r"([\d,]+) tokens, ([\d,]+) tokens/s", done.stderr.decode())
    return int(found[2].replace(",", ""))


def main():
    options = measure.torch_options(__doc__, size={"choices": SIZES, "default": "small"}, texts=3)
    size = SIZES[options.size]
    report = {"machine": measure.machine(), "size": options.size, "blas": options.blas or "the system's"}
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        text_data(options, directory, size)
        for kind in ("gpt", "llama"):
            model = {**size, "hidden": HIDDEN[options.size, kind]}
            run = trained(options, directory, kind, model)
            peer = [word for key, value in model.items() for word in (f"--{key}", value)]
            for mode, (theirs, ours) in MODES.items():
                rates = {"torch": [], "strata": []}
                for _ in range(options.rounds):
                    rates["torch"].append(measure.torch_result(options, "--model", kind, "--texts", options.texts, *peer, *theirs)["tokens_per_second"])
                    rates["strata"].append(strata_rate(options, run, [f"--tokens={size['context'] - 1}", f"--samples={options.texts}", *ours]))
                report[f"{kind} {mode}"] = {**rates, "ratio": round(statistics.median(rates["strata"]) / statistics.median(rates["torch"]), 2),
                                            "ratio_of_fastest": round(max(rates["strata"]) / max(rates["torch"]), 2)}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
