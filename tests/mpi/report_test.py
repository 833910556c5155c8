"""strata watch, report and metrics export: what they show of a run is what its files hold."""

import base64
import csv
import fcntl
import io
import json
import math
import os
import pathlib
import pty
import re
import shutil
import signal
import struct
import subprocess
import termios
import time
import xml.etree.ElementTree as ElementTree

import harness
from harness import DATA, DONE, USAGE

NETWORK = harness.config_text(["dense 16 relu", "dense 4"], batch={"global": 16}, numerics={"lanes": 2},
                              optimizer={"kind": "adam", "learning_rate": 0.001}, train={"steps": 24, "evaluate_every": 6},
                              checkpoint={"every": 12})
# A name that HTML must not take for markup.
HOSTILE = "b <i>&\"'"
CHARTS = {"training-loss": ("train", "loss"), "test-loss": ("evaluate", "loss"), "accuracy": ("evaluate", "accuracy"),
          "learning-rate": ("train", "learning_rate"), "gradient-norm": ("train", "grad_norm"),
          "samples-per-second": ("train", "samples_per_second")}
SVG = "{http://www.w3.org/2000/svg}"


def lock_text(beat, host="another-node"):
    return (f"heartbeat = {beat:012}\nnonce = 0123456789abcdef\nhost = {host}\nboot = b\npid = 1\n"
            "process_start = 1\npid_namespace = n\n")


class Terminal:
    """A command in a pseudo terminal of this width."""

    def __init__(self, command, directory, columns, locale, rows=30):
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        self.process = subprocess.Popen([str(word) for word in command], stdin=slave, stdout=slave, stderr=slave,
                                        cwd=directory, start_new_session=True,
                                        env={**os.environ, "TERM": "xterm", "LC_ALL": locale})
        os.close(slave)
        os.set_blocking(self.master, False)
        self.text = ""

    def resize(self, columns, rows=30):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, condition):
        """Reads until the text fulfils a condition."""
        self.read(condition)
        if not condition(self.text):
            self.process.kill()
            raise AssertionError(f"what was waited for did not come:\n{self.text}")

    def read(self, condition):
        """Reads until the text fulfils a condition or the command has ended."""
        end = time.monotonic() + 10 * harness.LENIENCE
        data = self.text.encode()
        while not condition(self.text) and time.monotonic() < end:
            ended = self.process.poll() is not None
            try:
                data += os.read(self.master, 1 << 16)
            except OSError:
                if ended:
                    return
                time.sleep(0.02)
            self.text = data.decode(errors="ignore")

    def end(self, *numbers):
        for number in numbers:
            self.process.send_signal(number)
        self.read(lambda _: False)
        self.process.kill()
        os.close(self.master)
        return self.process.wait()


def lines_of(text):
    """What stands on the lines of a terminal."""
    return [line.rstrip("\r") for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).split("\n")]


