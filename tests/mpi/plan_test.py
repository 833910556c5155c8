"""strata plan: what the text and the page show of a run that never starts."""

import configparser
import pathlib
import re
import xml.etree.ElementTree as ElementTree

import harness
from harness import DONE, USAGE

CONFIG = """\
[model]
preset = gpt
blocks = 16
width = 512
heads = 8
context = 256
vocabulary = 32000

[data]
train = absent.h5

[parallel]
data = 4
pipeline = 16
tensor = 8

[batch]
global = 64
micro = 1

[numerics]
dtype = bfloat16

[train]
steps = 1000
"""
SLOW_LINKS = """\
[machine]
name = slow
device = cpu
node_devices = 2
memory_gb = 8
[peak]
float32_tflops = 0.1
[product]
efficiency = 0.5
[memory]
bandwidth_gbs = 10
efficiency = 0.5
[link.node]
latency_us = 1
bandwidth_gbs = 0.01
"""
JOBS = pathlib.Path(__file__).parents[2] / "jobs"


def config_of(text):
    """The settings of a config file by section and key."""
    reader = configparser.ConfigParser(inline_comment_prefixes="#")
    reader.read_string(text)
    return {f"{section}.{key}": value for section in reader.sections() for key, value in reader[section].items()}


PRICES = ["--failures=2", "--restart=600", "--kwh-price=0.25", "--node-hour-price=10"]


