"""parallel.sync = local against PyTorch: local SGD with an outer optimizer (DiLoCo), whole and in streamed fragments.

Written from the algorithm, not from strata: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language
Models", 2023, and "Streaming DiLoCo with overlapping communication", 2025. Islands train one after the other in this
process. Ends with 77 (skipped) where PyTorch is missing.
"""

import sys
import warnings
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, combinations, pairwise

try:
    import h5py
    import numpy as np
    import torch
    from torch.nn import functional
except ImportError as missing:
    print(f"skipped: {missing}; Debian's packages are python3-h5py, python3-numpy and python3-torch")
    sys.exit(77)

from models_reference import CONTEXT, GPT2, gpt2_of_checkpoint, harness, language, logits  # noqa: E402

BATCH, STEPS = 16, 50
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}

# The gradient of a key's bias is rounding alone; so small an epsilon as usual would make updates of it.
INNER = {
    "sgd": {"kind": "sgd", "learning_rate": 0.05, "momentum": 0.9},
    "adamw": {"kind": "adamw", "learning_rate": 0.003, "epsilon": 1e-4, "weight_decay": 0.1, "decay": "all",
              "clip_norm": 0.5},
}


def layer_of(name):
    """The place of a parameter's layer in the model; a tied head has no parameter of its own."""
    match name.split("."):
        case ["embedding", *_]:
            return 0
        case ["blocks", block, part, *_]:
            return 1 + 2 * int(block) + (part == "mlp")
        case ["norm", *_]:
            return 1 + 2 * GPT2["n_layer"]
        case [dense, _]:
            return int(dense.removeprefix("dense"))


@dataclass
class Local:
    """The settings of parallel.sync = local."""
    islands: int = 4
    steps: int = 10
    outer_rate: float = 0.7
    outer_momentum: float = 0.9
    fragments: int = 1
    delay: int = 0
    mix: float = 0.0
    exchange: str = "full"

    def settings(self):
        rows = {f"local.{name}": getattr(self, name) for name in
                ("steps", "outer_rate", "outer_momentum", "fragments", "delay", "mix", "exchange") if getattr(self, name) !=
                getattr(Local, name) or name in ("steps", "outer_rate", "outer_momentum")}
        return [f"--{key}={value}" for key, value in
                {"parallel.sync": "local", "parallel.islands": self.islands, **rows}.items()]

    def fragments_at(self, step, lead=0):
        """Fragments that are merged `lead` steps after `step`: one after the other, the last at the end of a round. Where
        fragments do not divide the steps, the first ones take one more each."""
        ends = accumulate(self.steps // self.fragments + (fragment < self.steps % self.fragments)
                          for fragment in range(self.fragments))
        return [fragment for fragment, end in enumerate(ends) if (step + lead - end) % self.steps == 0]

    def names_of_fragments(self, weights):
        """Consecutive layers, whose numbers of parameters differ as little as can be."""
        layers = {}
        for name in weights:
            layers.setdefault(layer_of(name), []).append(name)
        layers = [layers[key] for key in sorted(layers)]
        sizes = [sum(weights[name].numel() for name in names) for names in layers]
        splits = [(0, *ends, len(layers)) for ends in combinations(range(1, len(layers)), self.fragments - 1)]
        split = min(splits, key=lambda split: max(sum(sizes[first:last]) for first, last in pairwise(split)))
        return [sum(layers[first:last], []) for first, last in pairwise(split)]


class Rounding:
    """Sends tensors in so few bits, or bfloat16, and adds what that rounds off to the next."""

    def __init__(self, exchange):
        self.exchange = exchange
        self.errors = {}

    def rounded(self, exact):
        if self.exchange == "bfloat16":
            return exact.float().bfloat16().to(exact.dtype)
        most = 2 ** (int(self.exchange.removeprefix("int")) - 1) - 1
        groups = functional.pad(exact.flatten().float(), (0, -exact.numel() % 128)).view(-1, 128)
        scale = groups.abs().amax(1, keepdim=True) / most
        sent = (groups / scale).nan_to_num(0.0).round() * scale
        return sent.flatten()[:exact.numel()].view(exact.shape).to(exact.dtype)

    def sent(self, name, exact):
        if self.exchange == "full":
            return exact
        exact = exact + self.errors.get(name, 0.0)
        sent = self.rounded(exact)
        self.errors[name] = exact - sent
        return sent