class Report(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=160, test=40)
        test = cls()
        test.train(cls.config, (2, 1), "a")
        test.train(cls.config, (1, 1), HOSTILE, "--optimizer.learning_rate=0.01")

    def records_of(self, run, kind):
        lines = pathlib.Path(self.directory, run, "metrics.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def copy(self, name):
        shutil.copytree(self.directory / "a", self.directory / name)
        return self.directory / name

    def report(self, *runs, output="page.html", options=()):
        self.alone("report", *runs, f"--output={output}", *options, expect=DONE)
        text = pathlib.Path(self.directory, output).read_text()
        self.assertTrue(text.startswith("<!DOCTYPE html>"))
        return text, ElementTree.fromstring(text)

    def watch(self, run, *options):
        finished = self.alone("watch", run, "--once", *options, expect=DONE)
        return finished.text

    def check_curve(self, plot, path, records, key, thinned=False):
        """The points of a path are the records' values, to a hundredth of a pixel."""
        axis = {name: float(plot.get(f"data-{name}")) for name in ("left", "right", "top", "bottom", "log")}
        (x0, x1), (y0, y1) = ([float(word) for word in plot.get(f"data-{name}").split()] for name in "xy")
        expected = [(record["step"], record[key]) for record in records]
        points = [[float(word) for word in point.split(",")] for point in re.split("[ML]", path.get("d"))[1:]]
        columns = {round((step - x0) / (x1 - x0) * (axis["right"] - axis["left"]) + axis["left"], 2)
                   for step, _ in expected}
        drawn = []
        for x, y in points:
            self.assertTrue(any(abs(x - column) < 0.011 for column in columns) if not thinned else True)
            value = y1 - (y - axis["top"]) / (axis["bottom"] - axis["top"]) * (y1 - y0)
            drawn.append((x0 + (x - axis["left"]) / (axis["right"] - axis["left"]) * (x1 - x0),
                          10 ** value if axis["log"] else value))
        tolerance = 0.006 / (axis["bottom"] - axis["top"]) * (y1 - y0)
        if not thinned:
            self.assertEqual(len(drawn), len(expected))
            for (x, y), (step, value) in zip(drawn, expected):
                self.assertAlmostEqual(x, step, delta=0.01 / (axis["right"] - axis["left"]) * (x1 - x0))
                self.assertAlmostEqual(y, value, delta=tolerance * (value * math.log(10) if axis["log"] else 1) * 1.01)
        return drawn, tolerance

    def test_page_holds_the_values_of_the_runs(self):
        text, page = self.report("a", HOSTILE, options=["--plots=plots"])
        # Nothing in the page leads out of it, and nothing runs.
        self.assertNotRegex(text.lower(), r"https?:|href|src=|url\(|@import|<script|<link|<iframe| on\w+=|//\w")
        self.assertEqual(sum(1 for node in page.iter() if node.tag == "i"), 0)
        self.assertIn(HOSTILE, ["".join(cell.itertext()) for cell in page.iter("th")])
        rows = [["".join(cell.itertext()) for cell in row] for row in page.iter("tr")]
        self.assertIn(["optimizer.learning_rate", "0.001", "0.01"], rows)
        self.assertIn(["steps", "24 of 24", "24 of 24"], rows)
        self.assertTrue(any(row[0] == "grid" and row[1].startswith("2 data x 1 pipeline") for row in rows))
        self.assertTrue(any(row[0] == "version and nodes" and re.match(r"strata [\d.]+ on 1 node: \S", row[2])
                            for row in rows))
        self.assertFalse(any(row[0] == "optimizer.beta1" and len(row) == 3 for row in rows), "equal settings")
        files = {path.stem for path in pathlib.Path(self.directory, "plots").iterdir()}
        self.assertEqual(files, {*CHARTS, "time", "memory"})
        self.assertEqual(len(list(page.iter("svg"))), len(files))
        for file, (kind, key) in CHARTS.items():
            with self.subTest(chart=file):
                svg = ElementTree.parse(self.directory / "plots" / f"{file}.svg").getroot()
                plot = next(group for group in svg.iter(f"{SVG}g") if group.get("class") == "plot")
                paths = {path.get("data-run"): path for path in plot.iter(f"{SVG}path") if path.get("data-run")}
                self.assertEqual(set(paths), {"a", HOSTILE})
                for run, path in paths.items():
                    self.check_curve(plot, path, self.records_of(run, kind), key)

    def test_the_log_is_for_people(self):
        run = self.copy("log")
        before = self.report("log")[0]
        for fact in ("<th>grid</th><td>2 data x 1 pipeline", "<th>ranks and libraries</th><td>cpu on 2 ranks",
                     "<th>starts</th><td>1</td>", "log: planned ", "log: used "):
            self.assertIn(fact, before)
        (run / "log.txt").write_text("a line that nobody expects\n")
        self.assertEqual(self.report("log")[0], before)
        # A run of before has its metrics alone.
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (run / "metrics.jsonl").write_text("".join(line for line in lines if '"kind":"run"' not in line))
        text = self.report("log")[0]
        self.assertIn("<th>steps</th><td>24 of 24</td>", text)
        self.assertNotIn("<th>grid</th>", text)

    def test_starts_and_warnings(self):
        self.train(self.config, (2, 1), "starts", "--train.steps=18", "--checkpoint.every=6")
        shutil.rmtree(self.directory / "starts/checkpoints/step-00000018")
        self.train(self.config, (1, 1), "starts", "--train.steps=24", "--run.resume=auto")
        text, _ = self.report("starts")
        self.assertIn("<th>starts</th><td>2</td>", text)
        self.assertRegex(text, r"<li>[\d-]{10} [\d:]{8} continuing after step 12 from starts/checkpoints/step-00000012</li>")
        self.assertIn("<th>grid</th><td>1 data x 1 pipeline", text)

    def test_bars_are_the_time_account(self):
        self.report("a", options=["--plots=bars"])
        svg = ElementTree.parse(self.directory / "bars" / "time.svg").getroot()
        widths = [float(rect.get("width")) for rect in svg.iter(f"{SVG}rect") if rect.get("height") == "20.00"]
        steps = self.records_of("a", "train")
        whole = sum(step["step_seconds"] for step in steps)
        for width, part in zip(widths, ("compute", "communication", "bubble", "data", "other"), strict=True):
            share = sum(step[f"{part}_seconds"] for step in steps) / whole
            self.assertAlmostEqual(width / sum(widths), share, delta=1e-3)

    def test_long_runs_make_small_pages(self):
        run = self.copy("long")
        template = self.records_of("a", "train")[0]
        losses = [2 + math.sin(step) for step in range(100000)]
        losses[54321], losses[76543] = 9.0, 0.25
        (run / "metrics.jsonl").write_text("".join(
            json.dumps({**template, "step": step + 1, "loss": loss}) + "\n" for step, loss in enumerate(losses)))
        text, _ = self.report("long", options=["--plots=long-plots"])
        self.assertLess(len(text), 300000)
        svg = ElementTree.parse(self.directory / "long-plots" / "training-loss.svg").getroot()
        plot = next(group for group in svg.iter(f"{SVG}g") if group.get("class") == "plot")
        records = [{"step": step + 1, "loss": loss} for step, loss in enumerate(losses)]
        drawn, _ = self.check_curve(plot, next(plot.iter(f"{SVG}path")), records, "loss", thinned=True)
        for step, loss in ((54322, 9.0), (76544, 0.25)):
            x, y = (max if loss > 1 else min)(drawn, key=lambda point: point[1])
            self.assertAlmostEqual(y, loss, delta=0.01)
            self.assertAlmostEqual(x, step, delta=10)

    def test_files_in_the_run_directory(self):
        run = self.copy("files")
        self.alone("evaluate", "files", "--confusion=files/confusion.csv", expect=DONE)
        # The smallest PNG file: a grey pixel.
        pixel = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a4944415478"
                              "9c636800000082008177cd72b60000000049454e44ae426082")
        (run / "samples.png").write_bytes(pixel)
        (run / "generated.txt").write_text("ROMEO:\n<script>alert(1)</script> & so on\n")
        text, page = self.report("files", output="files.html")
        self.assertEqual(re.findall(r'src="([^"]{0,22})', text), ["data:image/png;base64,"])
        self.assertNotRegex(text.lower(), r"https?:|href|url\(|@import|<script")
        self.assertEqual(next(page.iter("pre")).text, "ROMEO:\n<script>alert(1)</script> & so on\n")
        matrix = next(svg for svg in page.iter("svg") if "confusion.csv" in svg.get("aria-label"))
        counts = [int(text.text) for text in matrix.iter("text") if text.get("class") in ("onto middle", "ink middle")]
        with open(run / "confusion.csv", newline="") as file:
            self.assertEqual(counts, [int(field) for row in list(csv.reader(file))[1:] for field in row[1:]])
        for damage in ("class,0,1\n0,1\n", "other\n", "class,0\n0,x\n"):
            (run / "confusion.csv").write_text(damage)
            self.assert_refused(self.alone("report", "files", "--output=x.html"), DATA, "files/confusion.csv",
                                "not a confusion matrix")

    def test_recorded_step(self):
        self.train(self.config, (1, 2), "timed", "--run.timeline=3-4", "--train.steps=5")
        self.alone("timeline", "draw", "timed", "--output=step.svg", expect=DONE)
        step = (self.directory / "step.svg").read_text()
        self.assertEqual([step.count(f">rank {rank}</text>") for rank in range(3)], [1, 1, 0])
        text, page = self.report("a", "timed", output="timed.html", options=["--plots=timed-plots"])
        (image,) = page.iter("img")
        form, content = image.get("src").split(",")
        self.assertEqual((form, base64.b64decode(content).decode()), ("data:image/svg+xml;base64", step))
        self.assertRegex(image.get("alt"), "^timed: step 3, replica by replica; ")
        # Between the account and the settings, in a box that scrolls.
        self.assertRegex(text, r'(?s)Time and memory.*<div class="scroll"><img class="wide".*<h2>Settings')
        self.assertEqual((self.directory / "timed-plots/timeline-1.svg").read_text(), step)
        os.truncate(self.directory / "timed/timeline.json", (256 << 20) + 1)
        text, page = self.report("timed", output="timed.html")
        self.assertIn("timed: timeline.json is larger than 256.00 MiB; strata timeline draw", text)
        os.truncate(self.directory / "timed/timeline.json", 100)
        text, page = self.report("timed", output="timed.html")
        self.assertIn("timed/timeline.json is not a timeline of strata", text)

    def test_export(self):
        for kind in ("train", "evaluate", "checkpoint"):
            with self.subTest(kind=kind):
                finished = self.alone("metrics", "export", "a", f"--kind={kind}", expect=DONE)
                records = self.records_of("a", kind)
                rows = list(csv.DictReader(io.StringIO(finished.text)))
                self.assertEqual([{key: float(value) for key, value in row.items()} for row in rows],
                                 [{key: value for key, value in record.items() if key != "kind"}
                                  for record in records])
                self.assertEqual(list(rows[0]), list(records[0])[1:])
        tables = self.alone("metrics", "export", "a").text.split("\n\n")
        self.assertEqual([table.split(",")[0] for table in tables], ["step"] * 3)

    def test_wrong_use(self):
        (self.directory / "empty").mkdir(exist_ok=True)
        (self.directory / "file").write_text("")
        bad = self.copy("bad")
        (bad / "metrics.jsonl").unlink()
        (bad / "metrics.jsonl").mkdir()
        new = self.copy("new")
        (new / "metrics.jsonl").unlink()
        for arguments, code, words in [
                (["watch"], USAGE, ["needs one run"]),
                (["watch", "a", HOSTILE], USAGE, ["needs one run"]),
                (["watch", "nowhere"], USAGE, ["nowhere does not exist", "run.dir"]),
                (["watch", "empty"], USAGE, ["empty is not the directory of a run"]),
                (["watch", "file"], USAGE, ["file is not a directory"]),
                (["watch", "bad"], DATA, ["bad/metrics.jsonl is not a regular file"]),
                (["watch", "a", "--interval=0"], USAGE, ['--interval is "0"', "number from"]),
                (["watch", "a", "--interval=x"], USAGE, ['--interval is "x"']),
                (["report", "a"], USAGE, ["--output"]),
                (["report", "--output=x.html"], USAGE, ["needs a run"]),
                (["report", "a", "empty", "--output=x.html"], USAGE, ["empty is not the directory"]),
                (["report", "a", "--output=no/x.html"], USAGE, ["cannot write no/x.html"]),
                (["report", "a", "--output=x.html", "--plots=file"], USAGE, ["file"]),
                (["metrics", "show", "a"], USAGE, ['not "show"']),
                (["metrics", "export", "a", "--kind=tests"], USAGE, ['--kind is "tests"', "train, evaluate"]),
                (["metrics", "export", "new"], DATA, ["new has no records"]),
                (["metrics", "export", "bad"], DATA, ["bad/metrics.jsonl"])]:
            with self.subTest(arguments=arguments):
                self.assert_refused(self.alone(*arguments), code, *words)
        self.assertIn("no step yet", self.watch("new"))
        self.report("new", output="new.html")

    def test_damaged_lines_are_left_out(self):
        run = self.copy("torn")
        before = self.watch("torn")
        text = (run / "metrics.jsonl").read_text()
        (run / "metrics.jsonl").write_text(text.replace("\n", "\nnull\n{\"kind\":3}\n\x00\n", 1) + '{"kind":"train","ste')
        # The age of the checkpoint differs.
        self.assertEqual(re.sub(r"  \S+ s ago|\d+ min \d+ s ago", "", self.watch("torn")).replace("torn", "a"),
                         re.sub(r"  \S+ s ago|\d+ min \d+ s ago", "", before).replace("torn", "a"))
        self.assertEqual(self.alone("metrics", "export", "torn").text, self.alone("metrics", "export", "a").text)

    def test_watch_shows_means_of_the_last_steps(self):
        text = " ".join(self.watch("a").split())  # lines end where the rate's digits leave no room
        steps = self.records_of("a", "train")
        seconds = sum(step["step_seconds"] for step in steps)
        self.assertIn(f" loss {steps[-1]['loss']:.4g} {round(16 * len(steps) / seconds):,} samples/s "
                      f"{1e3 * seconds / len(steps):.4g} ms/step", text)
        for name, part in (("compute", "compute"), ("exposed communication", "communication"), ("bubble", "bubble"),
                           ("data wait", "data"), ("other", "other")):
            share = 100 * sum(step[f"{part}_seconds"] for step in steps) / seconds
            self.assertAlmostEqual(float(re.search(rf"{name} ([\d.]+) %", text)[1]), share, delta=0.051)
        last = self.records_of("a", "evaluate")[-1]
        self.assertIn(f"test loss {last['loss']:.4g} (step 24) accuracy {100 * last['accuracy']:.2f} %", text)
        self.assertIn("checkpoint: step 24 ", text)

    def test_states(self):
        run = self.copy("state")
        self.assertIn("state  finished\nstep 24/24  ", self.watch("state"))
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (run / "metrics.jsonl").write_text("".join(line for line in lines if '"evaluate","step":24' not in line))
        self.assertIn("ended after step 24", self.watch("state"))  # its last evaluation is missing
        (run / "metrics.jsonl").write_text("".join(lines))

        def add(**facts):
            with open(run / "metrics.jsonl", "a") as file:
                file.write(json.dumps({"kind": "run", "step": 24, **facts}) + "\n")

        add(event="slow", rank=3, seconds=0.009, peers_seconds=0.004)
        (run / "run.lock").write_text(lock_text(1))
        text = self.watch("state")
        self.assertIn("running (host another-node", text)
        self.assertIn("slow: rank 3 computes for 9 ms a step, its peers for 4 ms", text)
        os.utime(run / "run.lock", (time.time() - 300, time.time() - 300))
        self.assertRegex(self.watch("state"), r"lost its heartbeat 5 min \d\d s ago")
        # The owner of a fresh lock was a process of this node, and has ended.
        ended = subprocess.Popen(["true"])
        ended.wait()
        (run / "run.lock").write_text(
            f"heartbeat = 000000000001\nnonce = 0123456789abcdef\nhost = {os.uname().nodename}\n"
            f"boot = {pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()}\npid = {ended.pid}\n"
            f"process_start = 1\npid_namespace = {os.readlink('/proc/self/ns/pid')}\n")
        self.assertRegex(self.watch("state"), r"lost its heartbeat [\d.]+ s ago")
        (run / "run.lock").unlink()
        (run / "config.ini").write_text((run / "config.ini").read_text().replace("steps = 24", "steps = 30"))
        self.assertIn("ended after step 24", self.watch("state"))
        add(event="stopped", stopped="stopped on request after step 24 of 30, checkpoint")
        self.assertIn("stopped on request after step 24 of 30", self.watch("state"))
        add(event="start")
        self.assertIn("ended after step 24", self.watch("state"))
        add(event="finished", finished="finished after step 24 of 30: it did not improve")
        self.assertIn("finished after step 24 of 30: it did not improve", self.watch("state"))

    def test_lines_fit_the_terminal(self):
        self.copy("a-long-name-" + 60 * "\u00e9")
        for run in ("a", "a-long-name-" + 60 * "\u00e9"):
            for columns in (13, 40, 120):
                for locale, braille in (("C.UTF-8", True), ("C", False)):
                    with self.subTest(run=run, columns=columns, locale=locale):
                        terminal = Terminal([harness.STRATA, "watch", run, "--once"], self.directory, columns, locale)
                        self.assertEqual(terminal.end(), DONE)
                        lines = lines_of(terminal.text)
                        self.assertLessEqual(max(map(len, lines)), columns)
                        self.assertEqual(bool(re.search("[\u2801-\u28ff]", terminal.text)), braille and columns > 20)
                        self.assertEqual(terminal.text.isascii(), not braille or (columns < 20 and run == "a"))
                        if columns > 20:
                            # The labels of the curve are its range.
                            losses = [record["loss"] for record in self.records_of(run, "train")]
                            for loss in (min(losses), max(losses)):
                                self.assertTrue(any(line.startswith(f"{loss:8.4g} ") for line in lines), terminal.text)
        self.assertLessEqual(max(map(len, self.watch("a").splitlines())), 80)

    def test_watches_a_run_grow(self):
        run = self.copy("grow")
        records = [line for line in (run / "metrics.jsonl").read_text().splitlines(keepends=True) if '"run"' not in line]
        (run / "metrics.jsonl").write_text("".join(records[:5]))
        (run / "run.lock").write_text(lock_text(1))
        command = [harness.STRATA, "watch", "grow", "--interval=0.1"]
        terminal = Terminal(command, self.directory, 100, "C.UTF-8")
        terminal.read_until(lambda text: "step 5/24" in text)
        self.assertIn("ETA", terminal.text)
        pipe = harness.Job(command, self.directory)
        pipe.wait_until(lambda: "step 5/24" in pipe.text(), 10)
        with open(run / "metrics.jsonl", "a") as file:
            file.write(records[5][:20])
            file.flush()
            time.sleep(0.3)
            file.write(records[5][20:])
        terminal.read_until(lambda text: "step 6/24" in text)
        terminal.resize(30)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.read_until(lambda text: "step 6/24" in text.rsplit("\x1b[H", 1)[-1]
                            and max(map(len, lines_of(text.rsplit("\x1b[H", 1)[-1]))) <= 30)
        self.assertEqual(terminal.end(signal.SIGINT), DONE)
        self.assertTrue(terminal.text.endswith("\x1b[?25h"), "the cursor is hidden")
        pipe.wait_until(lambda: "step 6/24" in pipe.text(), 10)
        # A run that went on from a checkpoint replaces the file.
        (run / "next").write_text("".join(records[:3]))
        (run / "next").rename(run / "metrics.jsonl")
        pipe.wait_until(lambda: "step 3/24" in pipe.text(), 10)
        (run / "next").write_text("".join(records))
        (run / "next").rename(run / "metrics.jsonl")
        (run / "run.lock").unlink()
        finished = pipe.wait(10)
        self.assertEqual(finished.code, DONE)
        self.assertNotIn("\x1b", finished.text)
        steps = re.findall(r"^step (\d+)/24", finished.text, re.MULTILINE)
        self.assertEqual([step for i, step in enumerate(steps) if i == 0 or step != steps[i - 1]],
                         ["5", "6", "3", "24"])


if __name__ == "__main__":
    harness.main()
