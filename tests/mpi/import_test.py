"""Imports that meet: two into one output, one in several ranks, and one after another that was killed at a random moment.
Tables as users have them, and io/python/strata_convert.py.

STRATA_TEST_KILLS sets the number of kills, STRATA_TEST_SEED the seed of the random moments.
"""

import gzip
import json
import os
import pathlib
import pickle
import random
import re
import signal
import struct
import subprocess
import sys
import time
import unittest
import zlib

import harness
from harness import DATA, DONE, USAGE

SCRIPTS = pathlib.Path(__file__).parents[2] / "io/python"
CONVERTER = SCRIPTS / "strata_convert.py"
sys.path.append(str(SCRIPTS))
import strata_reader  # noqa: E402


class Import(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name, seed in (("a", 1), ("b", 2)):
            (cls.directory / f"{name}.txt").write_bytes(random.Random(seed).randbytes(6 << 20))

    def start_import(self, name, output, *arguments):
        return harness.Job([harness.STRATA, "data", "import", "--format=text", "--tokenizer=bytes",
                            f"--files={name}.txt", "--shard-mib=1", f"--output={output}", *arguments],
                           self.directory)

    def assert_whole(self, output):
        """Every master there is fits its shards."""
        masters = sorted(path for path in (self.directory / output).glob("*.h5") if "-" not in path.name)
        for master in masters:
            self.alone("data", "inspect", "--verify", master, expect=DONE)
        return [master.name for master in masters]

    def unfinished(self, output):
        return [path.name for path in (self.directory / output).iterdir()
                if path.name.endswith(".partial") or "lock" in path.name]

    def test_two_at_once(self):
        for attempt in range(6):
            output = f"both-{attempt}"
            further = ["--overwrite"] if attempt % 2 else []
            jobs = [self.start_import(name, output, *further) for name in "ab"]
            finished = [job.wait(60) for job in jobs]
            codes = sorted(one.code for one in finished)
            # With --overwrite, the second may begin just after the first has ended.
            self.assertIn(codes, [[DONE, USAGE]] + ([[DONE, DONE]] if further else []),
                          [one.text for one in finished])
            for one in finished:
                if one.code == USAGE:
                    self.assertRegex(one.text, "is in use by host|already exists")
            self.assertEqual(self.assert_whole(output), ["test.h5", "train.h5"])
            self.assertEqual(self.unfinished(output), [])

    def test_the_second_is_named_the_first(self):
        first = self.start_import("a", "held")
        first.wait_until((self.directory / "held/import.lock").exists, 20)
        first.signal_all(signal.SIGSTOP)
        second = self.start_import("b", "held").wait(30)
        self.assert_refused(second, USAGE, "held is in use by host", "choose another --output")
        first.signal_all(signal.SIGCONT)
        self.assertEqual(first.wait(60).code, DONE)
        self.assertEqual(self.assert_whole("held"), ["test.h5", "train.h5"])

    def test_formats_of_one_process(self):
        csv = ["data", "import", "--format=csv", "--files=a.csv", "--label=b", "--split=1.0", "--output=rank"]
        (self.directory / "a.csv").write_text("a,b\n1,x\n2,y\n")
        refused = self.launch(2, *csv)
        self.assert_refused(refused, USAGE, "2 ranks were started", "start one rank for --format=csv")
        refused = self.alone("data", "import", "--format=text", "--tokenizer=bytes", "--files=-", "--ranks=2", "--output=rank")
        self.assert_refused(refused, USAGE, "the file -, standard input, is read by one", "name files")
        self.assertFalse((self.directory / "rank").exists())
        # A rank that mpirun starts alone is welcome.
        self.assertEqual(self.launch(1, *csv).code, DONE)

    def test_killed_at_random_moments(self):
        choice = random.Random(int(os.environ.get("STRATA_TEST_SEED", "1")))
        started = time.monotonic()
        self.start_import("a", "timed").wait(60)
        seconds = time.monotonic() - started
        killed = 0
        for _ in range(int(os.environ.get("STRATA_TEST_KILLS", "15"))):
            job = self.start_import("a", "killed", "--overwrite")
            time.sleep(choice.uniform(0.0, seconds))
            killed += job.running()
            job.signal_all(signal.SIGKILL)
            job.wait(30)
            if (self.directory / "killed").exists():
                self.assert_whole("killed")
        self.assertGreater(killed, 0)
        self.assertEqual(self.start_import("a", "killed", "--overwrite").wait(60).code, DONE)
        self.assertEqual(self.assert_whole("killed"), ["test.h5", "train.h5"])
        self.assertEqual(sorted(path.name for path in (self.directory / "killed").iterdir()),
                         sorted(path.name for path in (self.directory / "timed").iterdir()))

    def test_only_its_own_files_are_removed(self):
        output = self.directory / "kept"
        output.mkdir()
        for name in ("notes.partial", "train.txt.partial", "train-1.h5.bak", "train.h5.0123456789abcdef.partial",
                     "test-00007.h5.partial", "tokens.0123456789abcdef.partial"):
            (output / name).write_text("left")
        (output / "train-00000.h5.partial").symlink_to(self.directory / "precious")
        self.assertEqual(self.start_import("a", "kept").wait(60).code, DONE)
        self.assertEqual(sorted(path.name for path in output.iterdir() if path.suffix not in (".h5", ".manifest")),
                         ["notes.partial", "train-1.h5.bak", "train.txt.partial"])
        self.assertFalse((self.directory / "precious").exists())


class Ranks(harness.StrataTest):
    """Text and dialogues on several ranks: the same bytes on any number of them, and after kills."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        choice = random.Random(7)
        words = [f"word{i}" for i in range(500)] + ["é", "猫", "\n", '"', "\\", "😀"]
        lines = [json.dumps({"id": i, "text": " ".join(choice.choices(words, k=choice.randrange(1, 300)))},
                            ensure_ascii=i % 2 == 0) + "\n" for i in range(6000)]
        lines += choice.sample(lines, 200)  # documents that come again, in other pieces
        cls.lines = "".join(lines)
        (cls.directory / "in").mkdir()
        (cls.directory / "in/a.jsonl").write_text(cls.lines, encoding="utf-8")
        (cls.directory / "in/b.jsonl.gz").write_bytes(gzip.compress("".join(lines[:300:2]).encode()))
        (cls.directory / "in/c.jsonl").write_text('{"text": "small"}\n\n{"text": null}\n')

    @staticmethod
    def arguments(output, *further, tokenizer="chars", field="text", files="in"):
        return ["data", "import", "--format=text", f"--text-field={field}", f"--tokenizer={tokenizer}", f"--files={files}",
                "--shard-mib=1", f"--output={output}", *further]

    def bytes_of(self, output):
        return {path.name: path.read_bytes() for path in (self.directory / output).iterdir()}

    def test_the_same_bytes_on_any_number_of_ranks(self):
        rules = ["--deduplicate", "--min-characters=30", "--max-characters=1500", "--held-out=0.1"]
        for name, further in (("plain", {}), ("rules", {}), ("bytes", {"tokenizer": "bytes"})):
            options = rules if name == "rules" else []
            said = self.alone(*self.arguments(f"{name}-1", *options, **further), expect=DONE).text
            expected = self.bytes_of(f"{name}-1")
            self.assertIn("train-00001.h5", expected)
            for ranks, threads in ((2, 1), (5, 2)):
                output = f"{name}-{ranks}"
                again = self.launch(ranks, *self.arguments(output, *options, f"--threads={threads}", **further))
                self.assertEqual(again.code, DONE, again.text)
                self.assertTrue(self.bytes_of(output) == expected, output)
                self.assertEqual(re.sub(r"; [\d,]+ tokens/s", "", again.text).replace(output, f"{name}-1"),
                                 re.sub(r"; [\d,]+ tokens/s", "", said))
            if name == "rules":
                self.assertIn("which repeat an earlier one", said)
                self.assertIn("have fewer than 30 characters", said)
                self.assertIn("have more than 1,500 characters", said)
            self.alone("data", "inspect", "--verify", f"{name}-5/train.h5", f"{name}-5/test.h5", expect=DONE)

    def test_killed_and_started_again(self):
        self.alone(*self.arguments("whole"), expect=DONE)
        expected = self.bytes_of("whole")
        output = self.directory / "killed"
        kept = 0
        for ranks, again in ((1, 3), (2, 1), (3, 2)):
            job = harness.Job([harness.STRATA, *self.arguments("killed", "--overwrite", f"--ranks={ranks}")], self.directory)
            job.wait_until(lambda: len(list(output.glob("*.piece"))) > 3, 60)
            job.signal_all(signal.SIGKILL)
            job.wait(30)
            damaged = sorted(output.glob("*.piece"))
            if damaged:  # else the import was done
                with damaged[0].open("r+b") as file:
                    file.seek(100)
                    file.write(b"damage")
            finished = self.launch(again, *self.arguments("killed", "--overwrite"))
            self.assertEqual(finished.code, DONE, finished.text)
            found = re.search(r"(\d+) of \d+ pieces of the files were read before", finished.text)
            if found:
                kept += 1
                self.assertEqual(int(found[1]), len(damaged) - 1)
            self.assertTrue(self.bytes_of("killed") == expected, (ranks, again))
        self.assertGreater(kept, 0)
        # What another import has read counts for nothing, and goes.
        for setting in ({"tokenizer": "bytes"}, {"field": "id"}):
            (output / "tokens-0123456789abcdef.piece").write_bytes(b"old")
            finished = self.alone(*self.arguments("killed", "--overwrite", **setting))
            self.assertEqual(finished.code, DONE if "tokenizer" in setting else DATA, finished.text)
            self.assertNotIn("were read before", finished.text)
            self.assertEqual(list(output.glob("tokens*")), [])

    def test_pieces_of_another_frame_do_not_count(self):
        """Tokenizers of one vocabulary of which one begins each document with a token."""
        visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        hidden = [byte for byte in range(256) if byte not in visible]
        ids = {chr(byte if byte in visible else 256 + hidden.index(byte)): byte for byte in range(256)}
        single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        frame = {"type": "TemplateProcessing", "single": single, "pair": single,
                 "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}}
        tokenizers = []
        for name, processor in (("plain", None), ("framed", frame)):
            (self.directory / name).mkdir()
            tokenizers.append(f"{name}/tokenizer.json")
            (self.directory / tokenizers[-1]).write_text(json.dumps({
                "added_tokens": [{"id": 256, "content": "<s>", "special": True}], "post_processor": processor,
                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                "model": {"type": "BPE", "vocab": ids, "merges": []}}))
        self.alone(*self.arguments("frame", tokenizer=tokenizers[1]), expect=DONE)
        output = self.directory / "other-frame"
        job = harness.Job([harness.STRATA, *self.arguments("other-frame", tokenizer=tokenizers[0])], self.directory)
        job.wait_until(lambda: len(list(output.glob("*.piece"))) > 1, 60)
        job.signal_all(signal.SIGKILL)
        job.wait(30)
        finished = self.alone(*self.arguments("other-frame", "--overwrite", tokenizer=tokenizers[1]), expect=DONE)
        self.assertNotIn("were read before", finished.text)
        self.assertTrue(self.bytes_of("frame") == self.bytes_of("other-frame"))
        # A file that is given twice has pieces of its own.
        finished = self.alone("data", "import", "--format=text", "--text-field=text", "--tokenizer=bytes", "--output=twice",
                              "--files", "in/a.jsonl", "in/a.jsonl", expect=DONE)
        self.assertNotIn("were read before", finished.text)

    def test_one_message_for_a_bad_line(self):
        number = self.lines.count("\n") - 400
        for name, bad, says in (
                ("field", '{"txt": "no"}', "the object has no field 'text'; its fields are txt"),
                ("number", '{"text": 3}', "no text in the field 'text'"),
                ("cut", '{"text": "no', "the line is no JSON object"),
                ("escape", '{"text": "\\ud800"}', "the line is no JSON object"),
                ("list", '[{"text": "no"}]', "jq -c"),
                ("endless", '{"text": "' + "x" * (65 << 20), "the line does not end within 64.00 MiB"),
                ("bytes", '{"text": "\udcff"}', "its text is not UTF-8")):
            lines = self.lines.split("\n")
            lines[number - 1] = bad
            text = "\n".join(lines) + '\n{"txt": "another"}'
            (self.directory / "bad.jsonl").write_bytes(text.encode(errors="surrogateescape"))
            for ranks in (1, 3):
                refused = self.launch(ranks, *self.arguments("bad", files="bad.jsonl"))
                self.assert_refused(refused, DATA, f"bad.jsonl:{number}: ", says)
                self.assertEqual(len(refused.reports()), 1, refused.text)
                self.assertFalse((self.directory / "bad/train.h5").exists())
                self.assertEqual(list(self.directory.glob("bad/*")), [])


# What strata_convert.py uses of pyarrow, which Debian 12 lacks, and of datasets: rows are Python objects in a pickle.
PYARROW = """
import json, pickle, types

class ParquetFile:
    def __init__(self, path):
        rows, features = pickle.load(open(path, "rb"))
        self.rows = rows
        self.schema_arrow = types.SimpleNamespace(
            metadata={b"huggingface": json.dumps({"info": {"features": features}}).encode()} if features else None)

    def iter_batches(self):
        for first in range(0, len(self.rows), 2):
            yield types.SimpleNamespace(to_pylist=lambda: self.rows[first:first + 2])
"""
DATASETS = """
import pickle

class Split(list):
    features = {}

def load_from_disk(path):
    return {name: Split(rows) for name, rows in pickle.load(open(f"{path}/rows", "rb")).items()}
"""


class Tables(harness.StrataTest):
    def test_house_prices_and_standard_input(self):
        rows = [f"{i},{50 + i % 40},{('north', 'south')[i % 2]},{'NA' if i % 9 == 0 else i % 9},{20000 + 37 * i}"
                for i in range(300)]
        (self.directory / "prices.csv").write_text("\n".join(["Id;Area;Side;Age;Price", *rows]).replace(",", ";") + "\n")
        arguments = ["data", "import", "--format=csv", "--label=Price", "--ignore=Id", "--output=prices", "--overwrite"]
        refused = self.alone(*arguments, "--files=prices.csv")
        self.assert_refused(refused, DATA, "prices.csv:2: column 'Age': 'NA' is missing", "--missing=mean")
        self.assert_refused(self.alone(*arguments, "--files=prices.csv", "--missing=mean", "--split=90,10"), USAGE, "90%,10%")
        arguments += ["--missing=median", "--split=80%,20%"]
        finished = self.alone(*arguments, "--files=prices.csv", expect=DONE)
        self.assertIn("300 different whole numbers in 300 samples are taken as values", finished.text)
        shown = self.alone("data", "inspect", "prices/test.h5", "--verify", expect=DONE).text
        self.assertIn("label       Price\ncolumns     Area, Side (2 names), Age (missing: 4)\n", shown)
        self.assertIn("shuffled with seed 1", shown)
        with strata_reader.Dataset(self.directory / "prices") as prices:
            self.assertEqual([column[:2] for column in prices.table], [("Area", []), ("Side", ["north", "south"]), ("Age", [])])
            self.assertEqual(prices.table[2][2], 4)
        shards = {path.name: path.read_bytes() for path in (self.directory / "prices").glob("*-0*.h5")}
        with (self.directory / "prices.csv").open("rb") as file:
            # Slow enough for a line of progress, which only a terminal gets.
            piped = subprocess.run(["sh", "-c", '(sleep 0.6; gzip) | "$0" "$@"', harness.STRATA, *arguments, "--files=-"],
                                   stdin=file, cwd=self.directory, capture_output=True, text=True, timeout=60 * harness.LENIENCE)
        self.assertEqual((piped.returncode, piped.stderr), (DONE, ""))
        self.assertEqual(shards, {path.name: path.read_bytes() for path in (self.directory / "prices").glob("*-0*.h5")})

    def convert(self, *arguments, modules=(), code=0):
        for name, text in modules:
            path = self.directory / "modules" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        finished = subprocess.run(
            ["/usr/bin/python3", CONVERTER, *arguments], cwd=self.directory, capture_output=True, text=True, timeout=60 * harness.LENIENCE,
            env={**os.environ, "PYTHONPATH": str(self.directory / "modules") if modules else ""})
        self.assertEqual(finished.returncode, code, finished.stderr)
        return finished.stdout + finished.stderr

    def follow(self, said, *arguments):
        """Runs the command that the converter names."""
        command = re.search(r"next: strata (.*) --output=data/NAME", said)[1].split()
        return self.alone(*command, *arguments, expect=DONE)

    def test_parquet_and_hugging_face(self):
        modules = [("pyarrow/__init__.py", ""), ("pyarrow/parquet.py", PYARROW), ("datasets.py", DATASETS)]
        kinds = {"kind": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
        rows = [{"x": [i, 0.5], "flag": i % 2 == 0, "kind": i % 2, "note": None if i else "é"} for i in range(20)]
        (self.directory / "a.parquet").write_bytes(pickle.dumps((rows, kinds)))
        said = self.convert("a.parquet", "--test", "a.parquet", "--output=table", "--label=kind", modules=modules)
        self.assertEqual((self.directory / "table/train/data.jsonl").read_text(encoding="utf-8").splitlines()[0],
                         '{"x_0": 0, "x_1": 0.5, "flag": true, "kind": "cat", "note": "é"}')
        finished = self.follow(said, "--ignore=note", "--output=from-table")
        self.assertIn("20 training samples; from-table/test.h5: 20 test samples; 2 classes", finished.text)

        png = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
        chunks = [(b"IHDR", png), (b"IDAT", zlib.compress(b"\0abc")), (b"IEND", b"")]
        image = b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(data)) + name + data + struct.pack(
            ">I", zlib.crc32(name + data)) for name, data in chunks)
        pictures = [{"image": {"bytes": image, "path": None}, "label": f"c{i % 3}"} for i in range(6)]
        (self.directory / "saved").mkdir()
        (self.directory / "saved/dataset_dict.json").write_text("{}")
        (self.directory / "saved/rows").write_bytes(pickle.dumps({"train": pictures, "validation": pictures[:3]}))
        said = self.convert("saved", "--output=pictures", modules=modules)
        finished = self.follow(said, "--output=from-pictures")
        self.assertIn("6 training samples; from-pictures/test.h5: 3 test samples; 3 classes", finished.text)

        self.assertIn("pictures/train is not empty", self.convert("saved", "--output=pictures", modules=modules, code=1))
        self.assertIn("pip install pyarrow", self.convert("a.parquet", "--output=no", code=1))


if __name__ == "__main__":
    unittest.main()
