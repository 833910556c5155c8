"""Targets in standard units and the figures of evaluate, against NumPy's formulas."""

import re

import numpy as np

import harness

FIGURES = r"loss (\S+), MAE (\S+), RMSE (\S+), R2 (\S+) over (\d+) (?:of the \d+ )?samples"


def relu(values):
    return np.maximum(values, 0)


class Figures(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test = cls()
        random = np.random.default_rng(5)
        cls.inputs = random.normal(size=(900, 6)).astype(np.float32)
        # As prices are: far from 0, each target in a unit of its own.
        x = cls.inputs.astype(float)
        cls.values = np.stack([250000 + 80000 * np.sin(x[:, 0]) + 30000 * x[:, 1], 0.002 + 0.0005 * x[:, 2]], axis=1)
        test.import_arrays("values", cls.inputs, cls.values, "800,100")
        cls.config = test.write_config("values.ini", harness.config_text(
            ["dense 24 relu name=a", "dense 2 name=b"], data="values", batch={"global": 32, "micro": 8},
            numerics={"lanes": 4}, optimizer={"kind": "adam", "learning_rate": 0.01},
            train={"epochs": 6, "evaluate_every": 50, "evaluate_batches": 1}))
        test.train(cls.config, (1, 1), "run")

    def figures(self, *arguments, ranks=1):
        text = self.launch(ranks, "evaluate", *arguments, expect=harness.DONE).text
        found = re.search(FIGURES, text)
        self.assertIsNotNone(found, text)
        return found.groups()

    def predictions(self, run, inputs, mean, deviation):
        weights = harness.tensors(harness.checkpoints(self.directory / run)[-1])
        hidden = relu(inputs.astype(float) @ weights["weights/a.weight"].T + weights["weights/a.bias"])
        return (hidden @ weights["weights/b.weight"].T + weights["weights/b.bias"]) * deviation + mean

    def test_figures_of_values(self):
        train, test = self.values[:800], self.values[800:]
        given = self.predictions("run", self.inputs[800:], train.mean(0), train.std(0))
        error = given - test
        r2 = np.mean(1 - (error ** 2).sum(0) / ((test - test.mean(0)) ** 2).sum(0))
        expected = [np.mean(error ** 2), np.abs(error).mean(), np.sqrt(np.mean(error ** 2)), r2, 100]
        found = self.figures("run")
        np.testing.assert_allclose([float(figure) for figure in found], expected, rtol=1e-5)
        self.assertGreater(r2, 0.9)
        # All samples but where the command itself asks for fewer.
        self.assertEqual(self.figures("run", "--train.evaluate_batches=2")[-1], "64")
        for ranks, *settings in ((2,), (2, "--parallel.pipeline=2"), (4,)):
            self.assertEqual(self.figures("run", *settings, ranks=ranks), found)

    def test_the_units_make_no_difference(self):
        """A learning rate that suits values of size 1 suits all; without it this one does not."""
        self.train(self.config, (1, 1), "stored", "--data.targets=none")
        self.assertLess(float(self.figures("stored")[3]), 0)
        small = self.values * 1e-3 - 7
        self.import_arrays("small", self.inputs, small, "800,100")
        self.train(self.config, (1, 1), "small", "--data.train=small/train.h5", "--data.test=small/test.h5")
        self.assertAlmostEqual(float(self.figures("small")[3]), float(self.figures("run")[3]), places=4)

    def test_another_run_starts_in_the_same_units(self):
        """checkpoint.init goes on with the function of the checkpoint, whatever the statistics of the new data."""
        self.import_arrays("other", self.inputs[:300], 3 * self.values[:300], "200,100")
        settings = ["--data.train=other/train.h5", "--data.test=other/test.h5", "--checkpoint.init=run",
                    "--train.epochs=0", "--train.steps=1", "--optimizer.learning_rate=1e-12"]
        self.train(self.config, (1, 1), "begun", *settings)
        on_these = ("--data.test=values/test.h5",)
        np.testing.assert_allclose([float(f) for f in self.figures("begun", *on_these)],
                                   [float(f) for f in self.figures("run")], rtol=1e-6)
        # The units of the run, not those of the data, when it goes on.
        self.train("begun/config.ini", (2, 1), "begun", "--train.steps=2", "--run.resume=must")
        self.assertEqual(self.figures("begun", *on_these)[-1], "100")
        # Its own where the last layer is new, or where they are asked for.
        for name, further in (("anew", "--checkpoint.init_except=b.*"), ("own", "--data.targets=standard")):
            self.train(self.config, (1, 1), name, *settings, further)
            self.assertGreater(float(self.figures(name, *on_these)[0]), 10 * float(self.figures("run")[0]))

    def test_a_run_keeps_its_units(self):
        self.assert_refused(
            self.launch(1, "train", self.config, "--run.dir=run", "--run.resume=must", "--data.targets=none", "--train.epochs=7"),
            harness.USAGE, 'data.targets is "standard"', '"none"')

    def test_figures_of_classes(self):
        for classes in (2, 5):
            name = f"classes{classes}"
            self.import_classes(name, (4,), classes, 120, 90)
            config = self.write_config(f"{name}.ini", harness.config_text(
                [f"dense {classes} name=a"], data=name, batch={"global": 24, "micro": 6}, numerics={"lanes": 4},
                optimizer={"kind": "sgd", "learning_rate": 0.02}, train={"epochs": 1}))
            self.train(config, (1, 1), name)
            weights = harness.tensors(harness.checkpoints(self.directory / name)[-1])
            inputs, labels = (np.load(self.directory / f"{name}-{kind}.npy")[120:] for kind in ("inputs", "targets"))
            logits = inputs @ weights["weights/a.weight"].T + weights["weights/a.bias"]
            answers = logits.argmax(1)
            right = np.array([((answers == c) & (labels == c)).sum() for c in range(classes)])
            either = np.array([(answers == c).sum() + (labels == c).sum() for c in range(classes)])
            text = self.alone("evaluate", name, expect=harness.DONE).text
            self.assertIn(f"accuracy {100 * (answers == labels).mean():.4f} %", text)
            self.assertIn(f"macro F1 {np.mean(2 * right / either):.6f}", text)
            if classes == 2:
                score = logits[:, 1] - logits[:, 0]
                pairs = score[labels == 1][:, None] - score[labels == 0][None, :]
                self.assertIn(f"AUC {((pairs > 0) + 0.5 * (pairs == 0)).mean():.6f} over 90 samples", text)
            else:
                self.assertNotIn("AUC", text)
            self.assertEqual(self.launch(4, "evaluate", name, expect=harness.DONE).text, text)


if __name__ == "__main__":
    harness.main()
