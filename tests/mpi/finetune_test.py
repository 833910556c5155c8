"""Runs that start from the weights of another run, with frozen parameters and groups."""

import json
import re
import shutil
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


RANK, ALPHA = 4, 6.0
# By hand: rank x (inputs + outputs) of each product.
ADAPTERS = {"gpt": 2 * RANK * ((32 + 96) + (32 + 32) + (32 + 128) + (128 + 32)),
            "llama of some": 2 * RANK * ((32 + 64) + (64 + 32) + (32 + 64))}  # qkv, up and down of 64 hidden units


class Adapters(language.LanguageTest):
    """LoRA: only adapters learn; models leave merged or as adapters alone."""

    MODELS = {"gpt": ["--lora.products="],
              "llama of some": [*language.LLAMA, "--model.hidden=64", "--lora.products=qkv,up,down", "--numerics.row_pieces=2"]}
    LORA = [f"--lora.rank={RANK}", f"--lora.alpha={ALPHA}"]

    def last(self, run):
        return {name.removeprefix("weights/"): tensor
                for name, tensor in harness.tensors(harness.checkpoints(self.directory / run)[-1]).items()}

    def tune(self, model, run, grid=(1, 1, 1), *settings):
        return self.train(self.config, grid, run, *self.MODELS[model], *self.LORA, *settings)

    def test_same_bits_on_every_grid(self):
        for model, settings in self.MODELS.items():
            base = f"base-{model.split()[0]}"
            self.train(self.config, (1, 2, 2), base, *(s for s in settings if "lora" not in s), "--train.steps=1")
            for dtype, grids in (("float32", GRIDS), ("bfloat16", [GRIDS[0], GRIDS[3], GRIDS[-1]])):
                with self.subTest(model=model, dtype=dtype):
                    run = self.same_on(grids, *settings, *self.LORA, f"--checkpoint.init={base}", f"--numerics.dtype={dtype}",
                                       name=f"{base}-{dtype}")
                    before, found = self.last(base), self.last(run)
                    adapters = [name for name in found if name.endswith((".lora_a", ".lora_b")) and "/" not in name]
                    self.assertEqual(sum(found[name].size for name in adapters), ADAPTERS[model])
                    for name in (name for name in before if name.startswith(("embedding", "blocks", "norm", "head"))):
                        self.assertTrue(np.array_equal(found[name], before[name]), name)
                    self.assertEqual(sorted(name.split("/")[2] for name in found if name.startswith("optimizer/adam_m/")),
                                     sorted(adapters))
                    self.assertTrue(all(found[name].any() for name in adapters))
                    log = (self.directory / run / "log.txt").read_text()
                    self.assertIn(f", {ADAPTERS[model]:,} of them trainable", log)
                    self.assertIn("initialized anew: adapters", log)

    def test_resume_and_start_again(self):
        self.tune("gpt", "whole", (1, 1, 1), "--train.steps=4")
        self.tune("gpt", "parts", (1, 2, 2), "--train.steps=2")
        self.tune("gpt", "parts", (2, 1, 2), "--train.steps=4", "--run.resume=must")
        self.assert_same_run("whole", "parts")
        refused = self.train(self.config, (1, 1, 1), "parts", "--lora.rank=4", "--lora.alpha=3", "--run.resume=must",
                             expect=harness.CHECKPOINT)
        self.assert_refused(refused, harness.CHECKPOINT, "lora_alpha=6")
        # Adapters go on in a new run; a model without them cannot take them.
        again = self.tune("gpt", "again", (1, 1, 1), "--checkpoint.init=whole", "--optimizer.learning_rate=0", "--train.steps=1")
        self.assertNotIn("initialized anew", again.text)
        for name, tensor in self.last("again").items():
            if "/" not in name:
                self.assertTrue(np.array_equal(tensor, self.last("whole")[name]), name)
        refused = self.alone("train", self.config, "--dry-run", "--run.dir=none", "--checkpoint.init=whole")
        self.assert_refused(refused, harness.CHECKPOINT, "lora_a (4 x 32), which the model lacks")

    def test_memory(self):
        """Frozen matrices have weights, and neither gradients nor states."""
        def sizes(*settings):
            text = self.alone("train", self.config, "--dry-run", "--numerics.dtype=bfloat16", "--numerics.shards=1",
                              "--model.width=512", "--checkpoint.minutes=0", *settings).text
            found = re.findall(r"^(gradients|optimizer state|master weights|master weights, frozen) +([\d.]+) (.)iB$", text, re.M)
            return {name: float(size) * {"K": 1, "M": 1024}[unit] for name, size, unit in found}
        whole, tuned = sizes(), sizes(*self.LORA)
        for name in ("gradients", "optimizer state", "master weights"):
            self.assertLess(tuned[name], 0.03 * whole[name], name)
        self.assertAlmostEqual(tuned["master weights, frozen"] / whole["master weights"], 1.0, delta=0.01)

    def test_exports(self):
        for model in self.MODELS:
            run = f"tuned-{model.split()[0]}"
            self.tune(model, run, (1, 1, 2))
            own = self.last(run)
            merged = {name: tensor.astype(np.float64) for name, tensor in own.items() if "/" not in name and "lora" not in name}
            for name in [name for name in own if name.endswith(".lora_a") and "/" not in name]:
                product = name.removesuffix(".lora_a")
                merged[f"{product}.weight"] += ALPHA / RANK * own[f"{product}.lora_b"].astype(np.float64) @ own[name]
            for arguments in (["--output=merged"], ["--output=apart", "--adapters=apart"]):
                self.assertEqual(self.alone("checkpoint", "export", run, "--format=safetensors", *arguments).code, harness.DONE)
            found = self.read("merged/model.safetensors")
            self.assertEqual(sorted(found), sorted(merged))
            for name, tensor in merged.items():
                np.testing.assert_allclose(found[name], tensor, rtol=0, atol=1e-6, err_msg=name)
            apart = self.read("apart/adapter_model.safetensors")
            self.assertEqual(sorted(apart), sorted(name for name in own if "lora" in name and "/" not in name))
            for name, tensor in apart.items():
                self.assertTrue(np.array_equal(tensor, own[name]), name)
            # The merged model computes what the adapters compute.
            for arguments in (["export", run, "--format=huggingface", "--output=hf"], ["import", "hf", "--output=back"]):
                finished = self.alone("checkpoint", *arguments)
                self.assertEqual(finished.code, harness.DONE, finished.text)
            losses = [float(self.alone("evaluate", name, *data).text.split("loss ")[1].split(",")[0])
                      for name, data in ((run, ["--train.evaluate_batches=0"]), ("back", ["--data.test=text/test.h5"]))]
            self.assertAlmostEqual(*losses, delta=1e-5)
            self.as_peft(run, own)
            for name in ("merged", "apart", "hf", "back", "peft"):
                shutil.rmtree(self.directory / name)

    def as_peft(self, run, own):
        """PEFT's names; q, k and v share the A of qkv."""
        finished = self.alone("checkpoint", "export", run, "--format=huggingface", "--adapters=apart", "--output=peft")
        self.assertEqual(finished.code, harness.DONE, finished.text)
        described = json.loads((self.directory / "peft/adapter_config.json").read_text())
        self.assertEqual((described["r"], described["lora_alpha"], described["peft_type"]), (RANK, ALPHA, "LORA"))
        tensors = self.read("peft/adapter_model.safetensors")
        prefix, qkv = "base_model.model.", "blocks.1.attention.qkv"
        if "head.weight" in own:
            names, kv, queries = "model.layers.1.self_attn.{}_proj", 4, 2
            rows = own[f"{qkv}.lora_b"].reshape(kv, queries + 2, -1, RANK)
            expected = {names.format("q"): rows[:, :queries], names.format("k"): rows[:, queries],
                        names.format("v"): rows[:, queries + 1]}
            self.assertEqual(described["target_modules"], ["down_proj", "k_proj", "q_proj", "up_proj", "v_proj"])
        else:
            rows = own[f"{qkv}.lora_b"].reshape(4, 3, -1, RANK)
            expected = {"transformer.h.1.attn.c_attn": rows.swapaxes(0, 1)}
            self.assertEqual(described["target_modules"], ["c_attn", "c_fc", "c_proj"])
            self.assertTrue(described["fan_in_fan_out"])
        for name, tensor in expected.items():
            self.assertTrue(np.array_equal(tensors[f"{prefix}{name}.lora_A.weight"], own[f"{qkv}.lora_a"]), name)
            self.assertTrue(np.array_equal(tensors[f"{prefix}{name}.lora_B.weight"], tensor.reshape(-1, RANK)), name)

    def read(self, file):
        """A safetensors file of float32 tensors."""
        data = (self.directory / file).read_bytes()
        length = int.from_bytes(data[:8], "little")
        return {name: np.frombuffer(data[8 + length:][slice(*entry["data_offsets"])], np.float32).reshape(entry["shape"])
                for name, entry in json.loads(data[8:8 + length]).items() if name != "__metadata__"}

    def test_bad_inputs(self):
        self.train(self.config, (1, 1, 1), "plain", "--train.steps=1")
        self.tune("gpt", "more", (1, 1, 1), "--train.steps=1", "--optimizer.frozen=embedding.*")
        out = ["--format=huggingface", "--output=none"]
        for arguments, code, words in [
                (["train", self.config, "--dry-run", "--lora.rank=4", "--lora.products=keys"], harness.USAGE,
                 ["lora.products names \"keys\"", "qkv, output, up, gate, down"]),
                (["train", self.config, "--dry-run", "--lora.rank=4", "--lora.products=gate"], harness.USAGE,
                 ["no layer of the model has a product gate"]),
                (["train", self.config, "--dry-run", "--lora.products=qkv"], harness.USAGE, ["lora.rank is 0"]),
                (["train", self.config, "--dry-run", "--lora.rank=4", "--optimizer.frozen=*"], harness.USAGE, ["nothing to train"]),
                (["checkpoint", "export", "plain", *out, "--adapters=apart"], harness.USAGE, ["has no adapters"]),
                (["checkpoint", "export", "more", *out, "--adapters=apart"], harness.USAGE, ["trained more than adapters"]),
                (["checkpoint", "export", "more", *out, "--adapters=some"], harness.USAGE, ["merged, apart"])]:
            with self.subTest(arguments=arguments):
                self.assert_refused(self.alone(*arguments), code, *words)
        self.assertFalse((self.directory / "none").exists())


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
