"""Each family of torch_families.py brought in, evaluated, trained on a grid and taken out again, against PyTorch.

    families_reference.py [--families=qwen3,...] [--cards=docs/models] [tests as unittest names them]

--cards writes a page for each family whose every check passed, with what was measured.
Ends with 77 (skipped) where PyTorch is missing.
"""

import argparse
import json
import pathlib
import re
import sys
import textwrap

try:
    import h5py
    import torch
except ImportError as missing:
    print(f"skipped: {missing}; Debian's packages are python3-h5py, python3-numpy and python3-torch")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "mpi"))
import harness  # noqa: E402
import language  # noqa: E402
from torch_families import (FAMILIES, bytes_of, greedy, logits, random_adapters, read_safetensors,  # noqa: E402
                            settings_of, small_model, write_safetensors)

TOLERANCES = {"float64": 1e-12, "float32": 1e-5}  # of the largest logit
TOKENS, PROMPT = 64, "amber brook "
STEPS, GRID = 4, (2, 2, 2)
RANK, ALPHA = 3, 7.5
ADAPTED = ("q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down")
# Presets whose plan a family's card has, and what is planned.
PRESETS = {"gpt2": ["gpt2-124m", "gpt2-1558m"], "gpt_neox": ["pythia-1.4b", "pythia-6.9b"],
           "llama": ["llama3.2-1b", "llama3-8b"], "mistral": ["mistral-7b", "mistral-nemo-12b"],
           "qwen2": ["qwen2.5-1.5b", "qwen2.5-7b"], "qwen3": ["qwen3-1.7b", "qwen3-8b"], "smollm3": ["smollm3-3b"],
           "gemma2": ["gemma2-2b", "gemma2-9b"], "gemma3_text": ["gemma3-1b", "gemma3-12b"],
           "olmo2": ["olmo2-1b", "olmo2-7b"], "phi3": ["phi3-mini-4k", "phi4-14b"]}
PLANNED = {"samples": 64, "tokens": 4096, "nodes": (1, 2, 4, 8, 16, 32)}


