"""Reads strata's data sets and checkpoints with h5py and NumPy; PyTorch only for state_dict().

    import strata_reader
    data = strata_reader.Dataset("data/shakespeare", "test")
    checkpoint = strata_reader.Checkpoint("runs/shakespeare")  # the newest of a run
    weights = strata_reader.state_dict(checkpoint)             # PyTorch tensors by name
    print(checkpoint.decode(data.tokens[:100]))

Format: docs/formats.md. What is read is compared with its checksum first, headers when a file is opened. That needs the
package xxhash, or the library of this name.
"""

import ctypes
import ctypes.util
import functools
import json
import os
import pathlib
import re

import h5py
import numpy as np


class ReaderError(Exception):
    """A file is missing, damaged, or not what was asked for."""


def _text(value):
    return value.decode() if isinstance(value, bytes) else str(value)


@functools.cache
def _xxh3():
    """The function of bytes that all checksums are made with."""
    try:
        from xxhash import xxh3_64_intdigest
        return xxh3_64_intdigest
    except ImportError:
        name = ctypes.util.find_library("xxhash")
        if name is None:
            raise ReaderError("checksums need XXH3: install the Python package xxhash, or the library xxhash") from None
        function = ctypes.CDLL(name).XXH3_64bits
        function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_uint64
        return lambda data: function(data, len(data))


