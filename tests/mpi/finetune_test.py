"""Runs that start from the weights of another run, with frozen parameters and groups."""

import json
import re
import shutil
import unittest

import h5py
import numpy as np

import harness
import language
from errors_test import flip_byte

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

    def test_what_is_trained(self):
        planned = self.alone("train", self.config, "--dry-run", *self.settings).text
        self.assertIn(f"{ALL:,} parameters, {TRAINED:,} of them trainable", planned)
        self.train(self.config, (2, 1, 2), "tuned", *self.settings, "--train.steps=1")
        log = (self.directory / "tuned" / "log.txt").read_text()
        self.assertIn("starting from the weights of base/checkpoints/step-", log)

    def test_a_config_without_a_model_takes_the_checkpoints(self):
        text = (self.directory / self.config).read_text()
        model = text[text.index("[model]"):text.index("[data]")]
        config = self.write_config("no_model.ini", text.replace(model, ""))
        self.train(self.config, (1, 1), "with", "--checkpoint.init=base", "--train.steps=3")
        newest = harness.checkpoints(self.directory / "base")[-1]
        for number, path in enumerate(["base", newest, f"{newest}/"]):
            self.train(config, (1, 1), f"without-{number}", f"--checkpoint.init={path}", "--train.steps=2")
            # It goes on by its own model, also where the other's directory is gone.
            self.train(config, (1, 1), f"without-{number}", "--checkpoint.init=gone", "--run.resume=auto", "--train.steps=3")
            self.assert_same_run("with", f"without-{number}")
        # What it does have of a model stays.
        self.train(config, (1, 1), "still", "--checkpoint.init=base", "--model.dropout=0", "--train.steps=1")
        self.assertRegex((self.directory / "still/config.ini").read_text(), r"(?s)blocks = 2\n.*dropout = 0\n")
        self.assert_refused(self.alone("train", config, "--checkpoint.init=gone", "--run.dir=no"), harness.USAGE,
                            "has no model", "gone has no config.ini")

    def test_files_beside_the_weights(self):
        """What strata does not compute with comes out of an import, a training and a checkpoint.init as it came in."""
        def text_of(run):
            return self.alone("generate", run, "--temperature=0", "--tokens=12", "--prompt=amber ",
                              expect=harness.DONE).text.splitlines()[0]

        def export(run, output):
            self.alone("checkpoint", "export", run, "--format=huggingface", f"--output={output}", expect=harness.DONE)
            return self.directory / output

        def bring_in(run, code=harness.DONE):
            shutil.rmtree(self.directory / run, ignore_errors=True)
            return self.alone("checkpoint", "import", "given", f"--output={run}", "--data=text/train.h5", expect=code)

        given = export("base", "given")
        config = json.loads((given / "config.json").read_text())
        self.assertEqual((config["bos_token_id"], config["eos_token_id"]), (None, None))
        config.update({"bos_token_id": 24, "eos_token_id": [25, 23], "pad_token_id": 22, "embd_pdrop": 0.25, "dtype": "bfloat16",
                       "task_specific_params": {"a": [1.5]}})
        texts = {"config.json": json.dumps(config),
                 "generation_config.json": '{"eos_token_id": [25, 23, 21],\n "do_sample": true, "temperature": 0.6}',
                 "tokenizer_config.json": '{"chat_template": "{{ x }}", "model_max_length": 1000000000000000019884624838656}',
                 "special_tokens_map.json": '{"pad_token": {"content": "\u00e4"}}',
                 "chat_template.jinja": "{{ '\u00fc' }}\n"}
        for name, text in texts.items():
            (given / name).write_text(text)
        bring_in("brought")
        for run, *settings in (("brought", "--run.resume=must"), ("begun", "--run.resume=never", "--checkpoint.init=brought"),
                               ("anew", "--run.resume=never", "--checkpoint.init=brought", "--checkpoint.init_except=embedding.*")):
            self.train("brought/config.ini", (1, 1, 1), run, "--data.train=text/train.h5", "--train.steps=1",
                       "--optimizer.kind=adamw", "--batch.global=4", *settings)
        for run in ("brought", "begun"):
            out = export(run, f"{run}-out")
            self.assertEqual(json.loads((out / "config.json").read_text()), {**config, "dtype": "float32"})
            for name in list(texts)[1:]:
                self.assertEqual((out / name).read_bytes(), (given / name).read_bytes(), name)
        self.assertEqual(sorted(path.name for path in export("anew", "anew-out").iterdir()),
                         ["config.json", "generation_config.json", "model.safetensors", "weights.manifest"])
        # Without a generation_config.json it is made of config.json.
        (given / "generation_config.json").unlink()
        bring_in("brought")
        self.assertEqual(json.loads((export("brought", "made") / "generation_config.json").read_text()),
                         {"_from_model_config": True, "bos_token_id": 24, "eos_token_id": [25, 23], "pad_token_id": 22})
        # Any of the tokens ends a text.
        whole = text_of("base")
        end = sorted(set((self.directory / "text.txt").read_text())).index(whole[-1])
        for described, generating in ((end, {}), (None, {"eos_token_id": [99, end]}), ([99, end], {"eos_token_id": 99})):
            (given / "config.json").write_text(json.dumps({**config, "eos_token_id": described}))
            (given / "generation_config.json").write_text(json.dumps(generating))
            bring_in("brought")
            self.assertEqual(text_of("brought"), whole[:whole.index(whole[-1], len("amber "))])
        for name, text, *words in (("generation_config.json", "[1]", "generation_config.json is no JSON object"),
                                   ("generation_config.json", '{"eos_token_id": [1, "x"]}', 'has the eos_token_id [1,"x"]'),
                                   ("chat_template.jinja", "\udcff", "chat_template.jinja is no UTF-8"),
                                   ("config.json", json.dumps({**config, "tie_word_embeddings": False}),
                                    "no tensor lm_head.weight", "set tie_word_embeddings to true")):
            before = (given / name).read_bytes()
            (given / name).write_bytes(text.encode(errors="surrogateescape"))
            self.assert_refused(bring_in("brought", code=None), harness.DATA, *words)
            (given / name).write_bytes(before)

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
                 ["another tokenizer"])]:
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

    def test_what_is_trained(self):
        self.train(self.config, (1, 1, 1), "gpt-base", "--train.steps=1")
        for model, settings in self.MODELS.items():
            planned = self.alone("train", self.config, "--dry-run", *settings, *self.LORA).text
            self.assertIn(f", {ADAPTERS[model]:,} of them trainable", planned)
        started = self.tune("gpt", "started", (1, 2, 1), "--checkpoint.init=gpt-base", "--train.steps=1")
        self.assertIn("initialized anew: adapters", started.text)

    def test_resume_and_start_again(self):
        self.tune("gpt", "whole", (1, 1, 2), "--train.steps=4")
        refused = self.train(self.config, (1, 1, 1), "whole", "--lora.rank=4", "--lora.alpha=3", "--run.resume=must",
                             expect=harness.CHECKPOINT)
        self.assert_refused(refused, harness.CHECKPOINT, "lora_alpha=6")
        # Adapters go on in a new run; a model without them cannot take them.
        again = self.tune("gpt", "again", (1, 1, 1), "--checkpoint.init=whole", "--optimizer.learning_rate=0", "--train.steps=1")
        self.assertNotIn("initialized anew", again.text)
        for name, tensor in self.last("again").items():
            if "/" not in name:
                self.assertTrue(np.array_equal(tensor, self.last("whole")[name]), name)
        refused = self.alone("train", self.config, "--dry-run", "--run.dir=none", "--checkpoint.init=whole")
        self.assert_refused(refused, harness.CHECKPOINT, "whole/checkpoints/step-00000004 has adapters", "set lora.rank")

    def test_other_layers_begin_anew(self):
        self.tune("gpt", "first", (1, 1, 1), "--lora.products=qkv", "--train.steps=1")
        wider = self.tune("gpt", "wider", (1, 1, 1), "--checkpoint.init=first", "--train.steps=1", "--model.mlp=relu")
        self.assertIn("initialized anew: adapters; its layer 2 is \"mlp 128 gelu", wider.text)

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
            self.assertEqual(self.alone("checkpoint", "export", run, "--format=safetensors", "--output=merged").code,
                             harness.DONE)
            found = self.read("merged/model.safetensors")
            self.assertEqual(sorted(found), sorted(merged))
            for name, tensor in merged.items():
                np.testing.assert_allclose(found[name], tensor, rtol=0, atol=1e-6, err_msg=name)
            # The merged model computes what the adapters compute.
            for arguments in (["export", run, "--format=huggingface", "--output=hf", "--check-logits"], ["import", "hf", "--output=back"]):
                self.alone("checkpoint", *arguments, expect=harness.DONE)
            losses = [float(self.alone("evaluate", name, *data).text.split("loss ")[1].split(",")[0])
                      for name, data in ((run, ["--train.evaluate_batches=0"]), ("back", ["--data.test=text/test.h5"]))]
            self.assertAlmostEqual(*losses, delta=1e-5)
            self.as_peft(run, own)
            for name in ("merged", "hf", "back", "peft"):
                shutil.rmtree(self.directory / name)

    def test_damage_is_not_exported(self):
        self.tune("gpt", "damaged", (1, 1, 1), "--train.steps=1")
        for number, format in enumerate(("huggingface", "llmc", "safetensors")):
            self.alone("checkpoint", "export", "damaged", f"--format={format}", f"--output=good-{format}", expect=harness.DONE)
            weights = next((self.directory / f"good-{format}").glob("model.[bs]*"))
            flip_byte(weights, weights.stat().st_size - 8 * number - 5)
            if format != "safetensors":
                path = weights if format == "llmc" else f"good-{format}"
                self.assert_refused(self.alone("checkpoint", "import", path, "--output=none"), harness.DATA,
                                    f"{weights.name} is damaged", "weights.manifest if it was changed on purpose")
                (weights.parent / "weights.manifest").unlink()
                self.alone("checkpoint", "import", path, f"--output=changed-{format}", expect=harness.DONE)
        [newest] = harness.checkpoints(self.directory / "damaged")[-1:]
        with h5py.File(newest / "part-00000.h5") as part:
            slices = {part[name].attrs["tensor"].decode(): part[name].id.get_offset() for name in part}
        adapter = next(name for name in slices if name.startswith("weights/") and name.endswith(".lora_b"))
        for tensor, only in (("weights/norm.weight", []), (adapter, ["--adapters=apart"])):
            flip_byte(newest / "part-00000.h5", slices[tensor] + 3)
            for more in [["--format=huggingface", *only], ["--format=huggingface", "--check-logits"], ["--format=llmc"],
                         ["--format=safetensors"]]:
                self.assert_refused(self.alone("checkpoint", "export", "damaged", "--output=none", *more), harness.CHECKPOINT,
                                    "part-00000.h5 is damaged", tensor)
            flip_byte(newest / "part-00000.h5", slices[tensor] + 3)
        self.assertFalse((self.directory / "none").exists())

    def as_peft(self, run, own):
        """PEFT's names; q, k and v share the A of qkv."""
        self.alone("checkpoint", "export", run, "--format=huggingface", "--adapters=apart", "--output=peft",
                   expect=harness.DONE)
        described = json.loads((self.directory / "peft/adapter_config.json").read_text())
        self.assertEqual((described["r"], described["lora_alpha"], described["peft_type"]), (RANK, ALPHA, "LORA"))
        tensors = self.read("peft/adapter_model.safetensors")
        prefix, qkv = "base_model.model.", "blocks.1.attention.qkv"
        if "head.weight" in own:
            names, kv, queries = "model.layers.1.self_attn.{}_proj", 4, 2
            rows = own[f"{qkv}.lora_b"].reshape(kv, queries + 2, -1, RANK)
            expected = {names.format("q"): rows[:, :queries], names.format("k"): rows[:, queries],
                        names.format("v"): rows[:, queries + 1]}
            self.assertEqual(described["target_modules"], ["mlp.down_proj", "mlp.up_proj", "self_attn.k_proj", "self_attn.q_proj",
                                                           "self_attn.v_proj"])
        else:
            rows = own[f"{qkv}.lora_b"].reshape(4, 3, -1, RANK)
            expected = {"transformer.h.1.attn.c_attn": rows.swapaxes(0, 1)}
            self.assertEqual(described["target_modules"], ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"])
            self.assertTrue(described["fan_in_fan_out"])
        for name, tensor in expected.items():
            self.assertTrue(np.array_equal(tensors[f"{prefix}{name}.lora_A.weight"], own[f"{qkv}.lora_a"]), name)
            self.assertTrue(np.array_equal(tensors[f"{prefix}{name}.lora_B.weight"], tensor.reshape(-1, RANK)), name)

    def test_adapters_of_peft(self):
        """Exported adapters come in with their base model: the same loss, files and, on two grids, training."""
        for model, products in (("gpt", []), ("llama", [*language.LLAMA, "--lora.products=qkv,down"])):
            base, tuned, peft, back = (f"{model}-{part}" for part in ("whole", "lora", "peft", "back"))
            self.train(self.config, (1, 1, 1), base, *products[:-1], "--train.steps=1", "--model.dropout=0")
            self.train(self.config, (1, 2, 1), tuned, *products, *self.LORA, "--model.dropout=0", f"--checkpoint.init={base}")
            for run, output, more in ((base, f"{model}-hf", []), (tuned, peft, ["--adapters=apart"])):
                self.alone("checkpoint", "export", run, "--format=huggingface", f"--output={output}", *more, expect=harness.DONE)
            made = self.alone("checkpoint", "import", f"{model}-hf", f"--adapters={peft}", f"--output={back}",
                              "--data=text/train.h5", expect=harness.DONE)
            self.assertIn(f"rank {RANK}, alpha {ALPHA:g}, of qkv,", made.text)
            own, came = ({name: tensor for name, tensor in self.last(run).items() if "/" not in name} for run in (tuned, back))
            self.assertEqual(sorted(own), sorted(came))
            for name, tensor in came.items():
                self.assertTrue(np.array_equal(tensor, own[name]), name)
            losses = [self.alone("evaluate", run, "--data.test=text/test.h5", "--train.evaluate_batches=0", "--model.context=16",
                                 "--batch.global=16", "--batch.micro=2", "--numerics.lanes=4", "--numerics.shards=4",
                                 expect=harness.DONE).text.split("loss ")[1].split(",")[0] for run in (tuned, back)]
            self.assertEqual(*losses)
            texts = [self.alone("generate", run, "--prompt=amber ", "--tokens=8", "--temperature=0",
                                expect=harness.DONE).text.splitlines()[0] for run in (tuned, back)]
            self.assertEqual(*texts)
            settings = ["--data.train=text/train.h5", "--model.context=16", "--batch.global=8", "--batch.micro=2",
                        "--numerics.lanes=2", "--numerics.shards=2", "--train.steps=2", "--run.resume=must"]
            for run, grid in ((f"{model}-one", (1, 1, 1)), (f"{model}-eight", (2, 2, 2))):
                shutil.copytree(self.directory / back, self.directory / run)
                self.train(f"{run}/config.ini", grid, run, *settings)
            self.assert_same_run(f"{model}-one", f"{model}-eight")
            moved = [name for name, tensor in self.last(f"{model}-one").items()
                     if name in came and not np.array_equal(tensor, came[name])]
            self.assertTrue(moved and all(".lora_" in name for name in moved), moved)
            for run, output in ((back, f"{model}-twice"), (f"{model}-one", f"{model}-on")):
                self.alone("checkpoint", "export", run, "--format=huggingface", "--adapters=apart", f"--output={output}",
                           expect=harness.DONE)
            for file in ("adapter_model.safetensors", "adapter_config.json"):
                first, twice, on = ((self.directory / f"{model}-{out}" / file).read_bytes() for out in ("peft", "twice", "on"))
                self.assertEqual(first, twice)
                self.assertEqual(first == on, file == "adapter_config.json")
        self.refused_adapters()

    def refused_adapters(self):
        """What strata does not compute, or what does not fit the model, is refused by its name."""
        tensors = self.read("llama-peft/adapter_model.safetensors")
        described = json.loads((self.directory / "llama-peft/adapter_config.json").read_text())
        q, v = (f"base_model.model.model.layers.1.self_attn.{name}_proj.lora_" for name in "qv")
        wide = np.zeros((RANK, 33), np.float32)
        for config, changes, words in [
                ({"use_dora": True}, {}, ["use_dora is true"]),
                ({"rank_pattern": {"q_proj": 8}}, {}, ['rank_pattern is {"q_proj":8}']),
                ({"alpha_pattern": {"q_proj": 8}}, {}, ["alpha_pattern is"]),
                ({"modules_to_save": ["lm_head"]}, {}, ['modules_to_save is ["lm_head"]', "merge_and_unload"]),
                ({"bias": "lora_only"}, {}, ["bias is", "lora_only"]),
                ({"lora_bias": True}, {}, ["lora_bias is true"]),
                ({"layers_to_transform": [1]}, {}, ["layers_to_transform is [1]"]),
                ({"trainable_token_indices": [3]}, {}, ["trainable_token_indices"]),
                ({"init_lora_weights": "pissa_niter_4"}, {}, ["init_lora_weights", "path_initial_model"]),
                ({"a_method_to_come": 1}, {}, ["a_method_to_come is 1"]),
                ({"peft_type": "IA3"}, {}, ['peft_type is "IA3"', "LORA"]),
                ({"task_type": "SEQ_CLS"}, {}, ["task_type"]),
                ({"fan_in_fan_out": True}, {}, ["fan_in_fan_out is true", "outputs x inputs"]),
                ({"r": 0}, {}, ["r is 0"]), ({"r": 4.5}, {}, ["r is 4.5"]), ({"r": None}, {}, ["r is null"]),
                ({"lora_alpha": "16"}, {}, ['lora_alpha is "16"']), ({"lora_alpha": 0}, {}, ["lora_alpha is 0"]),
                ({"target_modules": [*described["target_modules"], "embed_tokens"]}, {}, ["names embed_tokens", "q_proj"]),
                ({"target_modules": [*described["target_modules"], "o_proj"]}, {}, ["no tensor", "o_proj.lora_A"]),
                ({"target_modules": ["q_proj", "v_proj", "down_proj"]}, {}, ["does not name the module", "k_proj"]),
                ({"lora_dropout": 1}, {}, ["lora_dropout is 1"]), ({"use_rslora": 1}, {}, ["use_rslora is 1"]),
                ({"target_modules": 3}, {}, ["target_modules is 3"]),
                ({"r": 8}, {}, ["lora_A.weight is 4 x", "of rank 8"]),
                ({}, {f"{q}B.weight": None}, [f"no tensor {q}B.weight"]),
                ({"target_modules": "all-linear"}, {f"{v}A.weight": None}, [f"no tensor {v}A.weight"]),
                ({"target_modules": None}, {f"{name}{part}.weight": None for name in (q, v, q.replace(".self_attn.q", ".self_attn.k"))
                                            for part in "AB"}, ["blocks.0 has an adapter of qkv and blocks.1 has none"]),
                ({}, {f"{q}A.weight": wide}, ["is 4 x 33, 4 x 32 was expected"]),
                ({}, {f"{q}A.weight": np.full((RANK, 32), np.nan, np.float32)}, ["not finite"]),
                ({}, {f"{q}magnitude_vector": wide}, ["magnitude_vector", "no adapter"]),
                ({}, {q.replace(".1.", ".2.") + "A.weight": wide}, ["layers.2", "use the model"])]:
            with self.subTest(words=words):
                directory = self.directory / "bad-peft"
                directory.mkdir(exist_ok=True)
                (directory / "adapter_config.json").write_text(json.dumps({**described, **config}))
                self.write("bad-peft/adapter_model.safetensors",
                           {name: tensor for name, tensor in {**tensors, **changes}.items() if tensor is not None})
                refused = self.alone("checkpoint", "import", "llama-hf", "--adapters=bad-peft", "--output=bad")
                self.assert_refused(refused, harness.DATA, "bad-peft", *words)
        (self.directory / "bad-peft/adapter_config.json").write_text("[]")
        for path, word in (("bad-peft", "no JSON object"), ("llama-hf", "adapter_config.json is missing"), ("none", "missing")):
            refused = self.alone("checkpoint", "import", "llama-hf", f"--adapters={path}", "--output=bad")
            self.assert_refused(refused, harness.DATA, word)
        (self.directory / "bad-peft/adapter_model.safetensors").rename(self.directory / "bad-peft/adapter_model.bin")
        (self.directory / "bad-peft/adapter_config.json").write_text(json.dumps(described))
        refused = self.alone("checkpoint", "import", "llama-hf", "--adapters=bad-peft", "--output=bad")
        self.assert_refused(refused, harness.DATA, "adapter_model.bin", "safe_serialization")
        refused = self.alone("checkpoint", "import", "gpt-hf", "--adapters=llama-peft", "--output=bad")
        self.assert_refused(refused, harness.DATA, "target_modules names mlp.down_proj", "c_attn")
        self.assertFalse((self.directory / "bad").exists())

    def write(self, file, tensors):
        """A safetensors file of float32 tensors."""
        header, buffer = {}, b""
        for name, tensor in tensors.items():
            header[name] = {"dtype": "F32", "shape": list(tensor.shape),
                            "data_offsets": [len(buffer), len(buffer) + tensor.nbytes]}
            buffer += tensor.tobytes()
        text = json.dumps(header).encode()
        (self.directory / file).write_bytes(len(text).to_bytes(8, "little") + text + buffer)

    def read(self, file):
        """A safetensors file of float32 tensors."""
        data = (self.directory / file).read_bytes()
        length = int.from_bytes(data[:8], "little")
        return {name: np.frombuffer(data[8 + length:][slice(*entry["data_offsets"])], np.float32).reshape(entry["shape"])
                for name, entry in json.loads(data[8:8 + length]).items() if name != "__metadata__"}

    def test_bad_inputs(self):
        self.train(self.config, (1, 1, 1), "plain", "--train.steps=1")
        self.tune("gpt", "more", (1, 1, 1), "--train.steps=1", "--lora.train=norm.*")
        out = ["--format=huggingface", "--output=none"]
        for arguments, code, words in [
                (["checkpoint", "export", "plain", *out, "--adapters=apart"], harness.USAGE, ["has no adapters"]),
                (["checkpoint", "export", "more", *out, "--adapters=apart"], harness.USAGE, ["trained other parameters"]),
                (["checkpoint", "export", "more", "--format=safetensors", "--output=none", "--adapters=apart"], harness.USAGE,
                 ["has no form for adapters"]),
                (["checkpoint", "export", "more", *out, "--adapters=some"], harness.USAGE, ["merged, apart"])]:
            with self.subTest(arguments=arguments):
                self.assert_refused(self.alone(*arguments), code, *words)
        self.assertFalse((self.directory / "none").exists())


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
