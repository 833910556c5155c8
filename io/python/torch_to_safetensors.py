#!/usr/bin/env python3
"""Converts weights that torch.save() wrote, for `strata checkpoint import`. Needs NumPy.

    python3 torch_to_safetensors.py ckpt.pt DIR                      # nanoGPT: DIR/model.safetensors and DIR/config.json
    python3 torch_to_safetensors.py gpt2/pytorch_model.bin gpt2      # Hugging Face: beside the config.json of gpt2

A pickle can run any code. This reads tensors, numbers, texts, lists and dicts, and refuses other objects.
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib
import pickle
import struct
import sys
import zipfile

import numpy as np

# PyTorch's kind of storage: the dtype of safetensors and that of NumPy, which only moves the bytes.
STORAGES = {"DoubleStorage": ("F64", "u8"), "FloatStorage": ("F32", "u4"), "HalfStorage": ("F16", "u2"),
            "BFloat16Storage": ("BF16", "u2"), "LongStorage": ("I64", "u8"), "IntStorage": ("I32", "u4"),
            "ShortStorage": ("I16", "u2"), "CharStorage": ("I8", "u1"), "ByteStorage": ("U8", "u1"), "BoolStorage": ("BOOL", "u1")}
PLAIN = {"collections.OrderedDict", "_codecs.encode", "numpy.dtype", "numpy.core.multiarray.scalar",
         "numpy._core.multiarray.scalar"}
# Linear layers, which Hugging Face's GPT-2 stores as inputs x outputs and nanoGPT as outputs x inputs.
LINEAR = (".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight")
SIZES = {"n_layer": "n_layer", "n_head": "n_head", "n_embd": "n_embd", "block_size": "n_positions", "vocab_size": "vocab_size"}


@dataclasses.dataclass
class Tensor:
    """A tensor in a zip file of torch.save(); sizes and offset in elements."""
    storage: tuple  # dtype of safetensors, dtype of NumPy, key
    offset: int
    shape: tuple
    strides: tuple

    @property
    def bytes(self):
        return int(np.prod(self.shape, dtype=np.int64)) * int(self.storage[1][1:])

    def transposed(self):
        return dataclasses.replace(self, shape=self.shape[::-1], strides=self.strides[::-1])


def tensor_of(storage, offset, shape, strides, *_):
    tensor = Tensor(storage, offset, tuple(shape), tuple(strides))
    if len(tensor.shape) != len(tensor.strides) or not all(
            isinstance(number, int) and number >= 0 for number in (offset, *tensor.shape, *tensor.strides)):
        raise pickle.UnpicklingError("a tensor has a size, stride or offset that is no whole number from 0")
    return tensor


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if f"{module}.{name}" == "torch._utils._rebuild_tensor_v2":
            return tensor_of
        if f"{module}.{name}" == "torch._utils._rebuild_parameter":
            return lambda data, *_: data
        if f"{module}.{name}" == "torch.Size":
            return tuple
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if f"{module}.{name}" in PLAIN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}; in Python, save a dict of tensors and numbers")

    def persistent_load(self, pid):
        return (*pid[1], pid[2])


class TorchFile:
    def __init__(self, path):
        self.file = open(path, "rb")
        if not zipfile.is_zipfile(self.file):
            sys.exit(f"{path} is no file of PyTorch from 1.6 on, or truncated; in Python, torch.save(torch.load(FILE), FILE) "
                     "gives an older one this form")
        self.zip = zipfile.ZipFile(self.file)
        [pickled] = [name for name in self.zip.namelist() if name.endswith("/data.pkl")] or ["data.pkl"]
        self.root = pickled.removesuffix("data.pkl")
        if f"{self.root}byteorder" in self.zip.namelist() and self.zip.read(f"{self.root}byteorder") != b"little":
            sys.exit(f"{path} has numbers that are not little-endian")
        with self.zip.open(pickled) as file:
            self.content = Unpickler(file).load()

    def elements(self, tensor):
        _, kind, key = tensor.storage
        whole = np.frombuffer(self.zip.read(f"{self.root}data/{key}"), kind)
        last = tensor.offset + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides))
        if tensor.bytes > 0 and not 0 <= tensor.offset <= last < len(whole):
            sys.exit(f"a tensor of {tensor.shape} from element {tensor.offset} does not fit into its storage of {len(whole)}")
        return np.lib.stride_tricks.as_strided(whole[tensor.offset:], tensor.shape,
                                               [stride * whole.itemsize for stride in tensor.strides])


def config_of(arguments):
    """config.json of Hugging Face's GPT-2, with "bias" as nanoGPT has it."""
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in arguments.items()}
    missing = [name for name in SIZES if not isinstance(plain.get(name), int)]
    if missing:
        sys.exit(f"model_args has no whole number {', '.join(missing)}")
    return {"model_type": "gpt2", **{key: plain[name] for name, key in SIZES.items()}, "bias": plain.get("bias", True),
            "activation_function": "gelu", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}


def write(path, tensors, source):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.storage[0], "shape": tensor.shape, "data_offsets": [end, end + tensor.bytes]}
        end += tensor.bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as new, open(new, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(source.elements(tensor)).tobytes())


@contextlib.contextmanager
def replacing(path):
    """A new file of another name, which gets this one when it is whole; none is replaced."""
    if path.exists():
        raise FileExistsError(f"{path} exists; give another directory, or remove it")
    new = path.with_name(path.name + ".new")
    try:
        yield new
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("directory", type=pathlib.Path)
    given = parser.parse_args()
    source = TorchFile(given.file)
    saved = source.content
    config = given.directory / "config.json"
    nanogpt = isinstance(saved, dict) and "model" in saved and "model_args" in saved
    if not nanogpt and not config.exists():
        sys.exit(f"{given.file} has no model_args, as nanoGPT's ckpt.pt has, and weights alone do not say the number of heads; "
                 f"write {config}, as Hugging Face has it, first")
    weights = saved["model"] if nanogpt else saved
    strange = [name for name, value in weights.items() if not isinstance(value, Tensor)] if isinstance(weights, dict) else [""]
    if strange:
        sys.exit(f"{given.file}: \"{strange[0]}\" is no tensor; in Python, save a dict of tensors")
    tensors = {name.removeprefix("_orig_mod."): tensor for name, tensor in weights.items()}
    given.directory.mkdir(parents=True, exist_ok=True)
    if nanogpt:
        tensors = {name: tensor.transposed() if name.endswith(LINEAR) else tensor for name, tensor in tensors.items()}
        text = json.dumps(config_of(saved["model_args"]), indent=2)
    write(given.directory / "model.safetensors", tensors, source)
    if nanogpt:
        with replacing(config) as new:
            new.write_text(text + "\n", encoding="utf-8")
    print(f"{given.directory}: {len(tensors)} tensors; strata checkpoint import {given.directory} --output=RUN")


if __name__ == "__main__":
    try:
        main()
    except (OSError, KeyError, zipfile.BadZipFile, pickle.UnpicklingError) as problem:
        sys.exit(f"{problem}: the file is damaged, or of another kind" if isinstance(problem, KeyError) else str(problem))
