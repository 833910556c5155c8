#!/usr/bin/env python3
"""How fast text becomes a data set.

    bench/import_rates.py build/release/bin/strata TEXT --encoder encoder.json --merges vocab.bpe

Makes JSON lines of random stretches of a text, with other fields beside it, and imports them on one
thread as bytes and with GPT-2's byte pairs, and on several ranks. Prints megabytes of text a second
of processor time of one core, and a second; the best of some rounds. Compares the data sets.
"""
import argparse, hashlib, json, os, pathlib, random, shutil, subprocess, tempfile, time

import measure


def write_lines(path, text, megabytes):
    """JSON lines with so many megabytes of text; gives the bytes of text."""
    draw = random.Random(1)
    written = number = 0
    with path.open("w", encoding="utf-8") as file:
        while written < megabytes * 1e6:
            length = draw.randrange(200, 6000)
            first = draw.randrange(max(1, len(text) - length))
            document = text[first:first + length]
            line = {"id": number, "meta": {"url": f"https://example.org/{number}", "score": draw.random()}, "text": document}
            file.write(json.dumps(line, ensure_ascii=number % 2 == 0) + "\n")
            written += len(document.encode())
            number += 1
    return written


def run(options, directory, tokenizer, ranks):
    """Processor seconds, seconds, and a hash of the data set of an import."""
    output = directory / "out"
    shutil.rmtree(output, ignore_errors=True)
    command = [options.strata, "data", "import", "--format=text", "--text-field=text", f"--files={directory / 'lines.jsonl'}",
               *tokenizer, "--threads=1", f"--ranks={ranks}", f"--output={output}"]
    before, began = os.times(), time.monotonic()
    subprocess.run(command, check=True, env=measure.environment(), stdout=subprocess.DEVNULL)
    seconds, after = time.monotonic() - began, os.times()
    bits = hashlib.sha256()
    for path in sorted(output.iterdir()):
        bits.update(path.read_bytes())
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used, seconds, bits.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("strata", type=os.path.abspath)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--encoder", required=True, type=os.path.abspath)
    parser.add_argument("--merges", required=True, type=os.path.abspath)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where to write; default: the system's for temporary files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = pathlib.Path(name)
        megabytes = write_lines(directory / "lines.jsonl", options.text.read_text(encoding="utf-8"), options.megabytes) / 1e6
        pairs = ["--tokenizer=gpt2", f"--encoder={options.encoder}", f"--merges={options.merges}"]
        for kind, tokenizer in (("bytes", ["--tokenizer=bytes"]), ("byte pairs", pairs)):
            sets = set()
            for ranks in options.ranks:
                runs = [run(options, directory, tokenizer, ranks) for _ in range(options.rounds)]
                sets.update(bits for _, _, bits in runs)
                used, seconds = (min(values) for values in list(zip(*runs))[:2])
                print(f"{kind:10}  {ranks} rank{'s' if ranks > 1 else ' '}  {megabytes / used:6.1f} MB per core-second"
                      f"  {megabytes / seconds:6.1f} MB/s", flush=True)
            if len(sets) != 1:
                raise SystemExit(f"{kind}: the data sets of {options.ranks} ranks differ")


if __name__ == "__main__":
    main()
