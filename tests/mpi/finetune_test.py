"""Runs that start from the weights of another run, with frozen parameters and groups."""

import numpy as np

import harness
import language

# By hand, of the config in language.py: width 32, 26 ids, 16 positions, hidden 128.
EMBEDDING = 26 * 32 + 16 * 32
ATTENTION = 2 * 32 + (96 * 32 + 96) + (32 * 32 + 32)
MLP = 2 * 32 + (128 * 32 + 128) + (32 * 128 + 32)
ALL = EMBEDDING + 2 * (ATTENTION + MLP) + 2 * 32

FROZEN = ["embedding.*", "blocks.0.attention.*", "blocks.0.mlp.up.*"]
TRAINED = ALL - EMBEDDING - ATTENTION - (128 * 32 + 128)
GROUPS = "*.bias: learning_rate=2 weight_decay=1; blocks.1.mlp.*: learning_rate=0.5 weight_decay=0"

GRIDS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)]


def is_frozen(name):
    return name.startswith(("embedding.", "blocks.0.attention.", "blocks.0.mlp.up."))


class FineTuning(language.LanguageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls().train(cls.config, (2, 1, 2), "base", "--train.steps=2")
        cls().import_text("larger", language.text(1500) + "?!;:")
        cls.base = harness.tensors(harness.checkpoints(cls.directory / "base")[-1])

    settings = ["--checkpoint.init=base", f"--optimizer.frozen={','.join(FROZEN)}",
                f"--optimizer.groups={GROUPS}"]

    def last(self, run):
        return harness.tensors(harness.checkpoints(self.directory / run)[-1])

    def test_same_bits_and_frozen_weights(self):
        for dtype, grids in [("float32", GRIDS), ("bfloat16", [GRIDS[0], GRIDS[-1]])]:
            run = self.same_on([(grid, []) for grid in grids], *self.settings,
                               f"--numerics.dtype={dtype}", name=f"tuned-{dtype}")
            tensors = self.last(run)
            weights = {name[len("weights/"):] for name in tensors if name.startswith("weights/")}
            self.assertEqual(sum(tensors[f"weights/{name}"].size for name in weights), ALL)
            for name in weights:
                same = np.array_equal(tensors[f"weights/{name}"], self.base[f"weights/{name}"])
                self.assertEqual(same, is_frozen(name), name)
                self.assertEqual(f"optimizer/adam_m/{name}" in tensors, not is_frozen(name), name)
            log = (self.directory / run / "log.txt").read_text()
            self.assertIn(f"{ALL:,} parameters, {TRAINED:,} of them trainable", log)
            self.assertIn("starting from the weights of base/checkpoints/step-", log)

    def test_resume_on_other_grids_without_the_first_checkpoint(self):
        self.train(self.config, (1, 1, 1), "source", "--train.steps=1")
        settings = ["--checkpoint.init=source", *self.settings[1:]]
        self.train(self.config, (1, 1, 1), "whole", *settings, "--train.steps=4")
        self.train(self.config, (1, 2, 2), "stopped", *settings, "--train.steps=2")
        (self.directory / "source").rename(self.directory / "moved")
        finished = self.train(self.config, (2, 1, 2), "stopped", *settings, "--train.steps=4",
                              "--run.resume=must")
        self.assertIn("continuing after step 2", finished.text)
        self.assert_same_run("whole", "stopped")
        refused = self.train(self.config, (1, 1, 1), "stopped", "--train.steps=5",
                             "--checkpoint.init=", "--run.resume=must", expect=harness.USAGE)
        self.assert_refused(refused, harness.USAGE, "optimizer.frozen is \"embedding.*,")

    def test_groups_are_settings_of_the_whole(self):
        # A group of all parameters is the setting itself.
        self.train(self.config, (1, 1, 1), "plain", "--optimizer.learning_rate=0.005",
                   "--optimizer.weight_decay=0.05", "--optimizer.decay=all")
        self.train(self.config, (1, 1, 1), "grouped", "--optimizer.learning_rate=0.01",
                   "--optimizer.weight_decay=0.1",
                   "--optimizer.groups=*: learning_rate=0.5 weight_decay=0.5")
        self.assertEqual(harness.differing_tensors(self.last("plain"), self.last("grouped")), [])

    def test_other_dtypes_read_the_same_weights(self):
        all_but_the_norm = "--optimizer.frozen=embedding.*,blocks.*"
        self.train(self.config, (1, 2, 1), "double", "--checkpoint.init=base",
                   all_but_the_norm, "--numerics.dtype=float64", "--train.steps=1")
        self.train(self.config, (1, 1, 2), "single", "--checkpoint.init=double/checkpoints",
                   all_but_the_norm, "--train.steps=1")
        for run, dtype in [("double", np.float64), ("single", np.float32)]:
            for name, tensor in self.last(run).items():
                if name.startswith(("weights/embedding", "weights/blocks")):
                    self.assertEqual(tensor.dtype, dtype)
                    self.assertTrue(np.array_equal(tensor, self.base[name]), name)

    def test_excepted_parameters_are_those_of_a_run_without(self):
        settings = ["--train.steps=1", "--optimizer.learning_rate=0", "--model.tied=off"]
        self.train(self.config, (1, 1, 1), "fresh", *settings)
        self.train(self.config, (2, 1, 1), "new-ids", *settings, "--checkpoint.init=base",
                   "--checkpoint.init_except=embedding.tokens.*,head.*",
                   "--data.train=larger/train.h5", "--data.test=larger/test.h5")
        finished = self.train(self.config, (1, 1, 2), "new-head", *settings,
                              "--checkpoint.init=base", "--checkpoint.init_except=head.*")
        self.assertIn("initialized anew: head.weight", finished.text)
        found, fresh, ids = self.last("new-head"), self.last("fresh"), self.last("new-ids")
        for name in (name for name in found if name.startswith("weights/")):
            expected = fresh if name == "weights/head.weight" else self.base
            self.assertTrue(np.array_equal(found[name], expected[name]), name)
            if name not in ("weights/head.weight", "weights/embedding.tokens.weight"):
                self.assertTrue(np.array_equal(ids[name], self.base[name]), name)
        self.assertEqual(ids["weights/head.weight"].shape, (30, 32))

    def test_bad_inputs(self):
        self.import_text("other", "".join(chr(ord(c) ^ 1) if c.isalpha() else c
                                          for c in language.text(1500)))
        (self.directory / "empty").mkdir(exist_ok=True)
        larger = ["--data.train=larger/train.h5", "--data.test="]
        init = "--checkpoint.init=base"
        for settings, code, words in [
                (["--checkpoint.init=nowhere"], harness.CHECKPOINT, ["no directory nowhere"]),
                (["--checkpoint.init=empty"], harness.CHECKPOINT, ["empty has no master.h5"]),
                (["--checkpoint.init_except=head.*"], harness.USAGE, ["checkpoint.init is empty"]),
                ([init, "--checkpoint.init_except=haed.*"], harness.USAGE,
                 ["checkpoint.init_except", "\"haed.*\"", "nearest"]),
                ([init, *larger], harness.CHECKPOINT,
                 ["its embedding.tokens.weight is 26 x 32, that of the model 30 x 32",
                  "checkpoint.init_except"]),
                ([init, "--model.blocks=3"], harness.CHECKPOINT,
                 ["it has no blocks.2.attention.norm.weight, which is 32 in the model"]),
                ([init, "--model.blocks=1"], harness.CHECKPOINT,
                 ["it has blocks.1.attention.norm.bias (32), which the model lacks"]),
                ([init, "--data.train=other/train.h5", "--data.test="], harness.DATA,
                 ["another tokenizer"]),
                (["--optimizer.frozen=embeding.*"], harness.USAGE,
                 ["optimizer.frozen", "\"embeding.*\"", "the nearest is"]),
                (["--optimizer.frozen=*"], harness.USAGE, ["freezes all", "nothing to train"]),
                (["--optimizer.groups=nrom.bias: learning_rate=0"], harness.USAGE,
                 ["optimizer.groups", "\"nrom.bias\"", "nearest is \"norm.bias\""]),
                (["--optimizer.groups=*: rate=0"], harness.USAGE, ["learning_rate=FACTOR"]),
                (["--optimizer.groups=*: weight_decay=-1"], harness.USAGE, ["is not allowed"])]:
            with self.subTest(settings=settings):
                run = "refused"
                dry = self.alone("train", self.config, "--dry-run", f"--run.dir={run}", *settings)
                self.assert_refused(dry, code, *words)
        finished = self.train(self.config, (2, 1, 1), run, init, *larger, expect=harness.CHECKPOINT)
        self.assert_refused(finished, harness.CHECKPOINT, "its embedding.tokens.weight is 26 x 32")
        self.assertFalse((self.directory / run).exists())


if __name__ == "__main__":
    harness.main()
