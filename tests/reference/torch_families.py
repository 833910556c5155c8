"""Families of published decoder-only transformers in PyTorch: a row of facts each, one forward pass for all, and their files.

A row has a small config.json with the keys of a published one, the names under which Hugging Face's files hold the tensors,
and what a family computes without a key for it. The forward pass follows the papers and the published configs.
"""

import json
import math
import re
import struct
from dataclasses import dataclass

import torch
from torch.nn import functional

from torch_transformer import LLAMA3, rotated

NAMES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def bytes_of(tensor):
    flat = tensor.detach().contiguous().reshape(-1)
    return (flat.view(torch.int16) if flat.element_size() == 2 else flat).numpy().tobytes()


def write_safetensors(path, tensors):
    header, buffer = {}, b""
    for name, tensor in tensors.items():
        data = bytes_of(tensor)
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(buffer), len(buffer) + len(data)]}
        buffer += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + buffer)


def read_safetensors(directory):
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:8 + length]).items():
            if name != "__metadata__":
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                tensors[name] = torch.frombuffer(bytearray(data[begin:end]),
                                                 dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def in_blocks(prefix, **names):
    return {role: f"{prefix}.N.{name}" for role, name in names.items()}


# The tensors' names by what they do; N is the number of the block.
LLAMA = {"tokens": "model.embed_tokens", "norm": "model.norm", "head": "lm_head",
         **in_blocks("model.layers", before_attention="input_layernorm", before_mlp="post_attention_layernorm",
                     q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj", o="self_attn.o_proj",
                     gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj")}
QK_NORMS = in_blocks("model.layers", q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
GEMMA = {**LLAMA, **in_blocks("model.layers", after_attention="post_attention_layernorm",
                              before_mlp="pre_feedforward_layernorm", after_mlp="post_feedforward_layernorm")}
OLMO2 = {**{role: name for role, name in LLAMA.items() if not role.startswith("before")}, **QK_NORMS,
         **in_blocks("model.layers", after_attention="post_attention_layernorm", after_mlp="post_feedforward_layernorm")}
PHI3 = {**{role: name for role, name in LLAMA.items() if role not in ("q", "k", "v", "gate", "up")},
        **in_blocks("model.layers", qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")}
GPT2 = {"tokens": "transformer.wte", "positions": "transformer.wpe", "norm": "transformer.ln_f", "head": "lm_head",
        **in_blocks("transformer.h", before_attention="ln_1", qkv="attn.c_attn", o="attn.c_proj", before_mlp="ln_2",
                    up="mlp.c_fc", down="mlp.c_proj")}
NEOX = {"tokens": "gpt_neox.embed_in", "norm": "gpt_neox.final_layer_norm", "head": "embed_out",
        **in_blocks("gpt_neox.layers", before_attention="input_layernorm", before_mlp="post_attention_layernorm",
                    qkv="attention.query_key_value", o="attention.dense", up="mlp.dense_h_to_4h",
                    down="mlp.dense_4h_to_h")}
ALL_BIASES = ("norm", "before_attention", "before_mlp", "qkv", "o", "up", "down")

# Keys that all have; the ids end no text of the small vocabulary.
COMMON = {"bos_token_id": 98, "eos_token_id": 99, "initializer_range": 0.02, "use_cache": True, "vocab_size": 26}
SIZES = {**COMMON, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
         "max_position_embeddings": 96, "torch_dtype": "float64", "transformers_version": "4.50.0"}
GROUPED = {**SIZES, "attention_dropout": 0.0, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
SILU = {**GROUPED, "hidden_act": "silu"}
# Heads wider than the width's share.
GELU = {**GROUPED, "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False,
        "cache_implementation": "hybrid", "pad_token_id": 97, "query_pre_attn_scalar": 24, "sliding_window": 5}


@dataclass(frozen=True)
class Family:
    title: str
    published: str  # the models whose config.json has the keys
    source: str
    config: dict  # of a small model, without model_type
    names: dict = None
    biased: tuple = ()  # what has a bias beside its weight
    tied: bool = False  # without tie_word_embeddings
    layer_norm: bool = False  # else RMS norms
    unit_offset: bool = False  # norms multiply by 1 + weight
    scaled_tokens: bool = False  # embeddings times sqrt(hidden_size)
    whole_qk_norm: bool = False  # over all heads, else by head
    transposed: bool = False  # products hold inputs x outputs
    interleaved: bool = False  # rows of qkv are, for each head, its query, its key, its value
    global_every: int = 0  # without sliding_window_pattern


FAMILIES = {
    "gpt2": Family(
        "GPT-2", "openai-community/gpt2", "Radford et al., 2019",
        {**COMMON, "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
         "embd_pdrop": 0.1, "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "n_ctx": 96, "n_positions": 96, "n_embd": 32,
         "n_head": 4, "n_layer": 2, "summary_activation": None, "summary_first_dropout": 0.1,
         "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
         "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
        GPT2, ALL_BIASES, tied=True, layer_norm=True, transposed=True),
    "gpt_neox": Family(
        "GPT-NeoX (Pythia)", "EleutherAI/pythia-1b", "Black et al., arXiv 2204.06745; Biderman et al., arXiv 2304.01373",
        {**SIZES, "architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu", "layer_norm_eps": 1e-5,
         "rotary_emb_base": 10000, "rotary_pct": 0.5, "tie_word_embeddings": False, "use_parallel_residual": True},
        NEOX, ALL_BIASES, layer_norm=True, interleaved=True),
    "llama": Family(
        "Llama", "meta-llama/Llama-3.2-1B", "Touvron et al., arXiv 2307.09288; Dubey et al., arXiv 2407.21783",
        {**SILU, "architectures": ["LlamaForCausalLM"], "attention_bias": False, "head_dim": 8, "mlp_bias": False,
         "pretraining_tp": 1, "rope_scaling": LLAMA3, "tie_word_embeddings": True}, LLAMA),
    "mistral": Family(
        "Mistral", "mistralai/Mistral-7B-v0.1, with head_dim of mistralai/Mistral-Nemo-Base-2407",
        "Jiang et al., arXiv 2310.06825",
        {**SILU, "architectures": ["MistralForCausalLM"], "head_dim": 12, "sliding_window": 5,
         "tie_word_embeddings": False}, LLAMA),
    "qwen2": Family(
        "Qwen2", "Qwen/Qwen2-7B", "Yang et al., arXiv 2407.10671",
        {**SILU, "architectures": ["Qwen2ForCausalLM"], "max_window_layers": 2, "sliding_window": 5,
         "tie_word_embeddings": False, "use_sliding_window": False}, LLAMA, ("q", "k", "v")),
    "qwen3": Family(
        "Qwen3", "Qwen/Qwen3-0.6B", "Yang et al., arXiv 2505.09388",
        {**SILU, "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 16, "max_window_layers": 2,
         "rope_scaling": None, "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False},
        {**LLAMA, **QK_NORMS}),
    "smollm3": Family(
        "SmolLM3", "HuggingFaceTB/SmolLM3-3B", "Bakouch et al., 2025; Yang et al., arXiv 2501.18795",
        {**SILU, "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "layer_types": ["full_attention"] * 4,
         "max_window_layers": 28, "mlp_bias": False, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0],
         "num_hidden_layers": 4, "pad_token_id": 97, "pretraining_tp": 2, "rope_scaling": None, "sliding_window": None,
         "use_sliding_window": False}, LLAMA, tied=True),
    "gemma2": Family(
        "Gemma 2", "google/gemma-2-2b", "Gemma Team, arXiv 2408.00118",
        {**GELU, "architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
         "hidden_act": "gelu_pytorch_tanh"},
        GEMMA, tied=True, unit_offset=True, scaled_tokens=True, global_every=2),
    "gemma3_text": Family(
        "Gemma 3", "google/gemma-3-1b-pt", "Gemma Team, arXiv 2503.19786",
        {**GELU, "architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": None, "final_logit_softcapping": None,
         "num_key_value_heads": 1,
         "num_hidden_layers": 6, "rope_local_base_freq": 100, "rope_scaling": None, "sliding_window_pattern": 6},
        {**GEMMA, **QK_NORMS}, tied=True, unit_offset=True, scaled_tokens=True),
    "olmo2": Family(
        "OLMo 2", "allenai/OLMo-2-0425-1B", "OLMo Team, arXiv 2501.00656",
        {**SILU, "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "pad_token_id": 97,
         "rope_scaling": None, "tie_word_embeddings": False}, OLMO2, whole_qk_norm=True),
    "phi3": Family(
        "Phi-3", "microsoft/Phi-3-mini-4k-instruct and, for rope_scaling, microsoft/Phi-4-mini-instruct",
        "Abdin et al., arXiv 2404.14219; Ding et al., arXiv 2402.13753",
        {**SILU, "_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"], "attention_bias": False,
         "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "embd_pdrop": 0.0,
         "original_max_position_embeddings": 24, "pad_token_id": 97, "partial_rotary_factor": 0.75,
         "resid_pdrop": 0.0, "rope_scaling": {"long_factor": [1.0, 1.3, 4.0], "short_factor": [1.0, 1.1, 1.5],
                                              "type": "longrope"},
         "sliding_window": 7, "tie_word_embeddings": False}, PHI3),
}

ALIASES = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
           "n_inner": "intermediate_size", "n_positions": "max_position_embeddings", "layer_norm_epsilon": "epsilon",
           "layer_norm_eps": "epsilon", "rms_norm_eps": "epsilon", "rotary_emb_base": "rope_theta",
           "rope_scaling": "rope_parameters", "activation_function": "hidden_act", "hidden_activation": "hidden_act"}
ACTIVATIONS = {"silu": functional.silu, "gelu": functional.gelu,
               **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), lambda x: functional.gelu(x, approximate="tanh"))}


def settings_of(config):
    """A config.json under one name a setting, with what follows from others; null is as if missing."""
    c = {ALIASES.get(key, key): value for key, value in config.items() if value is not None}
    width, heads = c["hidden_size"], c["num_attention_heads"]
    return {"head_dim": width // heads, "num_key_value_heads": heads, "intermediate_size": 4 * width,
            "tie_word_embeddings": FAMILIES[c["model_type"]].tied, **c}


def longrope(scaling, c, context):
    """longrope as rotated() takes it, of a model that computes samples of so many tokens. Source: arXiv 2402.13753, 2404.14219."""
    first = scaling.get("original_max_position_embeddings") or c["original_max_position_embeddings"]
    factor = scaling.get("factor", max(c["max_position_embeddings"] / first, 1.0))
    return {"rope_type": "longrope", "factors": scaling["long_factor" if context > first else "short_factor"],
            "magnitude": scaling.get("attention_factor", math.sqrt(1 + math.log(factor) / math.log(first)))}


def shapes(config):
    """The shapes of all tensors by their published names."""
    c, family = settings_of(config), FAMILIES[config["model_type"]]
    width, hidden, size = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    rows = {"tokens": c["vocab_size"], "head": c["vocab_size"], "positions": c["max_position_embeddings"], "q": q, "k": kv,
            "v": kv, "qkv": q + 2 * kv, "o": width, "gate": hidden, "up": hidden, "gate_up": 2 * hidden, "down": width}
    gains = {"q_norm": q, "k_norm": kv} if family.whole_qk_norm else {"q_norm": size, "k_norm": size}
    found = {}
    for role, name in family.names.items():
        shape = (rows[role], {"o": q, "down": hidden}.get(role, width)) if role in rows else (gains.get(role, width),)
        for block in range(c["num_hidden_layers"] if ".N." in name else 1):
            full = name.replace(".N.", f".{block}.")
            if role != "head" or not c["tie_word_embeddings"]:
                found[full + ".weight"] = shape[::-1] if family.transposed and ".N." in name else shape
            if role in family.biased:
                found[full + ".bias"] = shape[:1]
    return found


def random_weights(shapes, dtype, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {name: (0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
                   + (1.0 if len(shape) == 1 and name.endswith("weight") else 0.0)).to(dtype)
            for name, shape in shapes.items()}


def small_model(name):
    """The config.json of a family's small model, and weights in float64. Gains of the last norm have any sign, as the
    likeliest successor of a token would else often be the token itself where the head is tied."""
    family = FAMILIES[name]
    config = {"model_type": name, **family.config}
    weights = random_weights(shapes(config), torch.float64, seed=5)
    last = weights[family.names["norm"] + ".weight"]
    last.sub_(1.0).mul_(5.0).sub_(1.0 if family.unit_offset else 0.0)
    return config, weights


def attend(q, k, v, scale, window=None, softcap=None):
    """Attention of samples x heads x tokens x size to a token itself and the window - 1 before it, or all; gives samples x
    tokens x width. Fewer heads of k and v serve equal groups of those of q."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = scale * q @ k.transpose(-1, -2)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    tokens = torch.arange(q.shape[-2])
    distance = tokens[:, None] - tokens
    scores = scores.masked_fill((distance < 0) | (distance >= (window or len(tokens))), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def random_adapters(config, roles, rank):
    """Low-rank adapters of the roles' modules in all blocks that have them, as "MODULE.lora_A.weight"; float64."""
    family, found, generator = FAMILIES[config["model_type"]], {}, torch.Generator().manual_seed(7)
    for name, shape in shapes(config).items():
        module = name.removesuffix(".weight")
        if module != name and re.sub(r"\.\d+\.", ".N.", module) in [family.names.get(role) for role in roles]:
            outputs, inputs = shape[::-1] if family.transposed else shape
            for matrix, size in (("A", (rank, inputs)), ("B", (outputs, rank))):
                found[f"{module}.lora_{matrix}.weight"] = 0.1 * torch.randn(size, generator=generator, dtype=torch.float64)
    return found


def logits(config, weights, ids, context=None):
    """Logits, samples x tokens x vocabulary, of token ids, samples x tokens, in the dtype of the weights; where there are
    adapters, config["lora_scale"] times what they give is added. `context`: the tokens of the model's samples, if not
    max_position_embeddings."""
    c, family = settings_of(config), FAMILIES[config["model_type"]]
    heads, kv_heads, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    rope = {"rope_theta": c.get("rope_theta"), **c.get("rope_parameters", {})}
    if "longrope" in (rope.get("type"), rope.get("rope_type")):
        rope.update(longrope(rope, c, context or c["max_position_embeddings"]))
    windowed = "sliding_window" in c and c.get("use_sliding_window", True)
    global_every = c.get("sliding_window_pattern", family.global_every)
    share = int(c.get("rotary_pct", c.get("partial_rotary_factor", 1.0)) * size)
    activation = ACTIVATIONS[c["hidden_act"]]

    def tensor(role, part="weight"):
        return weights.get(family.names[role].replace(".N.", f".{block}.") + f".{part}")

    def linear(x, role):
        weight, bias = tensor(role), tensor(role, "bias")
        y = x @ (weight if family.transposed else weight.T)
        if (a := tensor(role, "lora_A.weight")) is not None:
            y = y + c["lora_scale"] * (x @ a.T) @ tensor(role, "lora_B.weight").T
        return y if bias is None else y + bias

    def norm(x, role):
        """Over each stretch of the gain's length; x itself where the family has no such norm."""
        if role not in family.names:
            return x
        gain = tensor(role) + (1.0 if family.unit_offset else 0.0)
        if family.layer_norm:
            return functional.layer_norm(x, gain.shape, gain, tensor(role, "bias"), c["epsilon"])
        x = x.unflatten(-1, (-1, len(gain)))
        return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + c["epsilon"]) * gain).flatten(-2)

    def turned(x, local):
        if "positions" in family.names or not c.get("no_rope_layers", [1] * (block + 1))[block]:
            return x
        base, scaling = rope["rope_theta"], rope if "rope_type" in rope else None
        if local and "rope_local_base_freq" in c:
            base, scaling = c["rope_local_base_freq"], None
        return torch.cat([rotated(x[..., :share], base, scaling), x[..., share:]], -1)

    def attention(x):
        local = windowed and not (global_every and (block + 1) % global_every == 0)
        if "q" in family.names:
            q, k, v = (linear(x, role) for role in "qkv")
        elif family.interleaved:
            q, k, v = linear(x, "qkv").unflatten(-1, (heads, 3, size)).transpose(-3, -2).flatten(-2).unbind(-2)
        else:
            q, k, v = linear(x, "qkv").split((heads * size, kv_heads * size, kv_heads * size), -1)
        q, k, v = (x.unflatten(-1, (-1, size)).transpose(1, 2) for x in (norm(q, "q_norm"), norm(k, "k_norm"), v))
        return linear(attend(turned(q, local), turned(k, local), v, c.get("query_pre_attn_scalar", size) ** -0.5,
                             c["sliding_window"] if local else None, c.get("attn_logit_softcapping")), "o")

    def mlp(x):
        if "gate_up" in family.names:
            gate, up = linear(x, "gate_up").chunk(2, -1)
            return linear(activation(gate) * up, "down")
        up = linear(x, "up")
        return linear(activation(linear(x, "gate")) * up if "gate" in family.names else activation(up), "down")

    block = 0
    x = tensor("tokens")[ids] * (c["hidden_size"] ** 0.5 if family.scaled_tokens else 1.0)
    if "positions" in family.names:
        x = x + tensor("positions")[:ids.shape[1]]
    for block in range(c["num_hidden_layers"]):
        y = x + norm(attention(norm(x, "before_attention")), "after_attention")
        x = y + norm(mlp(norm(x if c.get("use_parallel_residual") else y, "before_mlp")), "after_mlp")
    found = norm(x, "norm") @ tensor("tokens" if c["tie_word_embeddings"] else "head").T
    softcap = c.get("final_logit_softcapping")
    return softcap * torch.tanh(found / softcap) if softcap else found


def greedy(config, weights, ids, tokens):
    """The ids, followed by so many of the largest logit; all are computed anew for each."""
    ids = list(ids)
    for _ in range(tokens):
        ids.append(logits(config, weights, torch.tensor([ids]))[0, -1].argmax().item())
    return ids
