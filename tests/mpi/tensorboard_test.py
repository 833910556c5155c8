"""run.tensorboard: the event file has every number of metrics.jsonl, each step once, also after kills. Records and
protocol buffers are decoded here, by TensorFlow's field numbers."""

import json
import os
import re
import signal
import struct

import numpy as np

import harness

NETWORK = harness.config_text(
    ["dense 30 relu", "dense 4"], batch={"global": 16, "micro": 4}, numerics={"lanes": 2},
    train={"steps": 40, "evaluate_every": 10}, checkpoint={"every": 4, "keep": 2, "minutes": 0},
    run={"resume": "auto", "tensorboard": "on"})


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


def events(run):
    """All events of a run as (time, step, field, content); the scalars' content is tag -> float32."""
    (path,) = (run / "tensorboard").iterdir()
    assert re.fullmatch(r"events\.out\.tfevents\.\d{10}\..+", path.name), path
    found = []
    for body in records(path.read_bytes()):
        event = dict(fields(body))
        what = max(event)
        content = event[what]
        if what == 5:
            values = [dict(fields(value)) for _, value in fields(content)]
            content = {value[1].decode(): struct.unpack("<f", value[2])[0] if 2 in value else value for value in values}
        found.append((struct.unpack("<d", event[1])[0], event[2], what, content))
    return found


class TensorBoard(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (12,), 4, train=100, test=20)

    def assert_events_of_metrics(self, run):
        """Equal numbers in equal order, and each step of training and evaluation once."""
        directory = self.directory / run
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        version, start, config, *scalars = events(directory)
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
                              "train/compute_seconds", "train/other_seconds"}, set(events(self.directory / "run")[3][3]))
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
        version, _, _, *scalars = events(self.directory / "old")
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

    def test_wrong_places(self):
        self.train(self.config, (1, 1), "off", "--train.steps=1", "--run.tensorboard=off")
        self.assertFalse((self.directory / "off/tensorboard").exists())
        for make in (lambda at: at.write_text("a file"), lambda at: at.symlink_to(self.directory)):
            make(self.directory / "off/tensorboard")
            finished = self.alone("train", self.config, "--run.dir=off", "--train.steps=2")
            self.assert_refused(finished, harness.USAGE, "off/tensorboard", "move away what has its name")
            (self.directory / "off/tensorboard").unlink()
        self.train(self.config, (1, 1), "off", "--train.steps=2")
        self.assert_events_of_metrics("off")  # steps of the time when it was off among them


if __name__ == "__main__":
    harness.main()
