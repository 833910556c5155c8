#!/usr/bin/env python3
"""Tokens a second that PyTorch generates with a key-value cache; prints one line of JSON.

    bench/peers/generate_torch.py --model llama --hidden 344

One sequence on CPU cores in float32, greedy or sampled at temperature 1, from one token on up to the context. Weights are random.
`gpt` is GPT-2's block (Radford et al. 2019): LayerNorm, biases, learned positions, tanh gelu, a tied head. `llama` is Llama's
(Touvron et al., arXiv 2302.13971): RMSNorm, rotary positions, SwiGLU, a head of its own. Keys and values are written
into tensors of the whole context, so that no token copies those before it.
"""
import argparse, json, time

import torch
from torch.nn import functional

SIZES = {"blocks": 4, "heads": 4, "width": 128, "hidden": 512, "vocabulary": 257, "context": 256}


class Model:
    def __init__(self, kind, blocks, heads, width, hidden, vocabulary, context):
        self.llama, self.heads, self.size = kind == "llama", heads, width // heads
        products = {"qkv": (3 * width, width), "output": (width, width), "down": (width, hidden),
                    "up": (2 * hidden if self.llama else hidden, width)}
        draw = lambda *shape: torch.randn(*shape) * 0.02
        self.blocks = [{"norms": torch.ones(2, width), "shifts": torch.zeros(2, width), "cache": torch.zeros(2, heads, context, self.size),
                        **{name: (draw(*shape), None if self.llama else torch.zeros(shape[0])) for name, shape in products.items()}}
                       for _ in range(blocks)]
        self.table, self.positions = draw(vocabulary, width), draw(context, width)
        self.head = draw(vocabulary, width) if self.llama else self.table
        self.norm, self.shift = torch.ones(width), torch.zeros(width)
        angles = torch.outer(torch.arange(context), 10000.0 ** (-torch.arange(0, self.size, 2) / self.size))
        self.cosines, self.sines = angles.cos(), angles.sin()

    def normed(self, x, weight, shift):
        if self.llama:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight
        return functional.layer_norm(x, weight.shape, weight, shift)

    def rotated(self, x, position):
        one, other = x.chunk(2, -1)
        cosines, sines = self.cosines[position], self.sines[position]
        return torch.cat((one * cosines - other * sines, other * cosines + one * sines), -1)

    def attended(self, block, x, position):
        query, key, value = functional.linear(x, *block["qkv"]).view(3, self.heads, self.size)
        if self.llama:
            query, key = self.rotated(query, position), self.rotated(key, position)
        keys, values = block["cache"]
        keys[:, position], values[:, position] = key, value
        keys, values = keys[:, :position + 1], values[:, :position + 1]
        shares = torch.bmm(keys, query.unsqueeze(-1)).squeeze(-1).mul(self.size ** -0.5).softmax(-1)
        return functional.linear(torch.bmm(shares.unsqueeze(1), values).view(1, -1), *block["output"])

    def widened(self, block, x):
        x = functional.linear(x, *block["up"])
        if self.llama:
            gate, up = x.chunk(2, -1)
            x = functional.silu(gate) * up
        else:
            x = functional.gelu(x, approximate="tanh")
        return functional.linear(x, *block["down"])

    def logits(self, token, position):
        x = self.table[token].unsqueeze(0)
        if not self.llama:
            x = x + self.positions[position]
        for block in self.blocks:
            x = x + self.attended(block, self.normed(x, block["norms"][0], block["shifts"][0]), position)
            x = x + self.widened(block, self.normed(x, block["norms"][1], block["shifts"][1]))
        return functional.linear(self.normed(x, self.norm, self.shift), self.head)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["gpt", "llama"], default="gpt")
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sampled", action="store_true")
    parser.add_argument("--texts", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    size = {name: getattr(options, name) for name in SIZES}
    with torch.inference_mode():
        model = Model(options.model, **size)
        seconds = []
        for _ in range(options.texts + 1):
            start, token = time.perf_counter(), 0
            for position in range(size["context"] - 1):
                logits = model.logits(token, position)
                token = int(torch.multinomial(logits.softmax(-1), 1) if options.sampled else logits.argmax())
            seconds.append(time.perf_counter() - start)
    print(json.dumps({"tokens_per_second": (size["context"] - 1) * options.texts / sum(seconds[1:]), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
