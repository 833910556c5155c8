"""Models of other programs, brought in, evaluated, trained on a grid and taken out again, against PyTorch.

The files are written and read here, without strata: safetensors, llm.c's model file, and those of torch.save(), which
io/python/torch_to_safetensors.py converts.
Ends with 77 (skipped) where PyTorch is missing.
"""

import json
import os
import pathlib
import pickle
import runpy
import shutil
import struct
import subprocess
import sys
from collections import OrderedDict

try:
    import h5py
    import numpy as np
    import torch
    from torch.nn import functional
except ImportError as missing:
    print(f"skipped: {missing}; Debian's packages are python3-h5py, python3-numpy and python3-torch")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "mpi"))
import harness  # noqa: E402
import language  # noqa: E402
from torch_families import (NAMES, bytes_of, greedy, logits, random_weights, read_safetensors,  # noqa: E402
                            shapes, write_safetensors)
from torch_transformer import LINEAR, LLAMA3  # noqa: E402

CONTEXT, VOCABULARY = 16, 40
CONVERTER = pathlib.Path(__file__).parents[2] / "io/python/torch_to_safetensors.py"


def write_llmc(path, weights, dtype):
    """llm.c's model file: a header of 256 int32, then each kind of tensor of all layers."""
    c, padded = GPT2, 128
    header = np.zeros(256, dtype=np.int32)
    header[:8] = (20240326, 3 if dtype == torch.float32 else 5, c["n_positions"], c["vocab_size"], c["n_layer"],
                  c["n_head"], c["n_embd"], padded)
    table = weights["transformer.wte.weight"]
    tensors = [torch.cat([table, torch.zeros(padded - len(table), table.shape[1])]), weights["transformer.wpe.weight"]]
    for name in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
        for part in ("weight", "bias"):
            tensors += [weights[f"transformer.h.{block}.{name}.{part}"] for block in range(c["n_layer"])]
    tensors += [weights[f"transformer.ln_f.{part}"] for part in ("weight", "bias")]
    path.write_bytes(header.tobytes() + b"".join(bytes_of(tensor.to(dtype)) for tensor in tensors))


def write_nanogpt(path, weights, **more):
    """nanoGPT's ckpt.pt of a compiled model, with the state of its optimizer."""
    c = GPT2
    state = OrderedDict((f"_orig_mod.{name}", tensor) for name, tensor in weights.items())
    state["_orig_mod.lm_head.weight"] = state["_orig_mod.transformer.wte.weight"]
    state._metadata = OrderedDict({"": {"version": 1}})
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = torch.optim.AdamW([parameter])
    optimizer.step()
    arguments = {"n_layer": c["n_layer"], "n_head": c["n_head"], "n_embd": c["n_embd"], "block_size": c["n_positions"],
                 "bias": True, "vocab_size": c["vocab_size"], "dropout": 0.0}
    torch.save({"model": state, "optimizer": optimizer.state_dict(), "model_args": arguments, "iter_num": 1 << 40,
                "best_val_loss": torch.tensor(3.5), "config": {"name": "x", "rate": 1e-3, "none": None}, **more}, path)


GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": CONTEXT,
        "vocab_size": VOCABULARY, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 8,
         "num_key_value_heads": 4, "intermediate_size": 48, "max_position_embeddings": CONTEXT,
         "vocab_size": VOCABULARY, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 500000.0}


MODELS = {"gpt2": GPT2, "llama": LLAMA}


