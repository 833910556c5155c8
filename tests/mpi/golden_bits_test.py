"""Short runs give the digits that golden_bits.json records for each version of oneDNN and class of instruction sets.

With --record those of the version and the CPU at hand are written anew; those of others are kept. A gradient norm that is null
has not been recorded since norms are added in a tree; the losses are those recorded before.
"""

import hashlib
import json
import pathlib
import re
import sys

import numpy as np

import harness
import language

RECORD = pathlib.Path(__file__).with_name("golden_bits.json")

GPT = harness.config_text(
    model={"preset": "gpt", "blocks": 2, "width": 128, "heads": 4, "context": 64, "dropout": 0.1},
    data={"train": "text/train.h5"}, batch={"global": 16, "micro": 4},
    numerics={"lanes": 2, "shards": 2},
    optimizer={"kind": "adamw", "learning_rate": 0.003, "clip_norm": 1}, train={"steps": 4},
    run={"device": "cpu"})

CONVNET = harness.config_text(
    ["conv 32 3 relu padding=same", "batch_norm", "conv 64 3 relu stride=2", "max_pool 2",
     "flatten", "dense 10"],
    data={"train": "images/train.h5"}, batch={"global": 32, "micro": 8},
    numerics={"lanes": 2, "shards": 1},
    optimizer={"kind": "sgd", "learning_rate": 0.05, "momentum": 0.9}, train={"steps": 4},
    run={"device": "cpu"})

# Of each architecture, from the lowest.
CLASSES = [["avx2", "avx512", "avx512_bf16", "amx"], ["neon", "sve"]]
RUNS = [(model, dtype) for model in ("gpt", "convnet") for dtype in ("float32", "bfloat16")]


def stream(name, count):
    """Bytes that no version of Python or NumPy changes."""
    return hashlib.shake_256(name.encode()).digest(count)


class GoldenBits(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test = cls()
        words = [language.WORDS[(step + 3 * before) % len(language.WORDS)]
                 for before, step in zip(stream("order", 3000), stream("choice", 3000))]
        (cls.directory / "text.txt").write_text(" ".join([*language.WORDS, *words]))
        test.import_data("--format=text", "--tokenizer=chars", "--files=text.txt",
                         "--output=text")
        samples = 128
        images = np.frombuffer(stream("images", samples * 16 * 16 * 3), np.uint8)
        test.import_arrays("images", images.reshape(samples, 3, 16, 16),
                           np.frombuffer(stream("labels", samples), np.uint8).astype(np.int64) % 10,
                           f"{samples - 28},28", "--classes=10")
        cls.configs = {"gpt": test.write_config("gpt.ini", GPT),
                       "convnet": test.write_config("convnet.ini", CONVNET)}
        facts = dict(line.split(": ", 1) for line in test.alone("--version").text.splitlines()
                     if ": " in line)
        cls.version, cls.own_code = facts["oneDNN"], facts["own code"]
        native = facts["instruction set"]
        cls.classes = next(classes[:classes.index(native) + 1] for classes in CLASSES if native in classes)

    def digits(self, model, dtype, isa):
        """Loss and gradient norm of each step, as they stand in the metrics."""
        run = f"{model}-{dtype}-{isa}"
        self.alone("train", self.configs[model], f"--run.dir={run}",
                   f"--numerics.dtype={dtype}", f"--numerics.isa={isa}", expect=harness.DONE)
        return [[row["loss"], row["grad_norm"]] for row in self.records(run, "train")]

    def all_digits(self):
        return {f"{model} {dtype}": {isa: self.digits(model, dtype, isa) for isa in self.classes}
                for model, dtype in RUNS}

    def test_digits(self):
        records = json.loads(RECORD.read_text())
        if self.version not in records:
            self.skipTest(f"the digits are recorded with oneDNN {', '.join(records)}, this is "
                          f"{self.version}; --record adds them")
        golden = records[self.version]
        for run, of_class in self.all_digits().items():
            for isa, digits in of_class.items():
                if isa not in golden["runs"][run]:
                    print(f"oneDNN {self.version} has no record of {isa}; --record adds it", file=sys.stderr)
                    continue
                recorded = golden["runs"][run][isa]
                digits = [[loss, norm if known[1] else None]
                          for (loss, norm), known in zip(digits, recorded, strict=True)]
                with self.subTest(run=run, isa=isa):
                    self.assertEqual(digits, recorded,
                                     f"recorded with {golden['own code']}, this is {self.own_code}")

    def test_classes_have_bits_of_their_own(self):
        for version, record in json.loads(RECORD.read_text()).items():
            for run in ("gpt float32", "convnet float32"):
                with self.subTest(version=version, run=run):
                    of_class = {isa: json.dumps([loss for loss, _ in digits])
                                for isa, digits in record["runs"][run].items()}
                    arm = {of_class.pop(isa) for isa in ("neon", "sve") if isa in of_class}
                    self.assertLessEqual(len(arm), 1, "the classes of Arm have the same bits")
                    self.assertTrue(arm.isdisjoint(of_class.values()))
                    narrow = of_class.pop("avx2")
                    self.assertEqual(len(set(of_class.values())), 1, "the AVX-512 classes have the same bits")
                    if run == "convnet float32":  # products of 3.12 have the bits of AVX-512
                        self.assertNotIn(narrow, of_class.values())
            # Some of these classes differ in norms alone.
            rounded = dict(record["runs"]["convnet bfloat16"])
            self.assertEqual(rounded.pop("sve", None), rounded.get("neon"), "the classes of Arm have the same bits")
            digits = [json.dumps(one) for one in rounded.values() if all(norm for _, norm in one)]
            self.assertEqual(len(set(digits)), len(digits), version)
            losses = [[loss for loss, _ in rounded[isa]] for isa in ("avx512", "avx512_bf16")]
            self.assertNotEqual(*losses, version)

    def record(self):
        runs = self.all_digits()
        records = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        old = records.get(self.version, {"runs": {}})["runs"]
        runs = {run: {**old.get(run, {}), **of_class} for run, of_class in runs.items()}
        records[self.version] = {"own code": self.own_code, "runs": runs}
        # A class a line.
        text = re.sub(r"(?<=[\[\],\"l])\s+(?=[\[\]n]|\"[0-9])", "", json.dumps(records, indent=1))
        RECORD.write_text(text + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        GoldenBits.setUpClass()
        GoldenBits().record()
        GoldenBits.doClassCleanups()
    else:
        harness.main()