class Island:
    """Weights of its own and an optimizer, whose state stays here."""

    def __init__(self, weights, inner):
        self.weights = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
        self.clip = inner.get("clip_norm", 0.0)
        parameters, rate = list(self.weights.values()), inner["learning_rate"]
        self.optimizer = torch.optim.SGD(parameters, lr=rate, momentum=inner["momentum"]) if inner["kind"] == "sgd" else \
            torch.optim.AdamW(parameters, lr=rate, eps=inner["epsilon"], weight_decay=inner["weight_decay"])

    def train(self, loss_of, batch):
        self.optimizer.zero_grad()
        loss = loss_of(self.weights, *batch)
        loss.backward()
        gradients = [tensor.grad for tensor in self.weights.values()]
        norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
        if self.clip and norm > self.clip:
            for gradient in gradients:
                gradient.mul_(self.clip / norm)
        self.optimizer.step()
        return loss.item()


def train_plainly(weights, loss_of, batches, inner):
    island = Island(weights, inner)
    return [island.train(loss_of, batch) for batch in batches], island.weights


def train_locally(weights, loss_of, batches, inner, local):
    """The mean loss of every step, and the outer weights."""
    islands = [Island(weights, inner) for _ in range(local.islands)]
    outer = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    optimizer = torch.optim.SGD(outer.values(), lr=local.outer_rate, momentum=local.outer_momentum,
                                nesterov=local.outer_momentum > 0)
    names = local.names_of_fragments(weights)
    senders, sums = [Rounding(local.exchange) for _ in islands], Rounding(local.exchange)
    differences, losses = {}, []
    for step, (inputs, targets) in enumerate(batches, 1):
        parts = zip(inputs.chunk(local.islands), targets.chunk(local.islands))
        losses.append(sum(island.train(loss_of, part) for island, part in zip(islands, parts)) / local.islands)
        with torch.no_grad():
            for fragment in local.fragments_at(step, local.delay):
                differences[fragment] = {name: sums.sent(name, sum(
                    sender.sent(name, outer[name] - island.weights[name]) for sender, island in zip(senders, islands)))
                    / local.islands for name in names[fragment]}
            for fragment in local.fragments_at(step):
                optimizer.zero_grad(set_to_none=True)
                for name, difference in differences.pop(fragment).items():
                    outer[name].grad = difference
                optimizer.step()
                for island in islands:
                    for name in names[fragment]:
                        island.weights[name].mul_(local.mix).add_(outer[name], alpha=1 - local.mix)
    return losses, outer


def classes_loss(w, x, y):
    x = functional.relu(functional.linear(x, w["dense1.weight"], w["dense1.bias"]))
    x = functional.relu(functional.linear(x, w["dense2.weight"], w["dense2.bias"]))
    return functional.cross_entropy(functional.linear(x, w["dense3.weight"], w["dense3.bias"]), y)


def text_loss(w, x, y):
    return functional.cross_entropy(logits(GPT2, gpt2_of_checkpoint(GPT2, w), x).flatten(0, 1), y.flatten())


