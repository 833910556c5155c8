"""Runs that start from the weights of another run, with frozen parameters and groups."""

import unittest

import numpy as np

import conv_grids_test
import harness
import language

try:
    import torch
except ImportError:
    torch = None

# By hand, of the config in language.py: width 32, 26 ids, 16 positions, hidden 128.
EMBEDDING = 26 * 32 + 16 * 32
ATTENTION = 2 * 32 + (96 * 32 + 96) + (32 * 32 + 32)
MLP = 2 * 32 + (128 * 32 + 128) + (32 * 128 + 32)
ALL = EMBEDDING + 2 * (ATTENTION + MLP) + 2 * 32

# The embedding and the first layer need no gradients, the attention of the second block only that of its input.
FROZEN = ["embedding.*", "blocks.?.attention.*", "blocks.0.mlp.up.*"]
TRAINED = ALL - EMBEDDING - 2 * ATTENTION - (128 * 32 + 128)
GROUPS = "*.bias: learning_rate=2 weight_decay=1; blocks.1.mlp.*: learning_rate=0.5 weight_decay=0"

GRIDS = [((1, 1, 1), []),
         ((2, 1, 1), ["--train.recompute=full"]),
         ((1, 2, 1), ["--parallel.schedule=zb-h1", "--parallel.backward=split"]),
         ((1, 1, 2), ["--parallel.sequence=off", "--numerics.loss_pieces=1"]),
         ((1, 4, 1), ["--parallel.schedule=gpipe", "--parallel.backward=fused"]),
         ((2, 2, 2), [])]


def is_frozen(name):
    return name.startswith(("embedding.", "blocks.0.attention.", "blocks.1.attention.", "blocks.0.mlp.up."))


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
            run = self.same_on(grids, *self.settings, f"--numerics.dtype={dtype}",
                               name=f"tuned-{dtype}")
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
        checkpoint = harness.checkpoints(self.directory / "base")[-1]
        settings = ["--train.steps=1", "--optimizer.learning_rate=0", "--model.tied=off"]
        self.train(self.config, (1, 1, 1), "fresh", *settings)
        self.train(self.config, (2, 1, 1), "new-ids", *settings, "--checkpoint.init=base",
                   "--checkpoint.init_except=embedding.tokens.*,head.*",
                   "--data.train=larger/train.h5", "--data.test=larger/test.h5")
        finished = self.train(self.config, (1, 1, 2), "new-head", *settings,
                              f"--checkpoint.init={checkpoint}", "--checkpoint.init_except=head.*")
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


class Images(harness.StrataTest):
    def test_frozen_layers_around_running_averages(self):
        conv_grids_test.Convolutions.write_cifar(self.directory / "batch.bin", 72)
        self.import_data("--format=cifar10", "--files=batch.bin", "--split=64,8", "--output=images")
        config = self.write_config("cut.ini", harness.config_text(conv_grids_test.CUT, **conv_grids_test.SETTINGS))
        frozen = "conv1.*,conv2.*,conv4.*,batch_norm1.*,dense1.weight"
        run = self.same_on([((1, 1, 1), []), ((2, 1, 2), ["--train.repeat_every=2"]),
                            ((2, 2, 1), ["--parallel.schedule=zb-h2", "--parallel.bucket=0.01"])],
                           f"--optimizer.frozen={frozen}", name="frozen", config=config)
        self.train(config, (1, 1, 1), "one-step", f"--optimizer.frozen={frozen}", "--train.steps=1")
        last, first = (harness.tensors(harness.checkpoints(self.directory / name)[-1])
                       for name in (run, "one-step"))
        same = {name for name in last if name.startswith("weights/") and np.array_equal(last[name], first[name])}
        self.assertEqual({name.split("/")[1] for name in same},
                         {"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "conv4.weight", "conv4.bias",
                          "batch_norm1.weight", "batch_norm1.bias", "dense1.weight"})


@unittest.skipIf(torch is None, "python3-torch not found")
class AgainstPyTorch(harness.StrataTest):
    """Each step has all samples, so their order does not matter."""

    STEPS = 4

    def test_frozen_parameters_and_groups(self):
        self.set_up_classes(harness.config_text(
            ["dense 16 relu name=one", "dense 16 relu name=two", "dense 4 name=three"],
            batch={"global": 32, "micro": 8}, numerics={"lanes": 2, "dtype": "float64"},
            optimizer={"kind": "adamw", "learning_rate": 0.02, "weight_decay": 0.3, "clip_norm": 0.05},
            train={"steps": self.STEPS, "log_every": 1}), (6,), 4, train=32, test=8)
        self.train(self.config, (1, 1, 1), "base", "--train.steps=1")
        self.train(self.config, (2, 1, 1), "tuned", "--checkpoint.init=base",
                   "--optimizer.frozen=one.weight,two.bias",
                   "--optimizer.groups=three.*: learning_rate=0.5 weight_decay=2; *.bias: weight_decay=0")
        base, found = (harness.tensors(harness.checkpoints(self.directory / run)[-1])
                       for run in ("base", "tuned"))
        weights = {name[len("weights/"):]: torch.tensor(tensor, requires_grad=True)
                   for name, tensor in base.items() if name.startswith("weights/")}
        for name in ("one.weight", "two.bias"):
            weights[name].requires_grad_(False)
        # Learning rate and weight decay by hand.
        optimizer = torch.optim.AdamW([
            {"params": [weights["two.weight"]], "lr": 0.02, "weight_decay": 0.3},
            {"params": [weights["one.bias"]], "lr": 0.02, "weight_decay": 0.0},
            {"params": [weights["three.weight"]], "lr": 0.01, "weight_decay": 0.6},
            {"params": [weights["three.bias"]], "lr": 0.01, "weight_decay": 0.0}])
        inputs = torch.tensor(np.load(self.directory / "classes-inputs.npy")[:32].astype(np.float64))
        targets = torch.tensor(np.load(self.directory / "classes-targets.npy")[:32])
        trained = [tensor for tensor in weights.values() if tensor.requires_grad]
        records = self.records("tuned", "train")
        self.assertEqual(len(records), self.STEPS)
        for record in records:
            hidden = inputs
            for name in ("one", "two", "three"):
                hidden = torch.nn.functional.linear(hidden, weights[f"{name}.weight"], weights[f"{name}.bias"])
                hidden = hidden if name == "three" else torch.relu(hidden)
            loss = torch.nn.functional.cross_entropy(hidden, targets)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.linalg.vector_norm(torch.cat([tensor.grad.flatten() for tensor in trained]))
            self.assertGreater(float(norm), 0.05)
            for tensor in trained:
                tensor.grad *= 0.05 / norm
            self.assertAlmostEqual(float(record["loss"]), float(loss), delta=1e-12)
            self.assertAlmostEqual(float(record["grad_norm"]), float(norm), delta=1e-12)
            optimizer.step()
        for name, tensor in weights.items():
            np.testing.assert_allclose(found[f"weights/{name}"], tensor.detach().numpy(), rtol=0, atol=1e-12,
                                       err_msg=name)
            self.assertEqual(np.array_equal(found[f"weights/{name}"], base[f"weights/{name}"]),
                             not tensor.requires_grad, name)


if __name__ == "__main__":
    harness.main()
