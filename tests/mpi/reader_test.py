"""io/python/strata_reader.py reads what the executable writes: weights in a forward pass of PyTorch give the loss that
`strata evaluate` prints."""

import json
import pathlib
import re
import shutil
import sys

import h5py
import numpy as np

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}; Debian's package is python3-torch")
    sys.exit(77)

import harness
import language

ROOT = pathlib.Path(__file__).parents[2]
sys.path += [str(ROOT / "io/python"), str(ROOT / "tests/reference")]
import strata_reader  # noqa: E402
from torch_transformer import Model, Transformer  # noqa: E402

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
GPT = Transformer(width=32, heads=4, kv_heads=4, hidden=128, blocks=2, vocabulary=26, context=16, llama=False)
LLAMA = Transformer(width=32, heads=8, kv_heads=4, hidden=48, blocks=2, vocabulary=26, context=16, llama=True)


def name_in_torch(name):
    """The name of tests/reference/torch_transformer.py for one of strata's."""
    name = name.removeprefix("embedding.").replace("norm.weight", "norm.gain")
    block = re.match(r"blocks\.(\d+)\.(attention|mlp)\.", name)
    if not block:
        return name
    number = 2 * int(block[1]) + (block[2] == "mlp")
    return f"blocks.{number}.{name[block.end():]}"


