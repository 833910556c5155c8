"""run.tensorboard: the event file has every number of metrics.jsonl, each step once, also after kills; histograms are
those of the checkpoint's tensors on every grid. Records and protocol buffers are decoded here, by TensorFlow's field
numbers."""

import json
import os
import re
import signal
import struct
import zlib

import h5py
import numpy as np

import harness
import language

EVERY = 4  # steps between histograms
NETWORK = harness.config_text(
    ["dense 30 relu", "dense 4"], batch={"global": 16, "micro": 4}, numerics={"lanes": 2},
    train={"steps": 40, "evaluate_every": 10}, checkpoint={"every": 4, "keep": 2},
    run={"resume": "auto", "tensorboard": "on", "tensorboard_histograms": EVERY})


def crc32c(data):
    rest = 0xFFFFFFFF
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ (0x82F63B78 if rest & 1 else 0)
    return rest ^ 0xFFFFFFFF


def masked(data):
    rest = crc32c(data)
    return ((rest >> 15 | rest << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The records of a file of TFRecords; any damage is an error."""
    while data:
        length, check = struct.unpack("<QI", data[:12])
        assert masked(data[:8]) == check, "checksum of a length"
        body, rest = data[12:12 + length], data[12 + length:]
        assert masked(body) == struct.unpack("<I", rest[:4])[0], "checksum of a record"
        data = rest[4:]
        yield body


def fields(data):
    """Field number and value of a protocol buffer: an int, 4 or 8 bytes, or all bytes of a message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def take(length):
        nonlocal at
        at += length
        assert at <= len(data), "a field is cut"
        return data[at - length:at]

    while at < len(data):
        key = varint()
        read = {0: varint, 1: lambda: take(8), 2: lambda: take(varint()), 5: lambda: take(4)}[key & 7]
        yield key >> 3, read()


def value_of(value):
    """A float32, a histogram as its list of fields, or the fields of what else it is."""
    fields_of = dict(fields(value))
    if 2 in fields_of:
        return struct.unpack("<f", fields_of[2])[0]
    if 5 in fields_of:
        return [np.frombuffer(part, "<f8") for _, part in fields(fields_of[5])]
    return fields_of


def events(run):
    """All events of a run as (time, step, field, content); the content of a summary is tag -> value."""
    (path,) = (run / "tensorboard").iterdir()
    assert re.fullmatch(r"events\.out\.tfevents\.\d{10}\..+", path.name), path
    found = []
    for body in records(path.read_bytes()):
        event = dict(fields(body))
        what = max(event)
        content = event[what]
        if what == 5:
            content = {dict(fields(value))[1].decode(): value_of(value) for _, value in fields(content)}
        found.append((struct.unpack("<d", event[1])[0], event[2], what, content))
    return found


def histograms(run):
    """The histograms of a run: step -> tag -> its fields."""
    return {step: content for _, step, what, content in events(run) if what == 5
            and all(tag.startswith(("weights/", "gradients/")) for tag in content)}


def same_histograms(left, right):
    return left.keys() == right.keys() and all(
        left[step].keys() == right[step].keys() and all(
            [part.tobytes() for part in left[step][tag]] == [part.tobytes() for part in right[step][tag]]
            for tag in left[step]) for step in left)


class TensorBoard(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (12,), 4, train=100, test=20)

    def assert_events_of_metrics(self, run):
        """Equal numbers in equal order, and each step of training and evaluation once."""
        directory = self.directory / run
        lines = [line for line in map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
                 if line["kind"] != "run"]
        version, start, config, graph, *others = events(directory)
        self.assertEqual((graph[1:3]), (0, 4))
        scalars = [event for event in others if all(type(value) is float for value in event[3].values())]
        # Histograms come before the line of their step.
        placed = [(step, {tag.split("/")[0] for tag in content}) for _, step, _, content in others
                  if not all(tag.startswith(("checkpoint/", "evaluate/")) for tag in content)]
        steps = [line["step"] for line in lines if line["kind"] == "train"]
        self.assertEqual(placed, [(step, kinds) for step in steps for kinds in (
            [{"weights", "gradients"}] if step % EVERY == 0 else []) + [{"train"}]])
        self.assertEqual(version[1:], (0, 3, b"brain.Event:2"))
        self.assertEqual((start[1:3], list(fields(start[3]))), ((0, 7), [(1, 1)]))
        text = config[3]["config/text_summary"]
        tensor, plugin = dict(fields(text[8])), dict(fields(dict(fields(text[9]))[1]))
        self.assertEqual((tensor[1], list(fields(tensor[2])), plugin), (7, [(2, b"\x08\x01")], {1: b"text"}))
        self.assertEqual(tensor[8].decode(), f"```\n{(directory / 'config.ini').read_text()}```\n")
        expected = [(line["time"], line["step"], 5,
                     {f"{line['kind']}/{key}": float(np.float32(value)) for key, value in line.items()
                      if type(value) in (int, float) and key not in ("step", "time")}) for line in lines]
        self.assertEqual(scalars, expected)
        for kind in ("train", "evaluate"):
            steps = [line["step"] for line in lines if line["kind"] == kind]
            self.assertEqual(steps, sorted(set(steps)))
        return lines

    def test_whole_and_resumed(self):
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)  # the check value of its definition
        self.train(self.config, (1, 2), "run", "--train.steps=12", "--optimizer.learning_rate=1e-50")
        lines = self.assert_events_of_metrics("run")
        self.assertLessEqual({"train/loss", "train/grad_norm", "train/learning_rate", "train/samples_per_second",
                              "train/compute_seconds", "train/other_seconds"}, set(events(self.directory / "run")[4][3]))
        self.assertEqual([line["step"] for line in lines if line["kind"] == "evaluate"], [10, 12])
        self.assertEqual([line["step"] for line in lines if line["kind"] == "train"], [*range(1, 13)])
        # A record that is cut; lines of steps that no checkpoint has.
        (path,) = (self.directory / "run/tensorboard").iterdir()
        os.truncate(path, path.stat().st_size - 5)
        with open(self.directory / "run/metrics.jsonl", "a") as metrics:
            metrics.write('{"kind":"train","step":13,"loss":5.0,"time":1.5}\n')
        self.train(self.config, (2, 1), "run", "--train.steps=14")
        self.assertEqual([line["step"] for line in self.assert_events_of_metrics("run") if line["kind"] == "train"],
                         [*range(1, 15)])

    def test_lines_of_earlier_versions(self):
        self.train(self.config, (1, 1), "old", "--train.steps=2")
        metrics = self.directory / "old/metrics.jsonl"
        metrics.write_text(re.sub(r',"time":[0-9.]+', "", metrics.read_text()))
        self.train(self.config, (1, 1), "old", "--train.steps=3")
        version, _, _, _, *scalars = events(self.directory / "old")
        times = [time for time, step, _, content in scalars if "train/loss" in content]
        self.assertEqual(times[:2], [version[0]] * 2)
        self.assertEqual(len(times), 3)

    def test_killed(self):
        for step in (5, 18, 30):
            job = self.start(2, "train", self.config, "--run.dir=killed")
            metrics = self.directory / "killed/metrics.jsonl"
            job.wait_until(lambda: metrics.exists() and f'"step":{step},' in metrics.read_text(), 60)
            job.signal_all(signal.SIGKILL)
            job.wait(60)
        self.train(self.config, (1, 1), "killed")
        lines = self.assert_events_of_metrics("killed")
        self.assertEqual([line["step"] for line in lines if line["kind"] == "train"], [*range(1, 41)])
        self.train(self.config, (1, 1), "undisturbed")
        self.assert_same_run("killed", "undisturbed")
        self.assertTrue(same_histograms(*(histograms(self.directory / run) for run in ("killed", "undisturbed"))))

    def test_wrong_places(self):
        self.train(self.config, (1, 1), "off", "--train.steps=1", "--run.tensorboard=off", "--run.tensorboard_histograms=0")
        self.assertFalse((self.directory / "off/tensorboard").exists())
        for make in (lambda at: at.write_text("a file"), lambda at: at.symlink_to(self.directory)):
            make(self.directory / "off/tensorboard")
            finished = self.alone("train", self.config, "--run.dir=off", "--train.steps=2")
            self.assert_refused(finished, harness.USAGE, "off/tensorboard", "move away what has its name")
            (self.directory / "off/tensorboard").unlink()
        self.train(self.config, (1, 1), "off", "--train.steps=2")
        self.assert_events_of_metrics("off")  # steps of the time when it was off among them


def pixels_of(png):
    """The pixels of a PNG file of 8-bit red, green and blue."""
    at, compressed = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        if kind == b"IHDR":
            width, height, *rest = struct.unpack(">IIBBBBB", png[at + 8:at + 21])
            assert rest == [8, 2, 0, 0, 0], rest
        compressed += png[at + 8:at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    lines = np.frombuffer(zlib.decompress(compressed), np.uint8).reshape(height, 1 + 3 * width)
    image = np.zeros((height + 1, 3 * (width + 1)), int)  # a black row above and pixel before
    for y, (kind, *line) in enumerate(lines.tolist(), 1):
        for x, value in enumerate(line, 3):
            left, up, corner = image[y, x - 3], image[y - 1, x], image[y - 1, x - 3]
            ways = {abs(up - corner): left} if kind == 4 else {}
            nearest = min((abs(up - corner), 0, left), (abs(left - corner), 1, up),
                          (abs(left + up - 2 * corner), 2, corner))[2]
            image[y, x] = (value + [0, left, up, (left + up) // 2, nearest][kind]) % 256
    return image[1:, 3:].reshape(height, width, 3)


class Images(harness.StrataTest):
    """Test images with their classes and the model's answers; the graph of a residual network."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        random = np.random.default_rng(2)
        labels = np.arange(60) * 7 % 10
        images = random.integers(0, 180, (60, 3, 32, 32)) + 40 * (labels % 3)[:, None, None, None]
        cls().import_arrays("images", images.astype(np.uint8), labels, "40,20", "--classes=10")
        cls.config = cls().write_config("images.ini", harness.config_text(
            ["flatten", "dense 10"], data="images", batch={"global": 8, "micro": 2}, numerics={"lanes": 2},
            optimizer={"kind": "sgd", "learning_rate": 0.01}, train={"steps": 6, "evaluate_every": 3}, checkpoint={"every": 3},
            run={"tensorboard": "on", "resume": "auto"}))

    def sheets(self, run):
        found = [(step, content["evaluate/samples"][4]) for _, step, what, content in events(self.directory / run)
                 if what == 5 and "evaluate/samples" in content]
        return [step for step, _ in found], [dict(fields(image)) for _, image in found]

    def test_answers_to_test_images(self):
        reference = None
        for number, grid in enumerate([(1, 1, 1), (2, 2, 1)]):
            with self.subTest(grid=grid):
                self.train(self.config, grid, f"grid-{number}")
                found = self.sheets(f"grid-{number}")
                self.assertEqual(found, reference or found)
                reference = found
        steps, sheets = reference
        self.assertEqual(steps, [3, 6])
        with h5py.File(self.directory / "images/test.h5") as master:
            inputs, labels = master["inputs"][:16], master["targets"][:16]
        for sheet, checkpoint in zip(sheets, harness.checkpoints(self.directory / "grid-1")):
            stored = harness.tensors(checkpoint)
            answers = ((inputs / 255).reshape(16, -1) @ stored["weights/dense1.weight"].T
                       + stored["weights/dense1.bias"]).argmax(1)
            self.assertTrue(0 < (answers == labels).sum() < 16, "some are wrong")
            pixels = pixels_of(sheet[4])
            self.assertEqual((sheet[1], sheet[2], sheet[3]), (*pixels.shape[:2], 3))
            self.assertEqual(pixels.shape, (4 * (64 + 2 * 11 + 8) + 4, 4 * 68 + 4, 3))
            glyphs = {}
            for i, (label, answer) in enumerate(zip(labels, answers)):
                top, left = 4 + i // 4 * 94, 4 + i % 4 * 68
                shown = pixels[top:top + 64, left:left + 64]
                self.assertTrue((shown == inputs[i].transpose(1, 2, 0).repeat(2, 0).repeat(2, 1)).all())
                for place, number, ink in ((68, label, 255), (79, answer, 255 if label == answer else 96)):
                    glyph = pixels[top + place:top + place + 7, left:left + 5]
                    self.assertEqual(set(glyph[..., 1].flat), {32, ink})
                    self.assertTrue((glyphs.setdefault(number, glyph[..., 0]) == glyph[..., 0]).all())
            self.assertEqual(len({glyph.tobytes() for glyph in glyphs.values()}), len(glyphs))

    def test_resumed(self):
        self.train(self.config, (1, 1), "resumed", "--train.steps=4")  # evaluates after steps 3 and 4
        self.assertEqual(self.sheets("resumed")[0], [3, 4])
        (path,) = (self.directory / "resumed/tensorboard").iterdir()
        os.truncate(path, path.stat().st_size - 5)
        self.train(self.config, (1, 2), "resumed")
        self.assertEqual(self.sheets("resumed")[0], [3, 4, 6])
        self.train(self.config, (1, 2), "resumed")  # repeats the last evaluation
        self.assertEqual(self.sheets("resumed")[0], [3, 4, 6])

    def test_graph(self):
        config = self.write_config("residual.ini", harness.config_text(
            ["conv 8 3 relu padding=same", "residual name=block", "conv 16 3 relu padding=same stride=2",
             "shortcut", "conv 16 1 stride=2", "end", "avg_pool 16", "flatten", "dense 10"],
            data="images", batch={"global": 8}, train={"steps": 1}, run={"tensorboard": "on"}))
        self.train(config, (1, 2), "residual")
        (graph,) = [content for _, _, what, content in events(self.directory / "residual") if what == 4]
        nodes = []
        for number, node in fields(graph):
            parts = list(fields(node))
            attributes = {dict(fields(value))[1]: dict(fields(dict(fields(value))[2])) for key, value in parts if key == 5}
            (shape,) = (value for _, value in fields(attributes[b"_output_shapes"][1]))
            sizes = [dict(fields(size)).get(1, 0) for _, size in fields(shape)]
            self.assertEqual((number, sizes[0]), (1, 2**64 - 1))  # -1: any microbatch
            nodes.append((*(value.decode() for key, value in parts if key in (1, 2)),
                          [value.decode() for key, value in parts if key == 3], sizes[1:]))
        self.assertEqual(nodes, [
            ("input", "Placeholder", [], [3, 32, 32]), ("conv1", "conv", ["input"], [8, 32, 32]),
            ("block.conv1", "conv", ["conv1"], [16, 16, 16]), ("block.shortcut.conv1", "conv", ["conv1"], [16, 16, 16]),
            ("block.end", "residual", ["block.conv1", "block.shortcut.conv1"], [16, 16, 16]),
            ("avg_pool1", "avg_pool", ["block.end"], [16, 1, 1]), ("flatten1", "flatten", ["avg_pool1"], [16]),
            ("dense1", "dense", ["flatten1"], [10])])


class Layers(language.LanguageTest):
    """Parameters that stages, shards and replicas divide, and a table that two stages share."""

    def texts(self, run):
        return [(step, dict(fields(content["evaluate/text"][8]))[8].decode()) for _, step, what, content
                in events(self.directory / run) if what == 5 and "evaluate/text" in content]

    def test_text_is_that_of_the_checkpoint(self):
        settings = ["--run.tensorboard=on", "--run.tensorboard_text=6", "--checkpoint.every=2"]
        for run, grid in (("one", (1, 1, 1)), ("eight", (2, 2, 2))):
            self.train(self.config, grid, run, *settings, *(["--parallel.sequence=on"] if run == "eight" else []))
        found = self.texts("one")
        self.assertEqual(found, self.texts("eight"))
        self.assertEqual([step for step, _ in found], [2, 3])
        with h5py.File(self.directory / "text/test.h5") as master:
            prompt = "".join(chr(code) for code in master["text/characters"][()][master["tokens"][:8]])
        finished = self.alone("generate", "eight", f"--prompt={prompt}", "--tokens=6")
        written = finished.text[:len(prompt) + 6]
        self.assertEqual(found[-1][1], f"```\n{prompt}\n=>\n{written[len(prompt):]}\n```\n")
        for more, words in ((["--run.tensorboard=off"], "run.tensorboard is off"), (["--data.test="], "data.test is empty"),
                            (["--numerics.loss_pieces=2"], "with numerics.loss_pieces = 2 the head keeps no logits")):
            self.assert_refused(self.alone("train", self.config, "--run.dir=x", *settings, *more), harness.USAGE,
                                "run.tensorboard_text", words)

    def assert_histogram(self, fields_of, tensor):
        """The fields are those of the tensor's elements."""
        least, greatest, count, total, squares, limits, counts = fields_of
        tensor = tensor.astype(np.float64).ravel()
        self.assertEqual((least, greatest, count), (tensor.min(), tensor.max(), tensor.size))
        np.testing.assert_allclose(total, tensor.sum(), rtol=0, atol=1e-12 * np.abs(tensor).sum())
        np.testing.assert_allclose(squares, np.square(tensor).sum(), rtol=1e-12)
        self.assertEqual(counts.tolist(), np.histogram(tensor, [-np.inf, *limits])[0].tolist())
        eighths = np.frexp(limits)[0] * 16
        self.assertTrue((eighths == np.round(eighths)).all(), limits)

    def test_histograms_are_those_of_the_checkpoint(self):
        # After one step the momentum of SGD is the gradient.
        settings = ["--optimizer.kind=sgd", "--optimizer.momentum=0.9", "--optimizer.weight_decay=0",
                    "--optimizer.clip_norm=0", "--train.steps=2", "--checkpoint.every=1", "--data.test=",
                    "--train.evaluate_every=0", "--run.tensorboard=on", "--run.tensorboard_histograms=1"]
        reference = None
        for number, grid in enumerate([(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)]):
            with self.subTest(grid=grid):
                # Buckets that cut parameters, on all grids but the first.
                cut = ["--parallel.bucket=0.001", "--parallel.schedule=zb-h1"] if number else []
                self.train(self.config, grid, f"grid-{number}", *settings, *cut)
                found = histograms(self.directory / f"grid-{number}")
                self.assertTrue(same_histograms(found, reference or found))
                reference = found
        for step, checkpoint in enumerate(harness.checkpoints(self.directory / "grid-4"), 1):
            tensors = {name.replace("optimizer/", ""): tensor for name, tensor in harness.tensors(checkpoint).items()}
            kinds = {"weights": "weights", "gradients": "momentum"} if step == 1 else {"weights": "weights"}
            for kind, stored in kinds.items():
                names = [tag.split("/")[1] for tag in reference[step] if tag.startswith(kind)]
                self.assertEqual({f"{stored}/{name}" for name in names},
                                 {name for name in tensors if name.startswith(f"{stored}/")})
                for name in names:
                    self.assert_histogram(reference[step][f"{kind}/{name}"], tensors[f"{stored}/{name}"])


if __name__ == "__main__":
    harness.main()
