"""strata predict: tables, arrays and pictures, on several numbers of ranks, against PyTorch."""

import csv
import json
import shutil

import h5py
import numpy as np

import harness

try:
    import cv2
except ImportError:
    cv2 = None
try:
    import torch
except ImportError:
    torch = None

NEAR = 1e-6


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


class Predict(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test = cls()
        random = np.random.default_rng(7)
        cls.numbers = random.normal(size=(90, 2)).round(3)
        cls.colours = random.choice(["red", "blue", "green"], 90)
        kinds = np.where(cls.numbers.sum(1) > 0, "above, far", "below")
        test.write_table("table.csv", ["a", "colour", "b", "kind"],
                         [(a, c, b, k) for (a, b), c, k in zip(cls.numbers, cls.colours, kinds)])
        test.import_data("--format=csv", "--files=table.csv", "--label=kind", "--split=80,10", "--output=table")
        test.train_on("table", ["dense 8 relu name=x", "tanh", "dense 2 name=y"], normalise="standard")

    def write_table(self, name, header, rows):
        with open(self.directory / name, "w", newline="") as file:
            csv.writer(file).writerows([header, *rows])

    def train_on(self, name, layers, *settings, **data):
        config = self.write_config(f"{name}.ini", harness.config_text(
            layers, data={"train": f"{name}/train.h5", "test": f"{name}/test.h5", **data}, batch={"global": 10, "micro": 5},
            train={"steps": 6}, optimizer={"kind": "adam", "learning_rate": 0.01}, numerics={"lanes": 2}))
        self.train(config, (1, 1), name, *settings)

    def predict(self, run, files, output, *options, ranks=1, expect=harness.DONE):
        return self.launch(ranks, "predict", run, f"--files={files}", f"--output={output}", *options, expect=expect)

    def same_on_ranks(self, run, files, output, *options):
        self.predict(run, files, output, *options)
        first = (self.directory / output).read_bytes()
        for ranks in (2, 3, 5):
            self.predict(run, files, output, *options, ranks=ranks)
            self.assertEqual((self.directory / output).read_bytes(), first, f"{ranks} ranks")
        self.assertEqual(sorted(self.directory.glob(f"{output}*")), [self.directory / output])

    def torch_weights(self, run):
        if torch is None:
            self.skipTest("python3 has no torch")
        return {name.removeprefix("weights/"): torch.from_numpy(tensor) for name, tensor in
                harness.tensors(harness.checkpoints(self.directory / run)[-1]).items() if name.startswith("weights/")}

    def data_of(self, run):
        with h5py.File(harness.checkpoints(self.directory / run)[-1] / "master.h5") as master:
            return json.loads(master.attrs["metadata"])["data"]

    def test_a_table(self):
        """Columns in another order, with further ones; a name of its own in the output's first column."""
        order = np.random.default_rng(8).permutation(90)[:23]
        self.write_table("new.csv", ["note", "b", "colour", "ID", "a"],
                         [("x", self.numbers[i, 1], self.colours[i], f"n\"{i}", self.numbers[i, 0]) for i in order])
        finished = self.predict("table", "new.csv", "out.csv")
        self.assertIn("left out, for the model does not take them: the column note", finished.text)
        self.same_on_ranks("table", "new.csv", "out.csv")
        header, *rows = rows_of(self.directory / "out.csv")
        self.assertEqual(header, ["id", "class", "probability of above, far", "probability of below"])
        self.assertEqual([row[0] for row in rows], [f"n\"{i}" for i in order])
        given = np.array([row[2:] for row in rows], dtype=float)
        self.assertEqual([row[1] for row in rows], [header[2 + best][len("probability of "):] for best in given.argmax(1)])
        weights, data = self.torch_weights("table"), self.data_of("table")
        self.assertEqual(data["column_names"][:-1], ["a", "colour=blue", "colour=green", "colour=red", "b"])
        inputs = torch.tensor([[self.numbers[i, 0], *(self.colours[i] == c for c in ("blue", "green", "red")), self.numbers[i, 1]]
                               for i in order], dtype=torch.float32)
        inputs = (inputs - torch.tensor(data["mean"]).float()) / torch.tensor(data["deviation"]).float()
        hidden = torch.tanh(torch.relu(torch.nn.functional.linear(inputs, weights["x.weight"], weights["x.bias"])))
        expected = torch.softmax(torch.nn.functional.linear(hidden, weights["y.weight"], weights["y.bias"]), 1)
        np.testing.assert_allclose(given, expected.numpy(), atol=NEAR)
        # The same rows as objects; without a column of ids their numbers.
        (self.directory / "new.jsonl").write_text("".join(
            json.dumps({"a": self.numbers[i, 0], "b": self.numbers[i, 1], "colour": self.colours[i]}) + "\n" for i in order))
        self.predict("table", "new.jsonl", "lines.csv")
        lines = rows_of(self.directory / "lines.csv")[1:]
        self.assertEqual([row[1:] for row in lines], [row[1:] for row in rows])
        self.assertEqual([row[0] for row in lines], [str(i) for i in range(23)])
        # Of two files, one with ids: the other's rows have their numbers. A directory of the output's name is left alone.
        self.write_table("plain.csv", ["a", "colour", "b"], [(0.5, "red", 1)] * 3)
        self.predict("table", "plain.csv", "both.csv", "--files=new.csv")
        self.assertEqual([row[0] for row in rows_of(self.directory / "both.csv")[1:]],
                         ["0", "1", "2", *(row[0] for row in rows)])
        kept = self.directory / "both.csv.part" / "kept"
        kept.parent.mkdir()
        kept.touch()
        self.assert_refused(self.alone("predict", "table", "--files=new.csv", "--output=both.csv"), harness.USAGE, "both.csv.part")
        self.assertTrue(kept.exists())

    def test_arrays_of_values(self):
        random = np.random.default_rng(9)
        inputs = random.normal(size=(70, 3))
        values = 1e5 * np.stack([3 + inputs.sum(1), inputs[:, 1]], 1)
        self.import_arrays("values", inputs.astype(np.float32), values, "60,10")
        self.train_on("values", ["dense 6 relu name=x", "dropout 0.1", "dense 2 name=y"])
        np.save(self.directory / "new.npy", inputs)  # float64: converted
        self.same_on_ranks("values", "new.npy", "out.npy")
        given = np.load(self.directory / "out.npy")
        self.predict("values", "new.npy", "out.csv")
        header, *rows = rows_of(self.directory / "out.csv")
        self.assertEqual(header, ["id", "value 0", "value 1"])
        np.testing.assert_allclose(np.array(rows, dtype=float)[:, 1:], given, rtol=1e-8)
        weights, data = self.torch_weights("values"), self.data_of("values")
        hidden = torch.relu(torch.nn.functional.linear(torch.from_numpy(inputs).float(), weights["x.weight"], weights["x.bias"]))
        expected = torch.nn.functional.linear(hidden, weights["y.weight"], weights["y.bias"]).double().numpy()
        deviation, mean = np.array(data["target_deviation"]), np.array(data["target_mean"])
        np.testing.assert_allclose((given - mean) / deviation, expected, atol=NEAR)

    def test_pictures(self):
        if cv2 is None:
            self.skipTest("python3 has no cv2 (python3-opencv)")

        def write(picture, path):
            cv2.imwrite(str(self.directory / path), picture[:, :, ::-1])
        random = np.random.default_rng(10)
        for folder in ("in/cat", "in/dog", "new/more"):
            (self.directory / folder).mkdir(parents=True)
        pictures = random.integers(0, 256, (24, 6, 8, 3)).astype(np.uint8)
        for i, picture in enumerate(pictures):
            write(picture, f"in/{('cat', 'dog')[i % 2]}/{i:02}.png")
        for i in range(5):
            write(pictures[i], f"new/{'more/' if i == 4 else ''}{i}.png")
        self.import_data("--format=images", "--files=in", "--split=20,4", "--output=pictures")
        self.train_on("pictures", ["conv 4 3 relu", "flatten", "dense 2"])
        self.same_on_ranks("pictures", "new", "out.csv")
        header, *rows = rows_of(self.directory / "out.csv")
        self.assertEqual(header[1:], ["class", "probability of cat", "probability of dog"])
        self.assertEqual([row[0] for row in rows], ["new/0.png", "new/1.png", "new/2.png", "new/3.png", "new/more/4.png"])
        np.save(self.directory / "same.npy", pictures[:5].transpose(0, 3, 1, 2))
        self.predict("pictures", "same.npy", "same.csv")
        self.assertEqual([row[1:] for row in rows_of(self.directory / "same.csv")], [header[1:], *(row[1:] for row in rows)])
        write(np.repeat(np.repeat(pictures[0], 2, 0), 2, 1), "new/large.png")
        self.assert_refused_by(harness.DATA, "pictures", "new", "large.png", "12 x 16", "6 x 8", "--resize=HxW")
        self.predict("pictures", "new", "resized.csv", "--resize=6x8")
        self.assertEqual(len(rows_of(self.directory / "resized.csv")), 7)

    def assert_refused_by(self, code, run, files, *words, options=()):
        finished = self.predict(run, files, "no.csv", *options, expect=code)
        reports = [line for line in finished.text.splitlines() if "strata: " in line or line.startswith("  ")]
        for word in words:
            self.assertIn(word, "\n".join(reports))
        self.assertEqual(list(self.directory.glob("no.csv*")), [])

    def test_what_it_refuses(self):
        header = ["a", "colour", "b"]
        self.write_table("missing.csv", header[:2], [(1, "red")])
        self.write_table("unknown.csv", header, [(1, "red", 2), (1, "pink", 2)])
        self.write_table("text.csv", header, [("one", "red", 2)])
        self.write_table("empty.csv", header, [])
        np.save(self.directory / "wide.npy", np.zeros((3, 7)))
        for code, files, words, options in (
                (harness.DATA, "missing.csv", ["no column 'b'", "in any order"], ()),
                (harness.DATA, "unknown.csv", ["unknown.csv:3", "'pink'", "none of the names"], ()),
                (harness.DATA, "text.csv", ["text.csv:2", "'one' is not a number"], ()),
                (harness.DATA, "empty.csv", ["no rows"], ()),
                (harness.DATA, "wide.npy", ["samples of 7", "takes 5"], ()),
                (harness.DATA, "absent.csv", ["absent.csv"], ()),
                (harness.USAGE, "table.h5", ["does not say what it holds", "--format="], ()),
                (harness.USAGE, "table.csv", ["no such column", "'a'"], ("--id=aa",))):
            with self.subTest(files=files):
                self.assert_refused_by(code, "table", files, *words, options=options)
        self.assert_refused(self.alone("predict", "table", "--files=table.csv", "--output=no.txt"), harness.USAGE, ".csv or .npy")
        self.assert_refused(self.alone("predict", "table", "--files=table.csv"), harness.USAGE, "--output")
        for ranks in 1, 2:
            self.assert_refused(self.predict("table", "table.csv", "./table.csv", ranks=ranks, expect=harness.USAGE), harness.USAGE,
                                "--output=./table.csv is the file of --files")
        (self.directory / "tables").mkdir()
        shutil.copy(self.directory / "table.csv", self.directory / "tables")
        self.assert_refused(self.alone("predict", "table", "--files=tables", "--format=csv", "--output=tables/out.csv"), harness.USAGE,
                            "among the files of tables")
        (self.directory / "new-run").mkdir()
        shutil.copy(self.directory / "table" / "config.ini", self.directory / "new-run")
        self.assert_refused_by(harness.CHECKPOINT, "new-run", "table.csv", "there is no checkpoint in new-run/checkpoints")

    def test_a_language_model(self):
        (self.directory / "text.txt").write_text("so much depends upon a red wheel barrow\n" * 20)
        self.import_data("--format=text", "--files=text.txt", "--tokenizer=chars", "--split=90%,10%", "--output=text")
        self.train_on("text", ["embedding 8 positions=8", "attention 2", "head"], "--model.context=8")
        self.assert_refused_by(harness.USAGE, "text", "table.csv", "language model", "strata generate")


if __name__ == "__main__":
    harness.main()
