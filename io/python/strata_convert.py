#!/usr/bin/env python3
"""Turns Parquet files and data sets of Hugging Face into what `strata data import` reads: JSON lines, or folders of images.

    python3 strata_convert.py train-*.parquet --output=DIR                          # needs pyarrow
    python3 strata_convert.py train-*.parquet --test test-*.parquet --output=DIR
    python3 strata_convert.py SAVED-DIRECTORY --output=DIR                          # of save_to_disk(); needs datasets
    python3 strata_convert.py NAME --config=CONFIG --output=DIR                     # of the hub, or a folder of files

Writes DIR/train/data.jsonl and DIR/test/data.jsonl, or DIR/train/CLASS/N.png, and prints the command that imports them.
"""

import argparse
import base64
import decimal
import importlib
import io
import itertools
import json
import math
import numbers
import pathlib
import sys

TEST_SPLITS = ("test", "validation", "valid", "val", "dev")
MAGIC = {b"\xff\xd8\xff": ".jpg", b"\x89PNG\r\n\x1a\n": ".png"}


def fail(text):
    sys.exit(f"strata_convert.py: {text}")


def needed(module, package):
    try:
        return importlib.import_module(module)
    except ImportError:
        fail(f"{package} is not installed; install it with: pip install {package}")


class Split:
    """The samples of one split as dicts, and the names of the classes of its columns."""

    def __init__(self, samples, class_names):
        self.samples, self.class_names = samples, class_names


def parquet_samples(files):
    parquet = needed("pyarrow.parquet", "pyarrow")
    for file in files:
        for batch in parquet.ParquetFile(file).iter_batches():
            yield from batch.to_pylist()


def parquet_split(files):
    """What Hugging Face stores beside a schema has the names of classes."""
    metadata = needed("pyarrow.parquet", "pyarrow").ParquetFile(files[0]).schema_arrow.metadata or {}
    features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    names = {column: feature["names"] for column, feature in features.items()
             if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")}
    return Split(parquet_samples(files), names)


def hub_splits(source, config):
    datasets = needed("datasets", "datasets")
    path = pathlib.Path(source)
    saved = any((path / name).exists() for name in ("dataset_info.json", "dataset_dict.json"))
    loaded = datasets.load_from_disk(source) if saved else datasets.load_dataset(source, config)
    splits = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    return {name: Split(split, {column: feature.names for column, feature in split.features.items()
                                if getattr(feature, "names", None)})
            for name, split in splits.items()}


def image_bytes(value):
    """The file of an image and how its name ends; nothing for another value."""
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
        value = value["bytes"]
    if isinstance(value, bytes):
        for magic, ending in MAGIC.items():
            if value.startswith(magic):
                return value, ending
    if hasattr(value, "save") and hasattr(value, "size"):
        file = io.BytesIO()
        value.convert("RGB" if value.mode not in ("L", "RGB", "RGBA") else value.mode).save(file, "PNG")
        return file.getvalue(), ".png"
    return None


def fields_of(name, value):
    """A value as members of a JSON object; a list as one for each element."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        for index, element in enumerate(value):
            yield from fields_of(f"{name}_{index}", element)
    elif isinstance(value, dict):
        for key, element in value.items():
            yield from fields_of(f"{name}.{key}", element)
    elif isinstance(value, bytes):
        yield name, base64.b64encode(value).decode()
    elif value is None or isinstance(value, (str, bool)):
        yield name, value
    elif isinstance(value, numbers.Integral):
        yield name, int(value)
    elif isinstance(value, (numbers.Real, decimal.Decimal)):
        yield name, float(value) if math.isfinite(value) else None
    else:
        yield name, str(value)  # dates and times


def named(split, column, value):
    """The name of a class, where it has one."""
    names = split.class_names.get(column)
    return names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value


def write_lines(split, first, samples, output):
    count = 0
    with (output / "data.jsonl").open("w", encoding="utf-8") as file:
        for count, sample in enumerate(itertools.chain([first], samples), 1):
            members = {}
            for column, value in sample.items():
                members.update(fields_of(column, named(split, column, value)))
            file.write(json.dumps(members, ensure_ascii=False) + "\n")
    return count


def write_images(split, first, samples, image, label, output):
    count = 0
    for count, sample in enumerate(itertools.chain([first], samples), 1):
        found = image_bytes(sample[image])
        if found is None:
            fail(f"sample {count - 1} has no JPEG or PNG image in the column '{image}'")
        folder = output / str(named(split, label, sample[label])).replace("/", "_")
        folder.mkdir(exist_ok=True)
        (folder / f"{count:08}{found[1]}").write_bytes(found[0])
    return count


def convert(split, label, output):
    """Writes a split; returns whether it holds images, the column of labels, and the number of samples."""
    samples = iter(split.samples)
    first = next(samples, None)
    if first is None:
        fail(f"the split for {output} has no samples")
    if output.exists() and any(output.iterdir()):
        fail(f"{output} is not empty; choose another --output")
    output.mkdir(parents=True, exist_ok=True)
    images = [column for column, value in first.items() if image_bytes(value)]
    if not images:
        return False, label, write_lines(split, first, samples, output)
    others = [column for column in first if column not in images]
    if label is None:
        likely = [column for column in others if column in split.class_names or column in ("label", "labels", "class")]
        if len(likely) != 1:
            fail(f"which column holds the classes of the images? Name it with --label: {', '.join(others) or 'there is none'}")
        label = likely[0]
    if label not in others:
        fail(f"there is no column '{label}'; there are {', '.join(others)}")
    return True, label, write_images(split, first, samples, images[0], label, output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="+", help="Parquet files, or one directory or name of a data set")
    parser.add_argument("--test", nargs="+", default=[], metavar="FILE", help="Parquet files of the test split")
    parser.add_argument("--config", help="of a data set of Hugging Face that has several")
    parser.add_argument("--label", help="the column with the classes of images")
    parser.add_argument("--output", required=True, type=pathlib.Path)
    options = parser.parse_args()
    if pathlib.Path(options.source[0]).is_file():
        splits = {"train": parquet_split(options.source), **({"test": parquet_split(options.test)} if options.test else {})}
    elif len(options.source) > 1 or options.test:
        fail(f"{options.source[0]} is no file; give Parquet files, or one directory or name")
    else:
        found = hub_splits(options.source[0], options.config)
        if "train" not in found:
            fail(f"{options.source[0]} has no split train; it has {', '.join(found)}")
        test = next((name for name in TEST_SPLITS if name in found), None)
        splits = {"train": found["train"], **({"test": found[test]} if test else {})}
    for name, split in splits.items():
        images, label, count = convert(split, options.label, options.output / name)
        print(f"{options.output / name}: {count} samples")
    files = options.output if "test" in splits else options.output / "train"
    rest = "--format=images" if images else f"--format=jsonl --label={label or 'COLUMN'}"
    print(f"next: strata data import {rest} --files={files} --output=data/NAME")
    if not images:
        print(f"or, of texts: strata data import --format=text --text-field=COLUMN --tokenizer=bytes --files={files} --output=data/NAME")


if __name__ == "__main__":
    main()