class Plan(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # A name that HTML must not take for markup.
        cls.config = cls().write_config("a <b>&'.ini", CONFIG)

    def plan(self, *options):
        finished = self.alone("plan", self.config, "--machine=h100", *options, expect=DONE)
        return finished.text

    def page(self, *options):
        text = self.plan("--html=page.html", *options)
        page = pathlib.Path(self.directory, "page.html").read_text()
        # Nothing in the page leads out of it, and nothing runs.
        self.assertNotRegex(page.lower(), r"https?:|href|src=(?!\"data:image/svg)|url\(|@import|<script|<link|<iframe"
                                          r"| on\w+=")
        return text, ElementTree.fromstring(page)

    def test_the_parts_of_a_step_add_up(self):
        text = self.plan("--nodes=64")
        table = text[text.index("time of a step"):text.index("total ")]
        shares = [float(share) for share in re.findall(r" ([0-9.]+) %", table)]
        self.assertGreater(len(shares), 3)
        self.assertAlmostEqual(sum(shares), 100, delta=0.05 * len(shares))
        self.assertEqual(shares, sorted(shares, reverse=True))

    def test_the_first_and_the_last_line_are_the_verdict(self):
        for options, verdict in [(["--nodes=64"], r"it fits h100 as 4 data x 16 pipeline x 8 tensor on 64 nodes: a step takes \S+ ms, "
                                                  r"the training \S.*"),
                                 (["--nodes=1", "--search"], r"it fits h100 as \d+ data x .* on 1 node: .*"),
                                 (["--parallel.data=64", "--parallel.pipeline=1", "--parallel.tensor=1", "--model.width=16384"],
                                  r"it does not fit h100: \d+\.\d+ GiB is too much for a rank; .*--search tries all grids")]:
            lines = self.plan(*options).splitlines()
            self.assertRegex(lines[0], f"^{verdict}$")
            self.assertEqual((lines[1], lines[-1]), ("", lines[0]))

    def test_the_end_has_failures_and_prices(self):
        text = self.plan("--nodes=64", *PRICES)
        self.assertIn("1,000 steps without a break", text)
        self.assertRegex(text, r"failures: one in 11 min 15 s on 64 nodes, \S+ until the end; a restart takes 10 min 00 s")
        hours, kwh, cost = (float(number.replace(",", "")) for number in
                            re.search(r"node hours: (\S+); energy: (\S+) kWh; cost: (\S+)", text).groups())
        self.assertAlmostEqual(cost, 10 * hours + 0.25 * kwh, delta=0.02 * cost)  # of three digits

    def test_the_page_shows_what_the_text_says(self):
        text, page = self.page("--nodes=64", *PRICES)
        self.assertIn("a <b>&'.ini", "".join(page.find("body/h1").itertext()))
        items = ["".join(item.itertext()) for item in page.iter("li")]
        for item in items:
            self.assertIn(item + "\n", text)
        verdict = text.splitlines()[-1]
        self.assertEqual(len(items), 4 + text[:-len(verdict) - 2].count("\n", text.index("steps without a break")))
        ranks = [title.text for title in page.iter("title") if title.text.startswith("rank ")]
        self.assertEqual(len(ranks), 512)
        self.assertEqual(ranks[-1], "rank 511: data 3, pipeline 15, tensor 7")

    def test_the_page_marks_the_choice_of_a_search(self):
        _, page = self.page("--nodes=4", "--search")
        titles = [title.text for title in page.iter("title")]
        tables = [["".join(cell.itertext()) for cell in row] for row in page.iter("tr")]
        first = next(row for i, row in enumerate(tables) if tables[i - 1][0].startswith("data x pipeline"))
        data, pipeline, tensor = first[0].split(" x ")
        self.assertTrue(titles[-1].startswith(f"{data} data x {pipeline} pipeline x {tensor} tensor"), titles[-1])
        self.assertEqual(titles[-1], next(title for title in titles if " data x " in title))

    def test_a_search_tries_only_batches_that_divide(self):
        """40 microbatches do not divide by 16 replicas: what it writes is a config that runs."""
        config = self.write_config("divides.ini", CONFIG.replace("global = 64\nmicro = 1", "global = 480  # a comment\nmicro = 12"))
        finished = self.alone("plan", config, "--machine=h100", "--nodes=2", "--search", "--write=chosen.ini",
                              expect=DONE)
        # What it writes is the file that it read but for the settings that it names.
        named = finished.text.splitlines()[-1]
        changes = dict(change.split(" = ") for change in named[named.index(" with ") + 6:].split(", "))
        self.assertIn("parallel.data", changes)
        chosen = pathlib.Path(self.directory, "chosen.ini").read_text()
        self.assertEqual(config_of(chosen), {**config_of(config.read_text()), **changes})
        self.assertIn("# a comment", chosen)
        again = self.alone("plan", "chosen.ini", "--machine=h100", "--nodes=2", expect=DONE)
        self.assertIn(re.search(r"^step: .*$", finished.text, re.MULTILINE)[0], again.text)

    def test_the_shipped_gpt_fits_eight_to_64_gpus(self):
        for nodes in (1, 2, 4, 8):
            text = self.alone("plan", JOBS / "gpt2-124m.ini", "--machine=h100", f"--nodes={nodes}", expect=DONE).text
            ranks = self.alone("plan", JOBS / "gpt2-124m.ini", "--machine=h100", f"--ranks={8 * nodes}", expect=DONE).text
            self.assertEqual(ranks, text)
            self.assertIn(f"it fits h100 as {8 * nodes} data x 1 pipeline x 1 tensor on {nodes} node", text)

    def test_an_unknown_length_is_said_and_kept(self):
        config = self.write_config("epochs.ini", CONFIG.replace("steps = 1000", "epochs = 3"))
        finished = self.alone("plan", config, "--machine=h100", "--nodes=1", "--search", "--write=epochs-chosen.ini",
                              "--train.recompute=full", expect=DONE)
        self.assertIn("end of training: not known", finished.text)
        self.assertRegex(pathlib.Path(self.directory, "epochs-chosen.ini").read_text(), r"(?m)^epochs = 3 *$")

    def test_a_checkpoint_counts_where_the_run_would_continue_it(self):
        """Runs have directories by the names of their configs; a plan names the checkpoint that fixes its virtual grid."""
        self.import_classes("points", (8,), 4, train=48, test=16)
        text = harness.config_text(["dense 8 relu", "dense 4"], data="points", batch={"global": 24},
                                   numerics={"lanes": 3}, train={"steps": 2})
        self.write_config("own.ini", text)
        self.alone("train", "own.ini", expect=DONE)
        self.assertIn("\ndir = runs/own  # derived\n", (self.directory / "runs/own/config.ini").read_text())
        open_text = text.replace("lanes = 3", "lanes = 0")
        (self.directory / "open").mkdir()
        self.write_config("open/own.ini", open_text)
        self.write_config("other.ini", open_text)
        checkpoint = harness.checkpoints(self.directory / "runs/own")[-1].relative_to(self.directory)
        narrow = "--model.layer=dense 4"
        for config, settings, said in [("open/own.ini", [], f"{checkpoint} fixes 3 lanes x 1 shard in microbatches of 8"),
                                       ("other.ini", [], ""),
                                       ("other.ini", ["--run.dir=runs/own", narrow], "warning: .* of another model: "),
                                       ("own.ini", ["--batch.global=12"], "warning: .* another run: there batch.global is 24"),
                                       ("own.ini", ["--data.train=absent.h5"], f"{checkpoint} fixes 3 lanes x")]:
            for command in (["plan", config, "--machine=h100"], ["job", config, "--time=60"]):
                if command[0] == "plan" and "--data.train=absent.h5" in settings:
                    continue  # a plan needs the data
                with self.subTest(command=command, settings=settings):
                    planned = self.alone(*command, *settings, expect=DONE)
                    self.assertRegex(planned.text, said or "1")
                    self.assertEqual(bool(said), str(checkpoint) in planned.text)
                    self.assertEqual(" of a new run" in planned.text, bool(said))
        refused = self.alone("train", "open/own.ini", "--run.resume=auto", narrow)
        self.assert_refused(refused, harness.CHECKPOINT, "of another model", "another run.dir")
        hashed = self.write_config("a#b.ini", text)
        self.assert_refused(self.alone("train", hashed), USAGE, 'run.dir = "runs/a#b" has a \'#\'')

    def test_a_launch_finds_its_grid(self):
        """On a machine whose ranks exchange slowly, stages win over replicas; the losses are those of the grid."""
        self.import_classes("classes", (64,), 4, train=64, test=16)
        self.write_config("slow.ini", SLOW_LINKS)
        config = self.write_config("mlp.ini", harness.config_text(
            ["dense 512 relu", "dense 512 relu", "dense 4"], batch={"global": 64, "micro": 1},
            numerics={"lanes": 2, "shards": 1}, train={"steps": 3}))
        searched = self.launch(2, "train", config, "--run.dir=searched", "--run.machine=slow.ini", "--parallel.data=0",
                               "--parallel.pipeline=0", "--parallel.tensor=1", expect=DONE)
        self.assertIn("grid: 1 data x 2 pipeline x 1 tensor", searched.text)
        self.train(config, (1, 2), "given")
        losses = [[step["loss"] for step in self.records(run, "train")] for run in ("searched", "given")]
        self.assertEqual(*losses)
        refused = self.launch(2, "train", config, "--run.dir=gpus", "--run.machine=h100", "--run.device=cpu",
                              "--parallel.pipeline=0")
        self.assert_refused(refused, USAGE, "h100 computes on cuda", "run.machine")

    def test_a_run_is_compared_with_its_forecast(self):
        """Once, and only where a step takes twice as long."""
        self.import_classes("compared", (64,), 4, train=64, test=16)
        config = self.write_config("compared.ini", harness.config_text(
            ["dense 512 relu", "dense 4"], data="compared", batch={"global": 64}, train={"steps": 60, "log_every": 10}))
        for name, factor, slow in [("quick", 1e3, True), ("sluggish", 1e-3, False)]:
            self.write_config(f"{name}.ini", re.sub(
                r"(?m)^(\w+_(?:tflops|gbs)) = ([\d.]+)",
                lambda match: f"{match[1]} = {factor * float(match[2])}", SLOW_LINKS))
            # Sleeps take most of a step, whatever else the machine does.
            with harness.rig(TIMES="4:2:2"):
                finished = self.alone("train", config, f"--run.dir=by-{name}", f"--run.machine={name}.ini", expect=DONE)
            self.assertIn("forecast for ", finished.text)
            self.assertEqual(finished.text.count("warning: a step takes "), int(slow), finished.text)
            if slow:
                self.assertRegex(finished.text, "a step takes .* s, the forecast for .* is .* s: other takes .* s instead of .* s; ")

    def test_wrong_use_is_refused(self):
        for options, words in [([], "needs a machine"), (["--machine=h1000"], "no machine of that name"),
                               (["--machine=h100", "--nodes=3"], "needs 512"),
                               (["--machine=h100", "--nodes=64", "--ranks-per-node=16"], "from 1 to 8"),
                               (["--machine=h100", "--nodes=64", "--write=x.ini"], "--search"),
                               (["--machine=h100", "--nodes=64", "--cores=2"], "--calibrate"),
                               (["--machine=h100", "--nodes=64", "--hostfile=x"], "--calibrate"),
                               (["--machine=h100", "--nodes=64", "--ranks=2"], "give one"),
                               (["--machine=h100", "--run.device=cpu"], "computes on GPUs"),
                               (["--machine=h100", "--nodes=1", "--search", "--model.width=16384",
                                 "--model.blocks=96"], "fits the memory")]:
            with self.subTest(options=options):
                self.assert_refused(self.alone("plan", self.config, *options), USAGE, words)

    def test_wrong_figures_are_refused(self):
        for option in ["--failures=-1", "--restart=often", "--kwh-price=nan", "--node-hour-price=inf"]:
            with self.subTest(option=option):
                finished = self.alone("plan", self.config, "--machine=h100", "--nodes=64", option)
                self.assert_refused(finished, USAGE, option[2:option.index("=")])


if __name__ == "__main__":
    harness.main()