class Families(language.LanguageTest):
    names = list(FAMILIES)
    cards = None
    measured = {name: {} for name in FAMILIES}

    @classmethod
    def tearDownClass(cls):
        """Writes the pages of families that have all measurements; says which have not."""
        for name in cls.names if cls.cards else ():
            if len(cls.measured[name]) == 5:
                (cls.cards / f"{name}.md").write_text(cls().card(name))
            else:
                print(f"{name}: no card, as not every check passed", file=sys.stderr)
        super().tearDownClass()

    def brought_in(self, name):
        """The family's config.json and weights in float64, and its runs NAME-float64 and NAME-float32."""
        config, weights = small_model(name)
        model = self.directory / f"{name}-model"
        if not (self.directory / f"{name}-float32").exists():
            model.mkdir(exist_ok=True)
            (model / "config.json").write_text(json.dumps(config))
            write_safetensors(model / "model.safetensors", weights)
            for dtype in TOLERANCES:
                self.alone("checkpoint", "import", model, f"--output={name}-{dtype}", f"--dtype={dtype}",
                           "--data=text/train.h5", expect=harness.DONE)
        return config, weights

    def test_logits_and_files(self):
        """Imported weights give the reference's logits and go out as they came in."""
        for name in self.names:
            with self.subTest(name):
                config, weights = self.brought_in(name)
                for dtype, tolerance in TOLERANCES.items():
                    run, narrow = f"{name}-{dtype}", {n: w.to(getattr(torch, dtype)) for n, w in weights.items()}
                    self.alone("checkpoint", "export", run, "--format=huggingface", f"--output={run}-out", "--check-logits",
                               f"--logits={run}.json", expect=harness.DONE)
                    exported = read_safetensors(self.directory / f"{run}-out")
                    self.assertEqual({n: (w.shape, bytes_of(w)) for n, w in exported.items()},
                                     {n: (w.shape, bytes_of(w)) for n, w in narrow.items()})
                    described = json.loads((self.directory / f"{run}-out/config.json").read_text())
                    self.assertEqual({key: described.get(key, "missing") for key in config},
                                     {**config, **({"torch_dtype": dtype} if "torch_dtype" in config else {})})
                    found = json.loads((self.directory / f"{run}.json").read_text())
                    expected = logits(config, narrow, torch.tensor(found["ids"]))[:, -1]
                    difference = (torch.tensor(found["logits"], dtype=expected.dtype) - expected).abs().max()
                    self.measured[name][dtype] = (difference / expected.abs().max()).item()
                    self.assertLess(self.measured[name][dtype], tolerance)
                self.measured[name]["tensors"] = len(weights)

    def test_greedy_text(self):
        """Generation with a cache takes the tokens of the largest logits, which the reference computes anew for each."""
        with h5py.File(self.directory / "text/train.h5") as master:
            characters = "".join(map(chr, master["text/characters"][()]))
        for name in self.names:
            with self.subTest(name):
                config, weights = self.brought_in(name)
                ids = greedy(config, weights, map(characters.index, PROMPT), TOKENS)
                made = self.alone("generate", f"{name}-float64", f"--prompt={PROMPT}", f"--tokens={TOKENS}", "--temperature=0",
                                  expect=harness.DONE)
                self.assertEqual(made.text.splitlines()[0], "".join(characters[id] for id in ids))
                self.measured[name]["text"] = len(set(ids[-TOKENS:]))

    def test_same_bits_on_a_grid(self):
        """Training from the weights that came in has the same losses, norms and weights on eight ranks and on one."""
        for name in self.names:
            with self.subTest(name):
                self.brought_in(name)
                for grid in ((1, 1, 1), GRID):
                    self.train(f"{name}-float32/config.ini", grid, f"{name}-{grid}", f"--checkpoint.init={name}-float32",
                               "--data.train=text/train.h5", "--model.context=16", "--batch.global=8", "--batch.micro=2",
                               "--numerics.lanes=2", "--numerics.shards=2", f"--train.steps={STEPS}",
                               "--optimizer.kind=adamw", "--optimizer.learning_rate=0.001")
                self.assert_same_run(f"{name}-{(1, 1, 1)}", f"{name}-{GRID}")
                losses = [float(record["loss"]) for record in self.records(f"{name}-{GRID}", "train")]
                self.assertEqual(len(losses), STEPS)
                self.measured[name]["losses"] = losses

    def test_adapters(self):
        """Adapters of PEFT's form give the reference's logits, of all modules or of some, and go out as they came in
        where modules of one product have one A, else as one adapter that has all A of the product."""
        for name in self.names:
            everything = [role for role in ADAPTED if role in FAMILIES[name].names]
            fused = "gate_up" in everything  # two products of strata
            for case, roles in (("all", everything), ("some", ["v", "q", "qkv", "down"])):
                with self.subTest(f"{name}, {case}"):
                    self.check_adapters(name, f"{name}-{case}", roles, fused and case == "all")

    def test_text_part(self):
        """The text part of a model with vision, in older and newer files, comes in and goes out as its family does."""
        vision = {"vision_tower.a.weight": torch.zeros(3, 5), "multi_modal_projector.b": torch.zeros(7)}
        for whole, name, older in (("gemma3", "gemma3_text", True), ("mistral3", "mistral", False)):
            if name not in self.names:
                continue
            with self.subTest(whole):
                config, weights = small_model(name)
                adapters = random_adapters(config, ("o",), RANK)

                def named(tensor):
                    if older or not tensor.startswith("model."):
                        return f"language_model.{tensor}" if older else tensor
                    return tensor.replace("model.", "model.language_model.", 1)
                outer = ("bos_token_id", "eos_token_id", "torch_dtype", "transformers_version")
                model, peft = self.directory / whole, self.directory / f"{whole}-peft"
                for directory in (model, peft):
                    directory.mkdir()
                (model / "config.json").write_text(json.dumps({
                    "architectures": ["Gemma3ForConditionalGeneration"], "image_token_index": 9, "model_type": whole,
                    "tie_word_embeddings": True, "vision_config": {"hidden_size": 5}, **{key: config[key] for key in outer},
                    "text_config": {key: value for key, value in config.items() if key not in (*outer, "architectures")}}))
                write_safetensors(model / "model.safetensors", {
                    **{named(n): w for n, w in weights.items()}, **{"model." * (not older) + n: w for n, w in vision.items()}})
                write_safetensors(peft / "adapter_model.safetensors",
                                  {f"base_model.model.{named(n)}": w for n, w in adapters.items()})
                (peft / "adapter_config.json").write_text(json.dumps(
                    {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["o_proj"], "bias": "none"}))
                said = self.alone("checkpoint", "import", model, f"--output={whole}-run", f"--adapters={peft}",
                                  "--dtype=float64", "--data=text/train.h5", expect=harness.DONE).text
                self.assertIn(f"left out of {whole}: 2 tensors of 88 B, multi_modal_projector and vision_tower; exports are of "
                              f"{name}, the text part alone", said)
                self.alone("checkpoint", "export", f"{whole}-run", "--format=huggingface", f"--output={whole}-low",
                           "--adapters=apart", expect=harness.DONE)
                self.assertEqual({n: bytes_of(w) for n, w in read_safetensors(self.directory / f"{whole}-low").items()},
                                 {f"base_model.model.{n}": bytes_of(w) for n, w in adapters.items()})
                self.alone("checkpoint", "import", model, f"--output={whole}-plain", "--data=text/train.h5", expect=harness.DONE)
                self.alone("checkpoint", "export", f"{whole}-plain", "--format=huggingface", f"--output={whole}-out",
                           "--check-logits", expect=harness.DONE)
                self.assertEqual({n: bytes_of(w) for n, w in read_safetensors(self.directory / f"{whole}-out").items()},
                                 {n: bytes_of(w) for n, w in weights.items()})
                described = json.loads((self.directory / f"{whole}-out/config.json").read_text())
                self.assertEqual({key: described.get(key, "missing") for key in config}, config)
                self.assertFalse({"text_config", "vision_config", "image_token_index"} & set(described))

    def check_adapters(self, name, run, roles, fused):
        config, weights = self.brought_in(name)
        adapters = random_adapters(config, roles, RANK)
        peft = self.directory / f"{run}-peft"
        peft.mkdir()
        targets = sorted({".".join(matrix.split(".")[-4:-2]) for matrix in adapters})
        described = {"base_model_name_or_path": "base", "bias": "none", "fan_in_fan_out": FAMILIES[name].transposed,
                     "lora_alpha": ALPHA, "lora_dropout": 0.05, "peft_type": "LORA", "r": RANK, "rank_pattern": {},
                     "target_modules": targets, "task_type": "CAUSAL_LM", "use_rslora": False}
        (peft / "adapter_config.json").write_text(json.dumps(described))
        for dtype, tolerance in list(TOLERANCES.items())[int(run.endswith("some")):]:
            narrow, low = ({n: w.to(getattr(torch, dtype)) for n, w in tensors.items()} for tensors in (weights, adapters))
            write_safetensors(peft / "adapter_model.safetensors", {f"base_model.model.{n}": w for n, w in low.items()})
            made = f"{run}-{dtype}"
            self.alone("checkpoint", "import", f"{name}-model", f"--adapters={peft}", f"--output={made}", f"--dtype={dtype}",
                       "--data=text/train.h5", expect=harness.DONE)
            self.alone("checkpoint", "export", made, "--format=huggingface", f"--output={made}-merged", "--check-logits",
                       f"--logits={made}.json", expect=harness.DONE)
            found = json.loads((self.directory / f"{made}.json").read_text())
            expected = logits({**config, "lora_scale": ALPHA / RANK}, {**narrow, **low}, torch.tensor(found["ids"]))[:, -1]
            difference = (torch.tensor(found["logits"], dtype=expected.dtype) - expected).abs().max()
            self.assertLess((difference / expected.abs().max()).item(), tolerance)
        apart = ["--format=huggingface", "--adapters=apart"]
        if fused:
            refused = self.alone("checkpoint", "export", made, *apart, f"--output={run}-out")
            self.assert_refused(refused, harness.USAGE, "PEFT has one for a tensor")
            return
        self.alone("checkpoint", "export", made, *apart, f"--output={run}-out", expect=harness.DONE)
        first = read_safetensors(self.directory / f"{run}-out")
        stacked = sum(role in roles for role in "qkv" if role in FAMILIES[name].names) or 1
        written = json.loads((self.directory / f"{run}-out/adapter_config.json").read_text())
        self.assertEqual((written["r"], written["lora_alpha"]), (RANK * stacked, ALPHA * stacked))
        self.assertEqual(sorted(written), sorted(described))
        if stacked == 1:
            self.assertEqual(written, described)
            self.assertEqual({n: bytes_of(w) for n, w in first.items()},
                             {f"base_model.model.{n}": bytes_of(w) for n, w in low.items()})
        # The files of an export come in and go out with the same bytes.
        self.alone("checkpoint", "import", f"{name}-model", f"--adapters={run}-out", f"--output={run}-again",
                   "--dtype=float32", "--data=text/train.h5", expect=harness.DONE)
        self.alone("checkpoint", "export", f"{run}-again", *apart, f"--output={run}-twice", expect=harness.DONE)
        for file in ("adapter_model.safetensors", "adapter_config.json"):
            once, twice = ((self.directory / f"{run}-{out}" / file).read_bytes() for out in ("out", "twice"))
            self.assertEqual(once, twice)

    def planned(self, preset, tokens):
        """A row: the preset's fastest grid on the fewest nodes of H100, the time of its step and a rank's memory."""
        config = self.write_config(f"{preset}.ini", f"[model]\npreset = {preset}\ncontext = {tokens}\n[data]\n"
                                   "train = absent.h5\n[numerics]\ndtype = bfloat16\n[batch]\n"
                                   f"global = {PLANNED['samples']}\n[train]\nsteps = 1\n")
        plans = (self.alone("plan", config, f"--nodes={nodes}", "--machine=h100", "--search") for nodes in PLANNED["nodes"])
        text = next(plan.text for plan in plans if plan.code == harness.DONE)
        grid = re.search(r"fits h100 as (.*? nodes?):", text).group(1)
        step, speed, mfu = re.search(r"(?m)^step: (.*?), .*?([\d,]+ tokens/s), MFU (.*)$", text).groups()
        memory = re.search(r"(?m)^memory: .* needs (.*) of ", text).group(1)
        return f"| `{preset}` | {grid} | {step} | {speed} | {mfu} | {memory} |"

    def card(self, name):
        family, measured, (config, _) = FAMILIES[name], self.measured[name], small_model(name)
        c, version = settings_of(config), self.alone("--version").text.splitlines()[0]
        table = [
            *(f"| logits in {dtype}, after 4 sequences of 64 tokens | the reference in {dtype} | largest "
              f"difference {measured[dtype]:.1e} of the largest logit; {tolerance:.0e} is allowed |"
              for dtype, tolerance in TOLERANCES.items()),
            f"| {TOKENS} greedy tokens in float64, with a cache; {measured['text']} different ones | the reference without a "
            "cache | equal |",
            f"| the {measured['tensors']} exported tensors, float64 and float32 | the imported ones | equal names, shapes and "
            "bytes |",
            f"| the {len(config)} keys of `config.json`, exported | imported | equal; `torch_dtype` is the export's |",
            f"| {STEPS} steps of AdamW in float32 on {' x '.join(map(str, GRID))} ranks (data x pipeline x tensor) | one rank | "
            f"equal bits of losses, gradient norms and weights; losses {measured['losses'][0]:.6f} to "
            f"{measured['losses'][-1]:.6f} |"]
        parts = [
            f"# {family.title} (`{name}`)",
            f"Measured by `tests/reference/families_reference.py` with {version} on CPU cores, on a small model with random "
            f"weights: {c['num_hidden_layers']} blocks, width {c['hidden_size']}, {c['num_attention_heads']} heads of "
            f"{c['head_dim']}, {c['num_key_value_heads']} key-value head{'s' * (c['num_key_value_heads'] > 1)}, "
            f"{c['intermediate_size']} hidden units, {c['vocab_size']} token ids.",
            f"The reference is `tests/reference/torch_families.py`, our own forward pass in PyTorch. Sources: {family.source}; "
            f"the keys of the config.json of {family.published}.",
            "\n".join(["| compared | with | result |", "|---|---|---|", *table]),
            f"Keys in these runs: {', '.join(f'`{key}`' for key in sorted(config))}."]
        if PRESETS.get(name):
            tokens = 0 if "positions" in family.names else PLANNED["tokens"]
            rows = [self.planned(preset, tokens) for preset in PRESETS[name]]
            context = f"{tokens:,} tokens" if tokens else "the preset's context"
            parts += [f"Forecasts of `strata plan` for nodes of 8 H100, in bfloat16, a step being {PLANNED['samples']} samples "
                      f"of {context}:",
                      "\n".join(["| preset | grid | step | speed | MFU | memory of a rank |", "|" + "---|" * 6, *rows])]
        parts.append("Not run: published weights, another program's forward pass, a GPU.")
        return "\n\n".join(part if part.startswith("|") else textwrap.fill(part, 128, break_on_hyphens=False)
                           for part in parts) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--families", type=lambda text: text.split(","), default=list(FAMILIES))
    parser.add_argument("--cards", type=pathlib.Path)
    options, rest = parser.parse_known_args()
    if unknown := set(options.families) - set(FAMILIES):
        parser.error(f"there is no family {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")
    Families.names = options.families
    if options.cards:
        Families.cards = options.cards.resolve()
    sys.argv[1:] = rest
    harness.main()


if __name__ == "__main__":
    main()