class LocalSteps(language.LanguageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # models_reference transposes vectors too, which changes nothing.
        warnings.filterwarnings("ignore", message="The use of `x.T`")
        test = cls()
        test.import_classes("classes", (6,), 4, train=160, test=16)
        common = {"batch": {"global": BATCH, "micro": 2}, "numerics": {"lanes": 8}, "train": {"steps": STEPS}}
        cls.configs = {
            "mlp": test.write_config("mlp.ini", harness.config_text(["dense 24 relu", "dense 12 relu", "dense 4"], **common)),
            "gpt": test.write_config("gpt.ini", harness.config_text(
                model={"preset": "gpt", "blocks": 2, "width": 32, "heads": 4, "context": CONTEXT}, data="text", **common))}
        cls.loss_of = {"mlp": classes_loss, "gpt": text_loss}
        inputs = torch.from_numpy(np.load(cls.directory / "classes-inputs.npy"))
        with h5py.File(cls.directory / "text/train.h5") as master:
            tokens = torch.from_numpy(master["tokens"][()].astype(np.int64))
        samples = (len(tokens) - 1) // CONTEXT
        cls.samples = {
            "mlp": (inputs[:160], torch.from_numpy(np.load(cls.directory / "classes-targets.npy"))[:160]),
            "gpt": tuple(tokens[first:first + samples * CONTEXT].view(samples, CONTEXT) for first in (0, 1))}
        cls.orders = {model: test.order_of(len(targets)) for model, (_, targets) in cls.samples.items()}

    def order_of(self, samples):
        """The samples of STEPS steps, in order, from a run whose weights stay zero: its losses say which they are."""
        name = f"order-{samples}"
        self.import_arrays(name, np.zeros((samples, 1)), np.arange(1.0, samples + 1)[:, None], f"{samples},0",
                           "--task=values")
        config = self.write_config(f"{name}.ini", harness.config_text(
            ["dense 1 bias=off"], data={"train": f"{name}/train.h5", "targets": "none"}, batch={"global": 1},
            numerics={"dtype": "float64"}, train={"steps": BATCH * STEPS}))
        self.train(config, (1, 1), name)
        squares = np.array([float(record["loss"]) for record in self.records(name, "train")])
        order = np.rint(np.sqrt(squares)).astype(np.int64) - 1
        self.assertEqual(len(set(order[:samples])), min(samples, len(order)))
        return torch.from_numpy(order)

    def weights_of(self, run):
        newest = harness.checkpoints(self.directory / run)[-1]
        return {name.removeprefix("weights/"): torch.from_numpy(array) for name, array in harness.tensors(newest).items()
                if name.startswith("weights/")}

    def begin(self, model, dtype):
        """The initial weights of a run and its batches."""
        run = f"{model}-{dtype}-initial"
        if not (self.directory / run).exists():
            # A step of so small a rate leaves the weights as they are.
            self.train(self.configs[model], (1, 1), run, f"--numerics.dtype={dtype}", "--train.steps=1",
                       "--optimizer.learning_rate=1e-300")
        weights = self.weights_of(run)
        inputs, targets = self.samples[model]
        if inputs.is_floating_point():
            inputs = inputs.to(weights["dense1.weight"].dtype)
        return weights, [(inputs[order], targets[order]) for order in self.orders[model].split(BATCH)]

    def compare(self, model, kind, dtype, local, *grids):
        """Trains with strata on each grid and once here, and compares the losses of all steps and the weights."""
        tolerance, inner = TOLERANCE[dtype], INNER[kind]
        settings = [f"--numerics.dtype={dtype}", *(f"--optimizer.{key}={value}" for key, value in inner.items())]
        name = "-".join([model, kind, dtype, *(str(value) for value in vars(local or Local(0)).values())])
        weights, batches = self.begin(model, dtype)
        train = partial(train_locally, local=local) if local else train_plainly
        losses, expected = train(weights, self.loss_of[model], batches, inner)
        for grid in grids:
            with self.subTest(model=model, inner=kind, dtype=dtype, local=local, grid=grid):
                run = f"{name}-{grid[0]}x{grid[1]}"
                self.train(self.configs[model], grid, run, *settings, *(local.settings() if local else ()))
                found = [float(record["loss"]) for record in self.records(run, "train")]
                np.testing.assert_allclose(found, losses, rtol=tolerance)
                own = self.weights_of(run)
                self.assertEqual(sorted(own), sorted(expected))
                for parameter, tensor in expected.items():
                    np.testing.assert_allclose(own[parameter].numpy(), tensor.detach().numpy(), rtol=0, atol=tolerance,
                                               err_msg=parameter)

    def test_the_program_itself(self):
        """It trains plainly as strata does, and with one island and plain averaging as it does plainly."""
        for model in ("mlp", "gpt"):
            for kind in INNER:
                for dtype in TOLERANCE:
                    self.compare(model, kind, dtype, None, (2, 1))
            weights, batches = self.begin(model, "float64")
            plain = train_plainly(weights, self.loss_of[model], batches, INNER["adamw"])
            alone = train_locally(weights, self.loss_of[model], batches, INNER["adamw"], Local(1, 1, 1.0, 0.0))
            np.testing.assert_allclose(alone[0], plain[0], rtol=1e-12)

    def test_local_steps(self):
        for model, kind, dtype, local, *grids in (
                ("mlp", "sgd", "float64", Local(), (1, 1), (4, 1), (2, 2)),
                ("mlp", "adamw", "float32", Local(), (4, 1)),
                ("gpt", "sgd", "float32", Local(), (4, 1)),
                ("gpt", "adamw", "float64", Local(), (2, 1)),
                ("mlp", "adamw", "float64", Local(islands=2, steps=25, outer_rate=1.0, outer_momentum=0.0), (4, 1)),
                ("mlp", "sgd", "float32", Local(fragments=3, delay=1, mix=0.5), (2, 1)),
                ("gpt", "adamw", "float64", Local(fragments=2, delay=3, mix=0.25), (4, 1), (1, 2)),
                ("mlp", "sgd", "float64", Local(exchange="bfloat16"), (4, 1)),
                ("gpt", "adamw", "float64", Local(fragments=2, exchange="int4"), (4, 1), (2, 1)),
                ("mlp", "sgd", "float64", Local(delay=2, mix=0.5, exchange="int6"), (2, 2))):
            self.compare(model, kind, dtype, local, *grids)


if __name__ == "__main__":
    harness.main()