def gpt2_of_checkpoint(c, own):
    """Hugging Face's weights from strata's: rows of qkv are, per head, its query, its key, its value."""
    width, count = c["n_embd"], c["n_head"]
    found = {"wte.weight": own["embedding.tokens.weight"], "wpe.weight": own["embedding.positions.weight"],
             "ln_f.weight": own["norm.weight"], "ln_f.bias": own["norm.bias"]}
    for block in range(c["n_layer"]):
        for part in ("weight", "bias"):
            for name, mine in (("ln_1", "attention.norm"), ("attn.c_proj", "attention.output"), ("ln_2", "mlp.norm"),
                               ("mlp.c_fc", "mlp.up"), ("mlp.c_proj", "mlp.down")):
                found[f"h.{block}.{name}.{part}"] = own[f"blocks.{block}.{mine}.{part}"].T
            qkv = own[f"blocks.{block}.attention.qkv.{part}"]
            joined = qkv.reshape(count, 3, width // count, -1).swapaxes(0, 1).reshape(qkv.shape)
            found[f"h.{block}.attn.c_attn.{part}"] = joined.T
    return {f"transformer.{name}": array for name, array in found.items()}


def llama_of_checkpoint(c, own):
    width, kv = c["hidden_size"], c["num_key_value_heads"]
    shared, size = c["num_attention_heads"] // kv, c["hidden_size"] // c["num_attention_heads"]
    found = {"model.embed_tokens.weight": own["embedding.tokens.weight"], "model.norm.weight": own["norm.weight"]}
    if "head.weight" in own:
        found["lm_head.weight"] = own["head.weight"]
    for block in range(c["num_hidden_layers"]):
        name, mine = f"model.layers.{block}.", f"blocks.{block}."
        for theirs, ours in (("input_layernorm", "attention.norm"), ("self_attn.o_proj", "attention.output"),
                             ("post_attention_layernorm", "mlp.norm"), ("mlp.gate_proj", "mlp.gate"),
                             ("mlp.up_proj", "mlp.up"), ("mlp.down_proj", "mlp.down")):
            found[f"{name}{theirs}.weight"] = own[f"{mine}{ours}.weight"]
        qkv = own[f"{mine}attention.qkv.weight"].reshape(kv, shared + 2, size, width)
        for part, rows in (("q", qkv[:, :shared]), ("k", qkv[:, shared]), ("v", qkv[:, shared + 1])):
            found[f"{name}self_attn.{part}_proj.weight"] = rows.reshape(-1, width)
    return found


FROM_CHECKPOINT = {"gpt2": gpt2_of_checkpoint, "llama": llama_of_checkpoint}


class Models(language.LanguageTest):
    def write_model(self, name, config, weights, shards=1):
        directory = self.directory / name
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        if shards == 1:
            write_safetensors(directory / "model.safetensors", weights)
            return directory
        files = {tensor: f"model-{number % shards + 1}.safetensors" for number, tensor in enumerate(weights)}
        for file in set(files.values()):
            write_safetensors(directory / file, {n: t for n, t in weights.items() if files[n] == file})
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        return directory

    def bring_in(self, path, run, *options):
        finished = self.alone("checkpoint", "import", path, f"--output={run}", *options)
        self.assertEqual(finished.code, harness.DONE, finished.text)
        return finished

    def take_out(self, run, output, *options):
        finished = self.alone("checkpoint", "export", run, f"--output={output}", *options)
        self.assertEqual(finished.code, harness.DONE, finished.text)
        return self.directory / output

    def evaluated(self, ranks, run, *settings):
        finished = self.launch(ranks, "evaluate", run, "--data.test=text/test.h5", *settings)
        self.assertEqual(finished.code, harness.DONE, finished.text)
        return float(finished.text.split("loss ")[1].split(",")[0])

    def expected_loss(self, logits_of):
        with h5py.File(self.directory / "text/test.h5") as master:
            tokens = torch.from_numpy(master["tokens"][()].astype(np.int64))
        samples = (len(tokens) - 1) // CONTEXT
        inputs = tokens[:samples * CONTEXT].reshape(samples, CONTEXT)
        targets = tokens[1:samples * CONTEXT + 1]
        return functional.cross_entropy(logits_of(inputs).flatten(0, 1), targets).item()

    def weights_of(self, run):
        newest = harness.checkpoints(self.directory / run)[-1]
        return {name.removeprefix("weights/"): array for name, array in harness.tensors(newest).items()
                if name.startswith("weights/")}

    def assert_equal_bits(self, exported, expected):
        self.assertEqual(sorted(exported), sorted(expected))
        for name, tensor in exported.items():
            self.assertEqual(bytes_of(tensor), np.ascontiguousarray(expected[name]).tobytes(), name)

    def test_round_trips_of_hugging_face(self):
        for kind, dtype, shards, trains, changes in (
                ("gpt2", torch.float32, 1, True, {}), ("gpt2", torch.float64, 3, False, {}),
                ("llama", torch.float32, 1, False, {"tie_word_embeddings": True}),
                ("llama", torch.float64, 3, True, {})):
            with self.subTest(kind=kind, dtype=dtype):
                config = {**MODELS[kind], **changes}
                weights = random_weights(shapes(config), dtype)
                run = f"{kind}-{NAMES[dtype]}"
                self.bring_in(self.write_model(f"{run}-model", config, weights, shards), run)
                tolerance = 1e-10 if dtype == torch.float64 else 1e-5
                expected = self.expected_loss(lambda ids: logits(config, weights, ids))
                loss = self.evaluated(1, run)
                self.assertLess(abs(loss / expected - 1), tolerance)
                # The weights that came in go out again.
                self.assert_equal_bits(read_safetensors(self.take_out(run, f"{run}-same", "--format=huggingface")),
                                       {name: tensor.numpy() for name, tensor in weights.items()})
                if not trains:
                    continue
                self.assertLess(abs(self.evaluated(3, run) / loss - 1), tolerance)
                self.assertEqual(self.evaluated(4, run, "--parallel.pipeline=2", "--parallel.tensor=2"),
                                 self.evaluated(1, run, "--numerics.shards=2"))
                # Training goes on on eight ranks, from the weights that came in.
                self.train(f"{run}/config.ini", (2, 2, 2), run, "--data.train=text/train.h5",
                           "--run.resume=must", "--batch.global=16", "--train.steps=4", "--optimizer.kind=adamw",
                           "--optimizer.learning_rate=0.001")
                own = self.weights_of(run)
                exported = self.take_out(run, f"{run}-trained", "--format=huggingface", "--shard-mib=1")
                trained = read_safetensors(exported)
                self.assert_equal_bits(trained, FROM_CHECKPOINT[kind](config, own))
                expected = self.expected_loss(lambda ids: logits(config, trained, ids))
                self.assertLess(abs(self.evaluated(1, run) / expected - 1), tolerance)
                self.assertNotEqual(bytes_of(trained[min(trained)]), bytes_of(weights[min(trained)]))
                described = json.loads((exported / "config.json").read_text())
                for key, value in config.items():
                    self.assertEqual(described[key], value, key)
                self.assert_equal_bits(read_safetensors(self.take_out(run, f"{run}-own", "--format=safetensors")), own)

    def test_rotary_scaling(self):
        wide = {**LLAMA, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 10000.0}
        newer = {name: value for name, value in wide.items() if name != "rope_theta"}
        weights = random_weights(shapes(wide), torch.float64)
        losses = {}
        factors = {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0, 1.1, 1.3, 2.0],
                   "long_factor": [1.0, 1.5, 3.0, 4.0]}
        brief, extended = ({**factors, "original_max_position_embeddings": tokens} for tokens in (4096, 8))
        for name, config, dtype, written in (
                ("brief", {**wide, "rope_scaling": brief}, "float64", brief),
                ("extended", {**wide, "rope_scaling": extended}, "float64", extended),
                ("none", wide, "float64", None), ("linear", {**wide, "rope_scaling": LINEAR}, "float64", LINEAR),
                ("llama3", {**wide, "rope_scaling": LLAMA3}, "float64", LLAMA3),
                ("narrow", {**wide, "rope_scaling": LLAMA3}, "float32", LLAMA3),
                ("newer", {**newer, "rope_parameters": {"rope_theta": 10000.0, **LLAMA3}}, "float64", LLAMA3),
                ("default", {**newer, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}, "float64",
                 None)):
            with self.subTest(name):
                run = f"rotary-{name}"
                self.bring_in(self.write_model(f"{run}-model", config, weights), run, f"--dtype={dtype}")
                narrow = {tensor: value.to(getattr(torch, dtype)) for tensor, value in weights.items()}
                expected = self.expected_loss(lambda ids: logits(config, narrow, ids))
                losses[name] = self.evaluated(1, run)
                self.assertLess(abs(losses[name] / expected - 1), 1e-10 if dtype == "float64" else 1e-5)
                described = json.loads((self.take_out(run, f"{run}-out", "--format=huggingface") / "config.json")
                                       .read_text())
                self.assertEqual((described["rope_theta"], described["rope_scaling"]), (10000.0, written))
        self.assertEqual(losses["newer"], losses["llama3"])
        self.assertEqual(losses["default"], losses["none"])
        self.assertEqual(len({losses[name] for name in ("none", "linear", "llama3", "brief", "extended")}), 5)

    def test_logits_of_exports(self):
        """Exports read back as models give the checkpoint's logits, and so does PyTorch with the same files."""
        deep = {**LLAMA, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1e4,
                "rope_scaling": LLAMA3}
        for kind, config, dtype in (("gpt2", GPT2, torch.float32), ("llama", deep, torch.float64)):
            run = f"logits-{kind}"
            self.bring_in(self.write_model(f"{run}-model", config, random_weights(shapes(config), dtype, seed=5)), run)
            for width, format, words in (
                    (None, "huggingface", "equal bits"), ("bfloat16", "huggingface", "allowed for bfloat16"),
                    ("float16", "huggingface", "allowed for float16"), (None, "llmc", "equal bits")):
                if format == "llmc" and kind == "llama":
                    continue
                with self.subTest(kind=kind, width=width, format=format):
                    output = f"{run}-{format}-{width}"
                    finished = self.alone("checkpoint", "export", run, f"--format={format}", f"--output={output}",
                                          "--check-logits", f"--logits={output}.json",
                                          *([f"--dtype={width}"] if width else []))
                    self.assertEqual(finished.code, harness.DONE, finished.text)
                    self.assertIn(words, finished.text)
                    self.assertFalse((self.directory / output / "checked").exists())
                    if format == "llmc":
                        continue
                    found = json.loads((self.directory / f"{output}.json").read_text())
                    described = json.loads((self.directory / output / "config.json").read_text())
                    written = {name: tensor.to(dtype)
                               for name, tensor in read_safetensors(self.directory / output).items()}
                    expected = logits(described, written, torch.tensor(found["ids"]))[:, -1]
                    difference = (torch.tensor(found["logits"], dtype=dtype) - expected).square().mean().sqrt()
                    relative = (difference / expected.square().mean().sqrt()).item()
                    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
                    # Unrounded, PyTorch agrees; rounded, it differs as strata says.
                    self.assertLess(relative, 0.05 if width else tolerance)
                    if width:
                        self.assertGreater(relative, tolerance)
        large = random_weights(shapes(LLAMA), torch.float32)
        large["model.norm.weight"][0] = 1e5  # float16 has no such number
        self.bring_in(self.write_model("large-model", LLAMA, large), "large")
        for options, code, words in (
                (("--format=huggingface", "--dtype=float16", "--check-logits"), harness.CHECKPOINT,
                 ["the huggingface files give other logits", "wider --dtype"]),
                (("--format=safetensors", "--check-logits"), harness.USAGE, ["--format=safetensors"]),
                (("--format=huggingface", "--logits=x.json"), harness.USAGE, ["--check-logits"])):
            refused = self.alone("checkpoint", "export", "large", "--output=large-out", *options)
            self.assert_refused(refused, code, *words)
            self.assertFalse((self.directory / "large-out").exists())
            self.assertEqual(list(self.directory.glob(".large-out*")), [])

    def test_one_process_fills_an_output(self):
        self.bring_in(self.write_model("lock-model", LLAMA, random_weights(shapes(LLAMA), torch.float32)),
                      "lock-run")
        os.mkfifo(self.directory / "waits.json")
        export = ("checkpoint", "export", "lock-run", "--format=huggingface", "--output=lock-out")
        first = self.start(1, *export, "--check-logits", "--logits=waits.json")  # until somebody reads
        first.wait_until((self.directory / ".lock-out.lock").exists, 60)
        for command in (export, ("checkpoint", "import", "lock-model", "--output=lock-out")):
            self.assert_refused(self.alone(*command), harness.USAGE, "lock-out is in use by", "choose another --output")
        self.assertIn("logits", json.loads((self.directory / "waits.json").read_text()))
        self.assertEqual(first.wait(60).code, harness.DONE)
        self.assertEqual(sorted(read_safetensors(self.directory / "lock-out")), sorted(shapes(LLAMA)))
        self.assertEqual(list(self.directory.glob(".lock-out*")), [])

    def test_prompts_begin_as_the_template_says(self):
        begin, end = 256, 257
        visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        hidden = [byte for byte in range(256) if byte not in visible]
        ids = {chr(byte if byte in visible else 256 + hidden.index(byte)): byte for byte in range(256)}
        special = {"<|begin_of_text|>": begin, "<|end_of_text|>": end}
        single = [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        template = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": {
            "<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [begin], "tokens": ["<|begin_of_text|>"]}}}
        tokenizer = {"added_tokens": [{"id": id, "content": text} for text, id in special.items()],
                     "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                     "post_processor": {"type": "Sequence", "processors": [
                         {"type": "ByteLevel", "trim_offsets": False}, template]},
                     "model": {"type": "BPE", "vocab": ids, "merges": []}}
        config = {**LLAMA, "vocab_size": 258}
        weights = random_weights(shapes(config), torch.float64, seed=6)
        unprintable = [id for id in range(258) if not 32 < id < 127]
        weights["lm_head.weight"][unprintable] = 0.0  # below the largest of the others
        model = self.write_model("begin-model", config, weights)
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))
        self.bring_in(model, "begin")
        for prompt, first in (("ab", [begin, 97, 98]), ("<|begin_of_text|>ab", [begin, 97, 98]), (None, [begin])):
            with self.subTest(prompt=prompt):
                made = self.alone("generate", "begin", "--tokens=6", "--temperature=0",
                                  *([f"--prompt={prompt}"] if prompt else []))
                text = greedy(config, weights, first, 6)
                self.assertEqual(made.text.splitlines()[0], (prompt or "") + bytes(text[len(first):]).decode())
        out = self.take_out("begin", "begin-out", "--format=huggingface")
        written = json.loads((out / "tokenizer.json").read_text())["post_processor"]
        self.assertEqual((written["type"], written["single"]), ("TemplateProcessing", single))
        self.assertEqual(written["special_tokens"], template["special_tokens"])
        for file in ("config.json", "generation_config.json"):
            described = json.loads((out / file).read_text())
            self.assertEqual((described["bos_token_id"], described["eos_token_id"]), (begin, end))
        (model / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": {"type": "BertProcessing"}}))
        warned = self.bring_in(model, "left-out")
        self.assertIn('post_processor of type "BertProcessing"', warned.text)
        self.assertIn("tokenizer none", warned.text)

    def converted(self, file, directory, code=0):
        """Runs torch_to_safetensors.py; what it printed."""
        result = subprocess.run([sys.executable, CONVERTER, file, directory], cwd=self.directory, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(result.returncode, code, result.stdout)
        return result.stdout

    def test_files_of_torch_save(self):
        weights = random_weights(shapes(GPT2), torch.float32, seed=4)
        plain = {name: tensor.T.contiguous() if ".c_" in name else tensor for name, tensor in weights.items()}
        arguments = {"n_layer": GPT2["n_layer"], "n_head": np.int64(GPT2["n_head"]), "n_embd": GPT2["n_embd"],
                     "block_size": GPT2["n_positions"], "vocab_size": VOCABULARY, "bias": np.bool_(True)}
        parameters = {name: torch.nn.Parameter(tensor) for name, tensor in plain.items()}
        strided = {name: tensor.T.contiguous().T for name, tensor in plain.items()}
        no_bias = {name: tensor for name, tensor in plain.items() if not name.endswith("bias")}
        for name, more in (("numbers", {"best_val_loss": np.float64(1.5), "model_args": arguments}),
                           ("parameters", {"model": parameters}), ("strided", {"model": strided}),
                           ("no-bias", {"model": no_bias, "model_args": {**arguments, "bias": False}})):
            with self.subTest(name):
                file = f"{name}.pt"
                write_nanogpt(self.directory / file, plain, **more)
                command = f"python3 torch_to_safetensors.py {file} {name}"
                self.assert_refused(self.alone("checkpoint", "import", file, "--output=run"), harness.DATA, command)
                self.converted(file, name)
                self.bring_in(name, f"{name}-run")
                expected = plain if name != "no-bias" else no_bias
                with h5py.File(self.directory / f"{name}-run/checkpoints/step-00000000/master.h5") as checkpoint:
                    self.assertEqual(checkpoint["weights/blocks.1.mlp.up.weight"][()].tobytes(),
                                     bytes_of(expected["transformer.h.1.mlp.c_fc.weight"]))
                    self.assertEqual("weights/blocks.1.mlp.up.bias" in checkpoint, name != "no-bias")
        # A state dict beside the config.json of its model.
        model = self.write_model("bin-model", GPT2, weights)
        (model / "model.safetensors").unlink()
        torch.save({**weights, "h.0.attn.bias": torch.ones(4, 4, dtype=torch.bool)}, model / "pytorch_model.bin")
        self.assert_refused(self.alone("checkpoint", "import", model, "--output=run"), harness.DATA, "torch_to_safetensors.py")
        self.assert_refused(self.alone("checkpoint", "import", model / "pytorch_model.bin", "--output=run"), harness.DATA,
                            f"torch_to_safetensors.py {model / 'pytorch_model.bin'} {model},")
        self.converted(model / "pytorch_model.bin", model)
        self.bring_in(model, "bin-run")
        self.assert_equal_bits(read_safetensors(self.take_out("bin-run", "bin-out", "--format=huggingface")),
                               {name: tensor.numpy() for name, tensor in weights.items()})
        # What the script refuses.
        self.assertIn("exists", self.converted(model / "pytorch_model.bin", model, code=1))
        self.assertIn("number of heads", self.converted(model / "pytorch_model.bin", "alone", code=1))
        write_nanogpt(self.directory / "evil.pt", weights, evil=pathlib.PurePosixPath("x"))
        write_nanogpt(self.directory / "flipped.pt", weights)
        data = bytearray((self.directory / "flipped.pt").read_bytes())
        data[data.find(bytes_of(weights["transformer.wpe.weight"])) + 3] ^= 0x40
        (self.directory / "flipped.pt").write_bytes(data)
        (self.directory / "cut.pt").write_bytes(data[:-100])
        torch.save({"model": weights, "model_args": {"n_layer": 2}}, self.directory / "facts.pt")
        torch.save({"model": weights}, self.directory / "old.pt", _use_new_zipfile_serialization=False)
        self.assert_refused(self.alone("checkpoint", "import", "old.pt", "--output=run"), harness.DATA, "torch_to_safetensors.py")
        for file, words in (("evil.pt", "refers to pathlib.PurePosixPath"), ("flipped.pt", "Bad CRC-32"), ("cut.pt", "truncated"),
                            ("facts.pt", "no whole number n_head"), ("old.pt", "from 1.6 on"), ("missing.pt", "No such file")):
            self.assertIn(words, self.converted(file, "refused", code=1))
        self.assertEqual(list((self.directory / "refused").iterdir()), [])
        namespace = runpy.run_path(str(CONVERTER))
        for wrong in ((-1, (2,), (1,)), (0, (2, 2), (5, -3)), (0, (2,), (1, 1)), (0, (1.0,), (1,))):
            with self.assertRaises(pickle.UnpicklingError):
                namespace["tensor_of"](("F32", "u4", "0"), *wrong)

    def test_narrow_types(self):
        for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
            weights = random_weights(shapes(LLAMA), dtype, seed=2)
            some = next(iter(weights.values()))
            some[0, :6] = torch.tensor([0.0, -0.0, 6e-8, -3e-5, 1e-3, 6e4], dtype=dtype)
            run = f"narrow-{name}"
            self.bring_in(self.write_model(f"{run}-model", LLAMA, weights), run)
            wide = read_safetensors(self.take_out(run, f"{run}-wide", "--format=huggingface"))
            narrow = read_safetensors(self.take_out(run, f"{run}-out", "--format=huggingface", f"--dtype={name}"))
            for tensor, value in weights.items():
                self.assertEqual(bytes_of(wide[tensor]), bytes_of(value.float()), tensor)
                self.assertEqual(bytes_of(narrow[tensor]), bytes_of(value), tensor)
        run = "narrow-rounded"
        weights = random_weights(shapes(LLAMA), torch.float64, seed=3)
        some = next(iter(weights.values()))
        # Ties of float16, a number too large for it, and ones below its smallest.
        some[0, :8] = torch.tensor([1 + 2**-11, 1 + 3 * 2**-11, 65519.9, 65520.0, 2**-25, 3 * 2**-26, -1e-9, 1e30])
        self.bring_in(self.write_model(f"{run}-model", LLAMA, weights), run)
        for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16"), (torch.float32, "float32")):
            narrow = read_safetensors(self.take_out(run, f"{run}-{name}", "--format=huggingface", f"--dtype={name}"))
            for tensor, value in weights.items():
                self.assertEqual(bytes_of(narrow[tensor]), bytes_of(value.to(dtype)), f"{name} {tensor}")

    def test_llmc_and_nanogpt(self):
        weights = random_weights(shapes(GPT2), torch.float32, seed=4)
        plain = {name: tensor.T.contiguous() if ".c_" in name else tensor for name, tensor in weights.items()}
        # nanoGPT computes the exact GELU, llm.c its tanh form.
        configs = {"ckpt": {**GPT2, "activation_function": "gelu"}, "llmc.bin": GPT2}
        write_llmc(self.directory / "llmc.bin", plain, torch.float32)
        write_llmc(self.directory / "llmc16.bin", plain, torch.bfloat16)
        write_nanogpt(self.directory / "ckpt.pt", plain)
        self.converted("ckpt.pt", "ckpt")
        for path, config in configs.items():
            run = f"run-{path}"
            expected = self.expected_loss(lambda ids, config=config: logits(config, weights, ids))
            self.bring_in(path, run, "--data=text/train.h5")
            self.assertLess(abs(self.evaluated(1, run) / expected - 1), 1e-5)
            self.assert_equal_bits(read_safetensors(self.take_out(run, f"{run}-out", "--format=huggingface")),
                                   {name: tensor.numpy() for name, tensor in weights.items()})
            generated = self.alone("generate", run, "--prompt=amber", "--tokens=5")
            self.assertEqual(generated.code, harness.DONE, generated.text)
        self.bring_in("llmc16.bin", "run-llmc16")
        self.assert_refused(self.alone("checkpoint", "export", "run-ckpt", "--format=llmc", "--output=no"), harness.USAGE,
                            "another GPT than one with gelu")
        for run, dtype, name in (("run-llmc.bin", "float32", "llmc.bin"), ("run-llmc16", "bfloat16", "llmc16.bin")):
            out = self.take_out(run, f"{run}-{dtype}", "--format=llmc", f"--dtype={dtype}")
            self.assertEqual((out / "model.bin").read_bytes(), (self.directory / name).read_bytes())

    def test_what_is_refused(self):
        weights = random_weights(shapes(GPT2), torch.float32)
        llama = random_weights(shapes(LLAMA), torch.float32)
        one = "transformer.h.1.mlp.c_fc.weight"
        cases = [
            ("other", GPT2, llama, ["no tensor transformer.wte.weight", "another architecture"]),
            ("more", GPT2, {**weights, "score.weight": weights[one]}, ["has the tensor score.weight"]),
            ("less", GPT2, {n: t for n, t in weights.items() if n != one}, [f"no tensor {one}", "32 x 128"]),
            ("shape", {**GPT2, "n_inner": 64}, weights, ["c_fc.weight is 32 x 128", "asks for 32 x 64"]),
            ("gelu", {**GPT2, "activation_function": "quick_gelu"}, weights, ['is "quick_gelu"', "gelu_new", "gelu"]),
            *((f"rope-{kind}", {**LLAMA, key: {"rope_type": kind, "factor": factor}}, llama,
               [key, kind, "default, linear (factor), llama3", "yarn (factor"])
              for key, kind, factor in (("rope_scaling", "yarn", 0.5), ("rope_parameters", "dynamic", 2.0),
                                        ("rope_scaling", "longrope", 4.0), ("rope_scaling", "llama3", 8.0),
                                        ("rope_scaling", "linear", 0.5))),
            ("rope-none", {**LLAMA, "rope_scaling": "linear"}, llama, ["rope_scaling is \"linear\""]),
            ("head", {**LLAMA, "head_dim": 8}, llama, ["q_proj.weight is 32 x 32", "asks for 64 x 32"]),
            ("new", {**LLAMA, "attention_sinks": None}, llama, ["attention_sinks is null", "does not know of llama"]),
            ("bias", {**LLAMA, "attention_bias": True}, llama, ["attention_bias is true"]),
            ("mlp", {**LLAMA, "mlp_bias": True}, llama, ["mlp_bias is true"]),
            ("act", {**LLAMA, "hidden_act": "gelu_pytorch_tanh"}, llama, ['hidden_act is "gelu_pytorch_tanh"', "silu"]),
            ("window", {**LLAMA, "sliding_window": 8}, llama, ["sliding_window is 8", "null"]),
            ("partial", {**LLAMA, "partial_rotary_factor": 0.5}, llama, ["partial_rotary_factor is 0.5"]),
            ("part", {**LLAMA, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, llama,
             ["rope_parameters is", "of whole heads"]),
            ("quantized", {**LLAMA, "quantization_config": {"bits": 4}}, llama, ["quantization_config is", "convert"]),
            ("untied", LLAMA, {n: t for n, t in llama.items() if n != "lm_head.weight"}, ["no tensor lm_head.weight", "set tie_word_embeddings to true"]),
            ("kind", {**GPT2, "model_type": "bert"}, weights, ['model_type is "bert"', "gpt2, llama, qwen2"]),
            ("size", {**GPT2, "n_layer": 10**12}, weights, ["n_layer is 1000000000000"]),
            ("heads", {**GPT2, "n_head": 5}, weights, ["n_head is 5"]),
            ("whole", {**GPT2, "vocab_size": 1e300}, weights, ["vocab_size is 1e+300"]),
            ("tied", GPT2, {**weights, "lm_head.weight": 2 * weights["transformer.wte.weight"]}, ["lm_head.weight"])]
        for name, config, tensors, words in cases:
            with self.subTest(name):
                path = self.write_model(f"bad-{name}", config, tensors)
                refused = self.alone("checkpoint", "import", path, "--output=bad")
                self.assert_refused(refused, harness.DATA, *words)
        # What changes nothing gives the same layers.
        for base, tensors, changes in (
                (GPT2, weights, {"activation_function": "gelu_pytorch_tanh"}), (GPT2, weights, {"n_inner": None}),
                (GPT2, weights, {"architectures": ["GPT2LMHeadModel"], "torch_dtype": "float16"}),
                (GPT2, {**weights, "lm_head.weight": weights["transformer.wte.weight"]}, {"tie_word_embeddings": True}),
                (LLAMA, llama, {"head_dim": 4, "sliding_window": None, "rope_scaling": None, "pretraining_tp": 2}),
                (LLAMA, llama, {"tie_word_embeddings": None, "torch_dtype": "float16", "mlp_bias": False}),
                (LLAMA, {n.removeprefix("model."): t for n, t in llama.items()}, {"hidden_act": "silu"})):
            with self.subTest(changes=changes):
                layers = []
                for run, config, written in (("plain", base, weights if base is GPT2 else llama),
                                             ("variant", {**base, **changes}, tensors)):
                    self.bring_in(self.write_model(f"{run}-model", config, written), run)
                    layers.append([line for line in (self.directory / run / "config.ini").read_text().splitlines()
                                   if line.startswith(("layer", "context", "vocabulary", "dtype"))])
                    for made in (run, f"{run}-model"):
                        shutil.rmtree(self.directory / made)
                self.assertEqual(*layers)
        twice = self.write_model("bad-twice", GPT2, weights, 2)
        index = twice / "model.safetensors.index.json"
        index.write_text(index.read_text().replace(
            '"weight_map": {', f'"weight_map": {{"{one}": "model-1.safetensors", ', 1))
        without = self.write_model("bad-weights", GPT2, weights)
        (without / "model.safetensors").rename(without / "pytorch_model.bin")
        sharded = self.write_model("bad-shard", GPT2, weights, 2)
        (sharded / "model-2.safetensors").unlink()
        cut = self.write_model("bad-cut", GPT2, weights)
        data = (cut / "model.safetensors").read_bytes()
        (cut / "model.safetensors").write_bytes(data[:-1])
        (self.directory / "cut.bin").write_bytes(struct.pack("<8i", 20240326, 3, 16, 40, 2, 4, 32, 128) + bytes(2000))
        for path, words in (("bad-shard", ["model-2.safetensors is missing"]), ("bad-cut", ["truncated"]),
                            ("bad-twice", ["a key twice"]), ("bad-weights", ["neither", "in safetensors"]),
                            ("cut.bin", ["truncated"]),
                            ("nothing", ["is missing"]), ("text.txt", ["no model"]), ("text", ["config.json"])):
            self.assert_refused(self.alone("checkpoint", "import", path, "--output=bad"), harness.DATA, *words)
        self.assertFalse((self.directory / "bad").exists())
        good = self.write_model("good-model", LLAMA, llama)
        self.bring_in(good, "good")
        for command, words in ((("import", good, "--output=good"), ["good exists"]),
                               (("import", good), ["--output=DIR"]),
                               (("export", "good", "--output=out"), ["needs --format=huggingface|llmc|safetensors"]),
                               (("export", "good", "--format=llmc", "--output=out"), ["a model of the family llama"]),
                               (("export", "good", "--format=huggingface", "--output=good"), ["exists"]),
                               (("export", "good", "--format=safetensors", "--dtype=int8", "--output=out"),
                                ["int8"])):
            self.assert_refused(self.alone("checkpoint", *command), harness.USAGE, *words)
        self.assertFalse((self.directory / "out").exists())
        self.assertEqual(list(self.directory.glob(".*partial")), [])


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    torch.set_num_threads(1)
    harness.main()
