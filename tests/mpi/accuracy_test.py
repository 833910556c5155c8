"""The first example of the manual on real data: MNIST, 10,000 images, four ranks.

The environment variable STRATA_DATA_DIR names a directory with the IDX files.
"""

import os
import pathlib
import re
import sys

import harness

# What nanoGPT publishes for the same setting is 1.88, over twenty random batches.
SHAKESPEARE_LOSS = 1.90
JOBS = pathlib.Path(__file__).resolve().parents[2] / "jobs"


def idx_file(pattern):
    found = sorted(pathlib.Path(os.environ["STRATA_DATA_DIR"]).rglob(pattern))
    return found[0] if found else None


class Accuracy(harness.StrataTest):
    def import_mnist(self):
        images, labels = idx_file("t10k-images-idx3-ubyte*"), idx_file("t10k-labels-idx1-ubyte*")
        if not images or not labels:
            self.skipTest("STRATA_DATA_DIR has no t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte")
        self.import_data("--format=idx", f"--images={images}", f"--labels={labels}",
                         "--split=8000,2000", "--order=file", "--output=data/mnist", "--overwrite")

    def test_defaults_train(self):
        """Nothing of the optimizer is set."""
        self.import_mnist()
        config = self.write_config("dense.ini", harness.config_text(["flatten", "dense 10"], data="data/mnist",
                                                                    train={"epochs": 1}))
        self.train(config, (1, 1), "dense")
        accuracy = float(self.records("dense", "evaluate")[-1]["accuracy"])
        print(f"one layer, one epoch, defaults: test accuracy {accuracy}", flush=True)
        self.assertGreater(accuracy, 0.88)

        self.import_shakespeare()
        config = self.write_config("gpt.ini", harness.config_text(
            data="data/shakespeare-char", model={"preset": "gpt", "blocks": 2, "width": 64, "heads": 4, "context": 32},
            train={"steps": 200, "evaluate_batches": 8}))
        self.train(config, (1, 1, 1), "gpt", limit=300)
        loss = float(self.records("gpt", "evaluate")[-1]["loss"])
        print(f"GPT of 2 blocks, 200 steps, defaults: test loss {loss}", flush=True)
        self.assertLess(loss, 2.6)

    def test_lenet_on_four_ranks(self):
        self.import_mnist()
        self.train(JOBS / "mnist-lenet.ini", (2, 2), "lenet", "--run.threads=1", limit=500)
        accuracy = [float(row["accuracy"]) for row in self.records("lenet", "evaluate")]
        print(f"test accuracies {accuracy}", flush=True)
        self.assertEqual(len(accuracy), 10)
        self.assertGreaterEqual(accuracy[-1], 0.98)

    def test_mnist_on_four_ranks(self):
        self.import_mnist()
        config = JOBS / "mnist-mlp.ini"
        self.train(config, (2, 2), "mnist", "--run.threads=1", limit=500)
        rows = [dict(row) for row in harness.metrics(self.directory / "mnist")]
        last = [row for row in rows if row["kind"] == "evaluate"][-1]
        self.assertEqual(last["step"], "1250")
        print(f"test accuracy {last['accuracy']}, loss {last['loss']}", flush=True)
        self.assertGreaterEqual(float(last["accuracy"]), 0.955)

        evaluated = self.alone("evaluate", config, "--run.dir=mnist", "--parallel.pipeline=1", expect=harness.DONE)
        found = re.search(r"step-00001250: loss (\S+), accuracy (\S+) %, macro F1 \S+, top-5 \S+ % "
                          r"over 2000 samples",
                          evaluated.text)
        self.assertIsNotNone(found, evaluated.text)
        self.assertEqual(float(found[1]), float(last["loss"]))
        self.assertEqual(found[2], f"{100 * float(last['accuracy']):.4f}")

    def import_shakespeare(self):
        text = sorted(pathlib.Path(os.environ["STRATA_DATA_DIR"]).rglob("input.txt"))
        if not text:
            self.skipTest("STRATA_DATA_DIR has no input.txt, Shakespeare's plays")
        self.import_data("--format=text", "--tokenizer=chars", f"--files={text[0]}",
                         "--split=0.9,0.1", "--output=data/shakespeare-char", "--overwrite")

    def test_characters_of_shakespeare(self):
        self.import_shakespeare()
        config = JOBS / "shakespeare-char.ini"
        self.train(config, (1, 1, 1), "plays", "--run.threads=1", limit=800)
        rows = [dict(row) for row in harness.metrics(self.directory / "plays")]
        loss = [float(row["loss"]) for row in rows if row["kind"] == "evaluate"][-1]
        print(f"loss {loss} of 20 batches of the test split", flush=True)
        self.assertLessEqual(loss, SHAKESPEARE_LOSS)
        made = self.alone("generate", config, "--run.dir=plays", "--prompt=ROMEO:", "--tokens=100", expect=harness.DONE)
        self.assertTrue(made.text.startswith("ROMEO:"), made.text)

        short = ["--train.steps=20", "--train.evaluate_every=0", "--run.threads=1"]
        self.train(config, (1, 1, 1), "plays-111", *short)
        for grid in [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)]:
            run = "plays-" + "".join(map(str, grid))
            self.train(config, grid, run, *short)
            self.assert_same_run("plays-111", run)


if __name__ == "__main__":
    if not os.environ.get("STRATA_DATA_DIR"):
        print("skipped: STRATA_DATA_DIR, the directory with the MNIST files, is not set")
        sys.exit(77)
    harness.main()