class Rows:
    """The rows of a data set, as an array that is read where it is indexed; each is verified when it is first read."""

    def __init__(self, name, data, checksums, block=1):
        """`checksums`: of each `block` rows."""
        self._name, self._data, self._checksums, self._block = name, data, checksums, block
        self._good = np.zeros(len(checksums), bool)
        self.shape, self.dtype, self.ndim = data.shape, data.dtype, data.ndim

    def __len__(self):
        return len(self._data)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self[()], dtype)

    def __getitem__(self, key):
        rows = key[0] if isinstance(key, tuple) and key else key
        if rows is Ellipsis or isinstance(rows, tuple):
            rows = slice(None)
        if isinstance(rows, (int, np.integer, slice)):
            rows = range(len(self))[rows]
            rows = range(rows, rows + 1) if isinstance(rows, int) else rows
            ends = sorted((rows[0], rows[-1])) if rows else (0, -1)
            units = np.arange(ends[0] // self._block, ends[1] // self._block + 1)
        else:
            units = np.unique(np.arange(len(self))[rows] // self._block)
        units = units[~self._good[units]]
        for run in np.split(units, np.flatnonzero(np.diff(units) != 1) + 1) if units.size else ():
            self._verify(int(run[0]), int(run[-1]) + 1)
        return self._data[key]

    def _verify(self, first, last):
        unit_bytes = self._block * self.dtype.itemsize * int(np.prod(self.shape[1:]))
        at_once = max(1, (16 << 20) // max(1, unit_bytes))
        for begin in range(first, last, at_once):
            end = min(begin + at_once, last)
            rows = self._data[begin * self._block:end * self._block]
            for unit in range(begin, end):
                at = (unit - begin) * self._block
                if _xxh3()(rows[at:at + self._block].tobytes()) != int(self._checksums[unit]):
                    raise ReaderError(f"{self._name} from row {unit * self._block} of {self._data.file.filename} do not "
                                      "match their checksum: a file is damaged; copy it again")
            self._good[begin:end] = True


class Master:
    """The HDF5 file that shows the files of a data set or a checkpoint as one."""

    def __init__(self, path, form, version):
        """Opens the file. Raises ReaderError where it or a file that it names is not complete."""
        self.path = pathlib.Path(path)
        if not self.path.is_file():
            raise ReaderError(f"{path} does not exist, or is no file")
        manifest = self._manifest()
        if manifest is not None:
            self._require_files(manifest)
        try:
            self.file = h5py.File(self.path, "r")
        except OSError as error:
            raise ReaderError(f"{path} cannot be opened as HDF5: {error}") from error
        try:
            attributes = self.file.attrs
            found = _text(attributes.get("format", "none"))
            if found != form:
                raise ReaderError(f"{path} has the format {found}, expected {form}")
            if attributes.get("version") != version:
                raise ReaderError(f"{path} has version {attributes.get('version')} of {form}; this reader "
                                  f"knows version {version}. Use the reader of the strata that wrote it")
            if manifest is None and attributes.get("manifest"):
                raise ReaderError(f"{self.path.with_suffix('.manifest')} is missing: the copy is not complete; copy the "
                                  "whole directory")
            if manifest is None:
                self._require_files({name: (size, None, ()) for name, size in self._listed().items()})
        except BaseException:
            self.close()
            raise

    def close(self):
        self.file.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def _manifest(self):
        """Size, checksum of the bytes outside the payload, and payload of all files by name; None without a manifest."""
        path = self.path.with_suffix(".manifest")
        if not path.is_file():
            return None
        text = path.read_bytes()
        body, _, checksum = text.rpartition(b"checksum ")
        if not body.startswith(b"strata-manifest 1\n") or checksum != b"%016x\n" % _xxh3()(body):
            raise ReaderError(f"{path} is no complete manifest, or is damaged; copy it again with the files that it names")
        files = {}
        for line in body.decode().splitlines()[1:]:
            name, size, header, *ranges = line.split(" ")
            files[name] = int(size), int(header, 16), [tuple(map(int, range_.split("-"))) for range_ in ranges]
        return files

    def _listed(self):
        """Names and, where known, sizes of all files of earlier versions, which had no manifest."""
        raise NotImplementedError

    def _require_files(self, files):
        """HDF5 shows zeros for a file that is missing or cut short, and anything for one with a damaged header."""
        for name, (size, checksum, payload) in files.items():
            path = self.path.parent / name
            found = path.stat().st_size if path.is_file() else None
            if found is None:
                raise ReaderError(f"{path} is missing, and {self.path.name} needs it; copy the whole directory")
            if size is not None and found != size:
                raise ReaderError(f"{path} has {found} bytes, expected {size}; copy it again")
            if checksum is not None:
                ends = [0, *(end for range_ in payload for end in range_), size]
                header = b""
                with open(path, "rb") as file:
                    for begin, end in zip(ends[::2], ends[1::2]):
                        file.seek(begin)
                        header += file.read(end - begin)
                if _xxh3()(header) != checksum:
                    raise ReaderError(f"{path} is damaged: its header does not match its checksum; copy it again")

    def decode(self, ids):
        """The text of token ids, by the tokenizer that the file holds."""
        ids = np.asarray(ids, dtype=np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self.vocabulary):
            raise ReaderError(f"token ids {ids.min()} to {ids.max()}, but the vocabulary has {self.vocabulary}")
        if self.tokenizer == "bytes":
            return bytes(ids.astype(np.uint8)).decode(errors="replace")
        if self.tokenizer == "chars":
            return "".join(map(chr, self.file["text/characters"][()][ids]))
        if self.tokenizer in ("gpt2", "byte-pairs"):
            joined, ends = self.file["text/token_bytes"][()].tobytes(), self.file["text/token_ends"][()]
            return b"".join(joined[ends[i - 1] if i else 0:ends[i]] for i in ids).decode(errors="replace")
        if self.tokenizer in ("character-pairs", "unigram"):
            return self._decode_characters(ids)
        if self.tokenizer == "sentencepiece":
            raise ReaderError(f"{self.path} holds a model of SentencePiece; give that library the bytes of text/model")
        raise ReaderError(f"{self.path} holds no tokenizer; import the data set with --tokenizer=...")

    def _decode_characters(self, ids):
        """The text of tokens of characters, as the decoder of their tokenizer.json says."""
        joined, ends = self.file["text/token_bytes"][()].tobytes(), self.file["text/token_ends"][()]
        decoder = json.loads(self.file["text/rules"][()].tobytes())["decoder"]
        text = b""
        steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        kinds = {step["type"] for step in steps}
        for position, i in enumerate(ids):
            token = joined[ends[i - 1] if i else 0:ends[i]]
            if "ByteFallback" in kinds and re.fullmatch(rb"<0x[0-9A-F]{2}>", token):
                text += bytes([int(token[3:5], 16)])
                continue
            for step in steps:
                if step["type"] == "Replace":
                    token = token.replace(step["pattern"]["String"].encode(), b" ")
                elif step["type"] == "Metaspace":
                    # The first versions had add_prefix_space instead.
                    begins = position == 0 and step.get("prepend_scheme") != "never" and step.get("add_prefix_space") is not False
                    token = token.replace(step["replacement"].encode(), b"" if begins else b" ")
            text += token
        dropped = sum(step.get("start", 0) for step in steps if step["type"] == "Strip")
        spaces = len(text) - len(text.lstrip(b" "))
        return text[min(spaces, dropped):].decode(errors="replace")

    def encode(self, text):
        """The token ids of a text, for the tokenizers bytes and chars."""
        if self.tokenizer == "bytes":
            return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)
        if self.tokenizer == "chars":
            ids = {chr(code): i for i, code in enumerate(self.file["text/characters"][()])}
            unknown = sorted(set(text) - set(ids))
            if unknown:
                raise ReaderError(f"the vocabulary of {self.path} lacks {unknown}")
            return np.array([ids[character] for character in text], dtype=np.int64)
        raise ReaderError(f"this reader encodes with bytes and chars only, {self.path} has the tokenizer "
                          f"{self.tokenizer}")


class Dataset(Master):
    """A split of a data set: `inputs` and `targets`, or `tokens`, as Rows over all shards."""

    def __init__(self, path, split="train"):
        """Opens a master file, or the split of a directory."""
        path = pathlib.Path(path)
        super().__init__(path / f"{split}.h5" if path.is_dir() else path, "strata-dataset", 1)
        attributes = self.file.attrs
        self.task = _text(attributes["task"])
        if self.task == "next_token":
            self.tokens = Rows("tokens", self.file["tokens"], self.file["checksums"][()], int(attributes["block_tokens"]))
            self.vocabulary = int(attributes["vocabulary"])
            self.tokenizer = _text(attributes["tokenizer"])
            ends = self.file["documents"][()] if "documents" in self.file else [len(self.tokens)]
            self.document_ends = np.asarray(ends, dtype=np.int64)
            self.pairs = bool(self.file.attrs.get("pairs", 0))  # whether documents are a chosen, then a rejected answer
            self._counted = self.file["counted"][()].reshape(-1, 2) if "counted" in self.file else None
        else:
            checksums = self.file["checksums"][()]
            self.inputs = Rows("inputs", self.file["inputs"], checksums[:, 0])
            self.targets = Rows("targets", self.file["targets"], checksums[:, 1])
            self.classes = int(attributes["classes"])
            self.mean, self.deviation = self.file["mean"][()], self.file["deviation"][()]
            names = self.file["class_names"] if "class_names" in self.file else ()
            self.class_names = [_text(name) for name in names]
            columns = self.file["column_names"] if "column_names" in self.file else ()
            self.column_names = [_text(name) for name in columns]
            self.table = self._table()

    def __len__(self):
        """The number of samples, or of tokens."""
        return len(self.tokens if self.task == "next_token" else self.inputs)

    def _listed(self):
        return {_text(name): None for name in self.file["shards/file"]}

    def _table(self):
        """Of a table: name, categories (of a column of names) and substitute of a missing number of each column."""
        if "table" not in self.file:
            return []
        table = self.file["table"]
        categories = [_text(name) for name in table["categories"]] if "categories" in table else []
        columns, first = [], 0
        for name, count, missing in zip(table["columns"], table["category_counts"], table["missing"]):
            columns.append((_text(name), categories[first:first + int(count)], float(missing)))
            first += int(count)
        return columns

    def counts(self, first=0, last=None):
        """Which of the tokens from `first` to before `last` count as targets."""
        if self._counted is None:
            return np.ones(len(range(len(self))[first:last]), dtype=bool)
        changes = np.zeros(len(self) + 1, dtype=np.int64)
        np.add.at(changes, self._counted[:, 0], 1)
        np.add.at(changes, self._counted[:, 1], -1)
        return np.cumsum(changes[:-1])[first:last] > 0

    def blocks(self, context, first=0, last=None):
        """Inputs and targets (samples x context) of the samples from `first` to before `last`, as evaluation takes
        them."""
        samples = (len(self) - 1) // context
        first, last, _ = slice(first, last).indices(samples)
        end = max(first, last) * context + 1
        tokens = self.tokens[first * context:end].astype(np.int64)
        targets = np.where(self.counts(first * context, end), tokens, -1)  # -1 counts nowhere
        return tokens[:-1].reshape(-1, context), targets[1:].reshape(-1, context)


def normalised(inputs, how, mean=None, deviation=None, dtype=np.float32):
    """Inputs as the network gets them. `how` is data.normalise of a checkpoint's metadata["identity"]: unit, none or
    standard; mean and deviation are those of a checkpoint's metadata["data"] or of the data set."""
    inputs = np.asarray(inputs)
    if how == "none":
        return inputs.astype(dtype)
    if how == "unit":
        return (inputs.astype(np.float64) / 255).astype(dtype)
    if how != "standard":
        raise ReaderError(f"normalised(): how is {how!r}, expected unit, none or standard")
    mean, deviation = np.array(mean, np.float64), np.array(deviation, np.float64)
    deviation[deviation == 0] = 1
    if inputs.ndim == 4:  # of channels
        mean, deviation = mean.reshape(-1, 1, 1), deviation.reshape(-1, 1, 1)
    return ((inputs.astype(np.float64) - mean) / deviation).astype(dtype)


def checkpoint_directories(run):
    """The committed checkpoints of a run directory, oldest first."""
    found = {}
    root = pathlib.Path(run) / "checkpoints"
    # A kill may leave the replaced checkpoint of a step without its successor.
    for pattern in (".step-*.replaced", "step-*"):
        for path in root.glob(pattern):
            digits = path.name.lstrip(".")[len("step-"):].removesuffix(".replaced")
            if digits.isdigit() and path.is_dir():
                found[int(digits)] = path
    return [found[step] for step in sorted(found)]


class Checkpoint(Master):
    """A checkpoint: tensors by their full name, as in checkpoint["weights/dense1.weight"], and metadata."""

    def __init__(self, path):
        """Opens the newest checkpoint of a run directory, or a checkpoint's directory."""
        path = pathlib.Path(path)
        if (path / "checkpoints").is_dir():
            directories = checkpoint_directories(path)
            if not directories:
                raise ReaderError(f"{path} has no checkpoint yet")
            path = directories[-1]
        elif path.is_dir() and not (path / "master.h5").is_file():
            raise ReaderError(f"{path} is no run directory and no checkpoint: it has neither checkpoints/ nor "
                              "master.h5")
        super().__init__(path / "master.h5" if path.is_dir() else path, "strata-checkpoint", 2)
        self.directory = self.path.parent
        parts = [_text(text) for text in self.file["parts"]]
        facts = "".join(f"{line}\n" for line in (self.file.attrs["step"], _text(self.file.attrs["metadata"]), *parts))
        if _xxh3()(facts.encode()) != int(self.file.attrs["checksum"]):
            self.close()
            raise ReaderError(f"{self.path} is damaged: its metadata do not match their checksum; copy it again")
        self._slices = {}  # that are not verified yet, by tensor
        for part in map(json.loads, parts):
            for one in part["slices"]:
                self._slices.setdefault(one["tensor"], []).append((part["file"], one["dataset"], int(one["checksum"], 16)))
        self.step = int(self.file.attrs["step"])
        self.metadata = json.loads(self.file.attrs["metadata"])
        self.layers = self.metadata["layers"]
        data = self.metadata.get("data", {})
        self.tokenizer, self.vocabulary = data.get("tokenizer", "none"), data.get("classes", 0)

    def _listed(self):
        parts = [json.loads(text) for text in self.file["parts"]]
        return {part["file"]: part["bytes"] for part in parts}

    def names(self, prefix=""):
        """The full names of all tensors that begin with `prefix`, sorted."""
        found = []

        def visit(name, item):
            if isinstance(item, h5py.Dataset) and name != "parts" and not name.startswith(("parts/", "text/")):
                found.append(name)

        self.file.visititems(visit)
        return sorted(name for name in found if name.startswith(prefix))

    def __getitem__(self, name):
        """A whole tensor as a NumPy array."""
        if name not in self.file or not isinstance(self.file[name], h5py.Dataset):
            raise ReaderError(f"{self.directory} has no tensor {name}; names() lists them")
        for file, dataset, checksum in self._slices.get(name, ()):
            with h5py.File(self.directory / file, "r") as part:
                if _xxh3()(part[dataset][()].tobytes()) != checksum:
                    raise ReaderError(f"{self.directory / file} is damaged: a slice of {name} does not match its "
                                      "checksum; copy it again")
        self._slices.pop(name, None)
        return self.file[name][()]


def state_dict(checkpoint, prefix="weights/"):
    """PyTorch tensors by name, without the prefix, of an open checkpoint, a run directory or a checkpoint's directory.

    A tied table is there once, under the embedding's name. prefix="optimizer/adam_m/" gives an optimizer's state.
    """
    import torch

    if isinstance(checkpoint, (str, os.PathLike)):
        with Checkpoint(checkpoint) as opened:
            return state_dict(opened, prefix)
    names = checkpoint.names(prefix)
    if not names:
        raise ReaderError(f"{checkpoint.directory} has no tensor whose name begins with {prefix}")
    return {name[len(prefix):]: torch.from_numpy(np.asarray(checkpoint[name])) for name in names}