class Reader(language.LanguageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test = cls()
        random = np.random.default_rng(3)
        labels = random.integers(0, 3, 60300)
        cls.bytes = (random.integers(0, 100, (60300, 20)) + 50 * labels[:, None]).astype(np.uint8)
        cls.labels = labels
        test.import_arrays("classes", cls.bytes, labels, "60000,300", "--classes=3", "--shard-mib=1")
        cls.mlp = test.write_config("mlp.ini", harness.config_text(
            ["dense 16 relu", "dense 3"], batch={"global": 20, "micro": 5},
            optimizer={"kind": "sgd", "momentum": 0.9, "learning_rate": 0.05}, train={"steps": 4}))

    def assert_loss_of(self, run, loss, dtype):
        finished = self.alone("evaluate", run, expect=harness.DONE)
        printed = float(re.search(r"loss (\S+),", finished.text)[1])
        self.assertLess(abs(loss.item() - printed), TOLERANCE[dtype] * printed, finished.text)

    def test_transformers(self):
        for name, transformer in (("gpt", GPT), ("llama", LLAMA)):
            for dtype in TOLERANCE:
                with self.subTest(model=name, dtype=dtype):
                    run = f"{name}-{dtype}"
                    settings = ["--model.dropout=0", f"--numerics.dtype={dtype}", "--train.evaluate_batches=0"]
                    settings += [*language.LLAMA, "--model.hidden=48"] if transformer.llama else []
                    self.train(self.config, (1, 2, 2) if dtype == "float64" else (1, 1, 1), run, *settings)
                    model = Model(transformer).to(getattr(torch, dtype))
                    weights = strata_reader.state_dict(self.directory / run)
                    self.assertEqual({tensor.dtype for tensor in weights.values()}, {getattr(torch, dtype)})
                    model.load_state_dict({name_in_torch(name): tensor for name, tensor in weights.items()})
                    with strata_reader.Dataset(self.directory / "text", "test") as data:
                        inputs, targets = map(torch.from_numpy, data.blocks(16))
                    with torch.no_grad():
                        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
                    self.assert_loss_of(run, loss, dtype)

    def test_a_multilayer_perceptron(self):
        for dtype, normalise in (("float64", "standard"), ("float32", "auto")):
            with self.subTest(dtype=dtype):
                run = f"mlp-{dtype}"
                self.train(self.mlp, (2, 1, 1), run, f"--numerics.dtype={dtype}", f"--data.normalise={normalise}")
                with strata_reader.Checkpoint(self.directory / run) as checkpoint:
                    how, data = checkpoint.metadata["identity"]["data.normalise"], checkpoint.metadata["data"]
                    weights = strata_reader.state_dict(checkpoint)
                    self.assertEqual(set(strata_reader.state_dict(checkpoint, "optimizer/momentum/")), set(weights))
                with strata_reader.Dataset(self.directory / "classes/test.h5") as test:
                    x = torch.from_numpy(strata_reader.normalised(
                        test.inputs, how, data["mean"], data["deviation"], dtype))
                    targets = torch.from_numpy(test.targets[()])
                y = (x @ weights["dense1.weight"].T + weights["dense1.bias"]).relu()
                y = y @ weights["dense2.weight"].T + weights["dense2.bias"]
                self.assert_loss_of(run, torch.nn.functional.cross_entropy(y, targets), dtype)

    def test_a_convolutional_network(self):
        random = np.random.default_rng(4)
        labels = random.integers(0, 3, 300)
        images = (random.integers(0, 99, (300, 2, 6, 6)) + 50 * labels[:, None, None, None]).astype(np.uint8)
        self.import_arrays("images", images, labels, "200,100", "--classes=3")
        config = self.write_config("cnn.ini", harness.config_text(
            ["conv 4 3 padding=same", "batch_norm relu", "flatten", "dense 3"], data="images",
            batch={"global": 20, "micro": 5}, numerics={"dtype": "float64"}, train={"steps": 20}))
        self.train(config, (2, 2, 1), "cnn", "--data.normalise=standard")
        with strata_reader.Dataset(self.directory / "images", "test") as test:
            x = torch.from_numpy(strata_reader.normalised(test.inputs, "standard", test.mean, test.deviation, "float64"))
            targets = torch.from_numpy(test.targets[()])
        w = strata_reader.state_dict(self.directory / "cnn")
        f = torch.nn.functional
        y = f.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding="same")
        y = f.batch_norm(y, *(w[f"batch_norm1.{name}"] for name in ("running_mean", "running_var", "weight", "bias")))
        y = y.relu().flatten(1) @ w["dense1.weight"].T + w["dense1.bias"]
        self.assert_loss_of("cnn", f.cross_entropy(y, targets), "float64")

    def test_data_sets(self):
        with strata_reader.Dataset(self.directory / "classes") as train:
            self.assertGreater(len(train.file["shards/file"]), 1)
            self.assertTrue(np.array_equal(train.inputs, self.bytes[:60000]))
            self.assertTrue(np.array_equal(train.targets, self.labels[:60000]))
            self.assertEqual((len(train), train.classes, train.class_names, train.column_names), (60000, 3, [], []))
            np.testing.assert_allclose(train.mean, self.bytes[:60000].mean(0), rtol=1e-12)
            np.testing.assert_allclose(train.deviation, self.bytes[:60000].std(0), rtol=1e-12)
        text = language.text(300) + "é\n"
        gpt2 = pathlib.Path(harness.os.environ.get("STRATA_DATA_DIR", "/nowhere")) / "gpt2-bpe"
        for tokenizer in ("chars", "bytes", "gpt2"):
            files = [f"--encoder={gpt2}/encoder.json", f"--merges={gpt2}/vocab.bpe", "--separator=off"]
            files = files if tokenizer == "gpt2" else []
            if files and not gpt2.is_dir():
                continue
            with self.subTest(tokenizer=tokenizer):
                self.import_text(tokenizer, text, "--split=1.0", *files, tokenizer=tokenizer)
                with strata_reader.Dataset(self.directory / tokenizer) as data:
                    self.assertEqual(data.decode(data.tokens), text)
                    if not files:
                        self.assertTrue(np.array_equal(data.encode(text), data.tokens))
                    with self.assertRaisesRegex(strata_reader.ReaderError, "token ids"):
                        data.decode([data.vocabulary])

    def test_tokens_of_characters(self):
        for number, (options, text) in enumerate([({}, "a b"), ({"prepend_scheme": "never"}, " a b"), ({"add_prefix_space": False}, " a b")]):
            metaspace = {"type": "Metaspace", "replacement": "▁", **options}
            tokens = [["<unk>", 0.0], ["▁", -1.0], ["a", -1.0], ["b", -1.0], ["▁b", -1.5]]
            (self.directory / "unigram.json").write_text(json.dumps(
                {"model": {"type": "Unigram", "unk_id": 0, "vocab": tokens}, "pre_tokenizer": metaspace, "decoder": metaspace}))
            with self.subTest(options):
                self.import_text(f"pieces-{number}", text, "--split=1.0", "--separator=off", tokenizer="unigram.json")
                with strata_reader.Dataset(self.directory / f"pieces-{number}") as data:
                    self.assertEqual((data.tokenizer, data.decode(data.tokens)), ("unigram", text))

    def test_errors_say_what_is_wrong(self):
        self.train(self.config, (1, 1, 1), "whole")
        newest = harness.checkpoints(self.directory / "whole")[-1]

        def copy(change):
            def attempt():
                shutil.rmtree(self.directory / "damaged", ignore_errors=True)
                shutil.copytree(newest, self.directory / "damaged")
                change(self.directory / "damaged")
                strata_reader.Checkpoint(self.directory / "damaged")

            return attempt

        def of_an_earlier_version(directory, version=2):
            (directory / "master.manifest").unlink()
            with h5py.File(directory / "master.h5", "r+") as master:
                master.attrs["version"] = version
                del master.attrs["manifest"]
            return directory

        def without_manifest(directory):
            (of_an_earlier_version(directory) / "part-00000.h5").unlink()

        def without_hdf5(directory):
            (directory / "master.manifest").unlink()
            (directory / "master.h5").write_text("no HDF5")

        def other_metadata(directory):
            with h5py.File(of_an_earlier_version(directory) / "master.h5", "r+") as master:
                master.attrs["step"] = 7

        def tensor():
            with strata_reader.Checkpoint(self.directory / "whole") as checkpoint:
                return checkpoint["weights/dense9.weight"]

        for words, attempt in (
                ("part-00000.h5 is missing", copy(lambda at: (at / "part-00000.h5").unlink())),
                ("part-00000.h5 is missing", copy(without_manifest)),
                ("bytes, expected", copy(lambda at: harness.os.truncate(at / "part-00000.h5", 5000))),
                ("master.manifest is missing", copy(lambda at: (at / "master.manifest").unlink())),
                ("no complete manifest", copy(lambda at: (at / "master.manifest").write_text("strata-manifest 1\n"))),
                ("is damaged", copy(lambda at: (at / "master.manifest").write_text(""))),
                ("cannot be opened as HDF5", copy(without_hdf5)),
                ("has version 9", copy(lambda at: of_an_earlier_version(at, 9))),
                ("metadata do not match their checksum", copy(other_metadata)),
                ("nor master.h5", copy(lambda at: (at / "master.h5").unlink())),
                ("does not exist", lambda: strata_reader.Checkpoint(self.directory / "nowhere")),
                ("format strata-dataset, expected strata-checkpoint",
                 lambda: strata_reader.Checkpoint(self.directory / "text/train.h5")),
                ("does not exist", lambda: strata_reader.Dataset(self.directory / "text", "validation")),
                ("no tensor weights/dense9", tensor)):
            with self.subTest(words=words), self.assertRaisesRegex(strata_reader.ReaderError, words):
                attempt()

    def test_damage_is_found_before_it_is_used(self):
        self.train(self.config, (1, 1, 1), "once", "--checkpoint.every=0")
        [whole] = harness.checkpoints(self.directory / "once")

        def flip(path, payload):
            """A bit of the first file, in its first range of payload or before it."""
            copied = self.directory / "flipped"
            shutil.rmtree(copied, ignore_errors=True)
            shutil.copytree(path.parent, copied)
            line = next(line for line in path.with_suffix(".manifest").read_text().splitlines() if "-00000.h5" in line)
            name, begin = line.split()[0], int(line.split()[3].split("-")[0])
            with open(copied / name, "r+b") as file:
                file.seek(begin + 3 if payload else begin - 3)
                byte = file.read(1)[0]
                file.seek(-1, 1)
                file.write(bytes([byte ^ 0x40]))
            return copied

        with self.assertRaisesRegex(strata_reader.ReaderError, "part-00000.h5 is damaged: its header"):
            strata_reader.Checkpoint(flip(whole / "master.h5", payload=False))
        with strata_reader.Checkpoint(flip(whole / "master.h5", payload=True)) as checkpoint:
            with self.assertRaisesRegex(strata_reader.ReaderError, "part-00000.h5 is damaged: a slice of"):
                strata_reader.state_dict(checkpoint, "")
        data = strata_reader.Dataset(flip(self.directory / "classes/train.h5", payload=True))
        self.assertTrue(np.array_equal(data.inputs[[2, 700]], self.bytes[[2, 700]]))
        self.assertTrue(np.array_equal(data.inputs[-1], self.bytes[59999]))
        self.assertTrue(np.array_equal(data.inputs[5:9, 3], self.bytes[5:9, 3]))
        for key in (0, slice(0, 1), slice(1, None, -1), ..., (), [9, 0], (0, 5), np.arange(60000) < 4):
            with self.assertRaisesRegex(strata_reader.ReaderError, "inputs from row 0 of"):
                data.inputs[key]
        text = strata_reader.Dataset(flip(self.directory / "text/train.h5", payload=True))
        self.assertEqual(len(text.tokens[5000:5100]), 100)
        for read in (lambda: text.tokens[4095], lambda: text.blocks(16), lambda: np.asarray(text.tokens)):
            with self.assertRaisesRegex(strata_reader.ReaderError, "tokens from row 0 of"):
                read()

    def test_the_newest_checkpoint(self):
        self.train(self.config, (1, 1, 1), "several", "--checkpoint.every=1", "--checkpoint.keep=3")
        root = self.directory / "several/checkpoints"
        for step, change in ((3, lambda: None),
                             (3, lambda: (root / "step-00000003").rename(root / ".step-00000003.replaced")),
                             (2, lambda: (root / ".step-00000003.replaced").rename(root / ".step-00000003.deleted"))):
            change()
            with strata_reader.Checkpoint(self.directory / "several") as checkpoint:
                self.assertEqual(checkpoint.step, step)
        with strata_reader.Checkpoint(root / "step-00000001") as checkpoint:
            expected = harness.tensors(root / "step-00000001")
            del expected["text/characters"]
            self.assertEqual(checkpoint.names(), sorted(expected))
            self.assertEqual(checkpoint.decode(checkpoint.encode("amber")), "amber")
            self.assertTrue(all(np.array_equal(checkpoint[name], expected[name]) for name in expected))


if __name__ == "__main__":
    harness.main()
