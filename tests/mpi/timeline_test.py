"""run.timeline: a trace that chrome://tracing and Perfetto accept."""

import copy
import json
import pathlib
import re
import shutil

import harness

# The parts of the account in the order of the report: the key in metrics.jsonl and the column's title.
PARTS = (("compute", "compute"), ("data_group", "data group"), ("pipeline_group", "pipeline group"),
         ("tensor_group", "tensor group"), ("islands_group", "islands group"), ("bubble", "bubble"),
         ("data", "data wait"), ("other", "other"))

NETWORK = harness.config_text(["dense 32 relu", "dense 32 relu", "dense 32 relu", "dense 4"],
                              batch={"global": 32, "micro": 4}, numerics={"lanes": 2}, train={"steps": 6})


class Timeline(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=400, test=30)

    def trace(self, run):
        return json.loads(pathlib.Path(self.directory, run, "timeline.json").read_text())["traceEvents"]

    def test_slices_nest_and_flows_resolve(self):
        for run, grid, settings in (("1f1b", (2, 2), []), ("zb", (1, 3), ["--parallel.schedule=zb-h2"]),
                                    ("v", (2, 2), ["--parallel.schedule=zb-v"]),
                                    ("repeated", (2, 2), ["--train.repeat_every=3"]),
                                    ("8 ranks", (2, 2, 2), ["--parallel.schedule=zb-h1"]),
                                    ("islands", (2, 2), ["--parallel.sync=local", "--parallel.islands=2", "--local.steps=2"])):
            with self.subTest(run=run):
                self.slices_nest_and_flows_resolve(run, grid, settings)
        self.alone("timeline", "draw", "islands", "--output=islands.svg", expect=harness.DONE)
        self.assertEqual(re.findall(r">(replica \d|rank \d)</text>", (self.directory / "islands.svg").read_text())[:6],
                         ["rank 0", "rank 2", "rank 1", "rank 3", "replica 0", "replica 1"])

    @harness.on_a_running_machine
    def slices_nest_and_flows_resolve(self, run, grid, settings, attempt):
        shutil.rmtree(self.directory / run, ignore_errors=True)
        self.train(self.config, grid, run, "--run.timeline=3-4", *settings)
        events = self.trace(run)
        ranks = harness.ranks_of(grid)
        names = {event["args"]["name"].split(":")[0] for event in events if event["name"] == "process_name"}
        self.assertEqual(names, {f"rank {rank}" for rank in range(ranks)})
        slices = [event for event in events if event["ph"] == "X"]
        for rank in range(ranks):
            for track in (0, 1):
                self.check_track([event for event in slices if (event["pid"], event["tid"]) == (rank, track)])
            self.assertEqual({event["name"] for event in slices if event["pid"] == rank and event["name"].startswith("step ")},
                             {"step 3", "step 4"})
        # Clocks of ranks are as near as ranks leave a barrier together.
        self.check_flows(events, slices, 20000 * harness.patience(attempt))

    def check_track(self, slices):
        """Begins ascend, and slices nest. Times are written to 0.001 microseconds."""
        open_ends = []
        last = float("-inf")
        self.assertTrue(slices)
        for event in slices:
            begin, end = event["ts"], event["ts"] + event["dur"]
            self.assertGreaterEqual(begin, last)
            last = begin
            while open_ends and open_ends[-1] <= begin + 0.002:
                open_ends.pop()
            if open_ends:
                self.assertLessEqual(end, open_ends[-1] + 0.002)
            open_ends.append(end)

    def check_flows(self, events, slices, apart):
        begins, ends = ({event["id"]: event for event in events if event["ph"] == phase} for phase in "sf")
        self.assertEqual(len(begins), len([event for event in events if event["ph"] == "s"]))
        self.assertEqual(begins.keys(), ends.keys())
        self.assertTrue(begins)
        for name, begin in begins.items():
            end = ends[name]
            self.assertGreater(end["ts"], begin["ts"] - apart)
            for event, word in ((begin, "send-"), (end, "receive-")):
                around = [one for one in slices if (one["pid"], one["tid"]) == (event["pid"], event["tid"]) and
                          one["ts"] - 0.002 <= event["ts"] <= one["ts"] + one["dur"] + 0.002 and
                          one["name"].startswith(word)]
                self.assertTrue(around, event)

    def test_report_and_picture(self):
        self.train(self.config, (2, 2), "drawn", "--run.timeline=2-3")
        path = "drawn/timeline.json"
        finished = self.alone("timeline", "report", path, expect=harness.DONE)
        self.assertEqual(self.alone("timeline", "report", "drawn").text, finished.text)
        lines = finished.text.splitlines()
        self.assertEqual(re.split("  +", lines[1].strip()), ["rank", "step", *(title for _, title in PARTS)])
        self.assertRegex(lines[-1], r"^[a-z ]+ takes \d+ % of a step; ")
        rows = [line.split() for line in lines[2:-1]]
        self.assertEqual([row[0] for row in rows], ["0", "1", "2", "3", "all"])
        for row in rows:
            step, parts = float(row[1]), [float(word) for word in row[2::3]]
            self.assertAlmostEqual(sum(parts), step, delta=0.01 * step)
        # Rank 0's row has the means of its metrics. Of the groups only data and pipeline have two ranks.
        metrics = pathlib.Path(self.directory, "drawn", "metrics.jsonl").read_text().splitlines()
        steps = [line for line in map(json.loads, metrics) if line["kind"] == "train" and line["step"] in (2, 3)]
        for column, (key, _) in enumerate(PARTS):
            mean = sum(1e3 * line[f"{key}_seconds"] for line in steps) / len(steps)
            self.assertAlmostEqual(float(rows[0][2 + 3 * column]), mean, delta=0.001)
        seconds = {key: sum(line[f"{key}_group_seconds"] for line in steps) for key in ("data", "pipeline", "tensor")}
        self.assertEqual(seconds["tensor"], 0)
        self.assertGreater(min(seconds["data"], seconds["pipeline"]), 0)
        self.alone("timeline", "draw", path, "--step=3", "--data=1", "--output=step.svg", expect=harness.DONE)
        picture = pathlib.Path(self.directory, "step.svg").read_text()
        # 2 stages x 4 microbatches x forward, input gradient, weight gradient, and the legend's 3; the first stage's
        # input gradients are drawn too.
        self.assertGreaterEqual(picture.count("<rect"), 2 * 4 * 3)
        for rank, count in enumerate((0, 1, 0, 1)):  # of replica 1, stage by stage
            self.assertEqual(picture.count(f">rank {rank}</text>"), count)
        self.alone("timeline", "draw", path, "--output=all.svg", expect=harness.DONE)
        picture = pathlib.Path(self.directory, "all.svg").read_text()
        names = re.findall(r">(replica \d|rank \d)</text>", picture)
        self.assertEqual(sorted(names), ["rank 0", "rank 1", "rank 2", "rank 3", "replica 0", "replica 1"])
        self.assertEqual([name for name in names if "rank" in name], ["rank 0", "rank 2", "rank 1", "rank 3"])
        (self.directory / "unrecorded").mkdir()
        (self.directory / "unrecorded/config.ini").write_text("")
        for arguments, words in ((["draw", path], "needs --output"), (["draw", path, "--output=x.svg", "--step=5"],
                                 "has no action of step 5 on any replica"),
                                 (["draw", path, "--output=x.svg", "--data=2"], "on replica 2"),
                                 (["report", "drawn/config.ini"], "is not a timeline of strata"),
                                 (["report", "missing"], "missing does not exist; record steps of a run with run.timeline"),
                                 (["report", "drawn/checkpoints"], "checkpoints/timeline.json does not exist; record"),
                                 (["draw", "unrecorded", "--output=x.svg"],
                                  "as in strata train unrecorded/config.ini --run.dir=NEW --run.timeline=5-7"),
                                 ([], "has the commands report, draw and times"), (["times", "drawn/config.ini"], "is not a timeline of strata")):
            with self.subTest(arguments=arguments):
                self.assert_refused(self.alone("timeline", *arguments), harness.USAGE, words)
        # Damaged files are refused, and a report goes on without them.
        content = json.loads((self.directory / path).read_text())
        (self.directory / "damaged").mkdir()
        damaged = self.directory / "damaged/timeline.json"
        for where, key, value in (("places", "stage", -100000), ("places", "stage", 10**15), ("action", "action", 3),
                                  ("action", "chunk", 2**40), ("action", "microbatch", 2**63 - 1), ("event", "pid", 99),
                                  ("event", "dur", "long")):
            with self.subTest(key=key, value=value):
                bad = copy.deepcopy(content)
                event = next(event for event in bad["traceEvents"]
                             if (event["name"] == "process_name" if where == "places" else "action" in event.get("args", {})))
                (event if where == "event" else event["args"])[key] = value
                damaged.write_text(json.dumps(bad))
                self.assert_refused(self.alone("timeline", "draw", "damaged", "--output=x.svg"), harness.USAGE,
                                    "is not a timeline of strata")

    def test_the_report_ends_with_what_to_change(self):
        """Accounts of four ranks, two replicas of two stages, that are written here."""
        self.train(self.config, (2, 2), "concluded", "--run.timeline=2-2")
        path = self.directory / "concluded/timeline.json"
        content = json.loads(path.read_text())
        even = [1.0] * 4
        for compute, part, seconds, words in (
                ([1.4, 1.4, 0.1, 0.1], "bubble", 2.0, "bubble takes 73 % of a step; stage 0 has 14 times the work of stage 1: "
                                                      "parallel.split, or fewer stages"),
                ([1.0, 1.0, 2.5, 2.5], "pipeline_group", 2.0, "stage 1 has 2.5 times the work of stage 0: parallel.split"),
                (even, "bubble", 1.0, "4 microbatches are few for 2 stages: a smaller batch.micro, or fewer stages"),
                ([1.0, 3.0, 2.0, 2.0], "data_group", 2.0, "rank 1 computes 3.0 times as long as rank 0 of its stage"),
                (even, "data_group", 1.0, "data group takes 50 % of a step; a larger batch.global"),
                (even, "tensor_group", 1.0, "a smaller parallel.tensor"), (even, "islands_group", 1.0, "a larger local.steps"),
                (even, "data", 1.0, "data wait takes 50 % of a step; more data.reader_threads"),
                (even, "other", 1.0, "train.repeat_every"),
                (even, "bubble", 0.05, "computing takes 95 % of a step; of the rest, bubble takes most, 4.8 %")):
            with self.subTest(words=words):
                for event in content["traceEvents"]:
                    account = event.get("args", {})
                    if "step_seconds" in account:
                        account |= {key: 0.0 for key in account if key.endswith("_seconds")}
                        account |= {"compute_seconds": compute[event["pid"]], f"{part}_seconds": seconds,
                                    "step_seconds": compute[event["pid"]] + seconds}
                path.write_text(json.dumps(content))
                self.assertIn(words, self.alone("timeline", "report", path, expect=harness.DONE).text.splitlines()[-1])

    def test_measured_times_make_a_schedule(self):
        """The times of a timeline whose actions last as long as is known."""
        times = {"forward": "4,8", "backward-input": "6,12", "backward-weight": "10,20"}
        chunk_times = {key: ",".join(f"{float(one) / 2:g}/{one}" for one in value.split(",")) for key, value in times.items()}
        for run, schedule, given in (("flat", "1f1b", times), ("chunks", "zb-v", chunk_times)):
            with self.subTest(run=run):
                self.train(self.config, (1, 2), f"timed-{run}", "--run.timeline=2-5", f"--parallel.schedule={schedule}")
                path = self.directory / f"timed-{run}/timeline.json"
                content = json.loads(path.read_text())
                for event in content["traceEvents"]:
                    action = event.get("args", {}).get("action")
                    if action in given:
                        of_stage = given[action].split(",")[event["pid"]].split("/")
                        event["dur"] = 1e3 * float(of_stage[event["args"].get("chunk", 0)])
                path.write_text(json.dumps(content))
                finished = self.alone("timeline", "times", path, expect=harness.DONE)
                options = dict(word.removeprefix("--").split("=") for word in finished.text.split())
                self.assertEqual({key: options[key] for key in given}, given)
                self.assertEqual((options["stages"], options["microbatches"]), ("2", "8"))
                self.alone("schedule", "make", *finished.text.split(), f"--output={run}.csv", expect=harness.DONE)
                self.train(self.config, (1, 2), f"made-{run}", f"--parallel.schedule=file:{run}.csv")
                self.assert_same_run("made-flat", f"made-{run}")

    def test_the_bits_are_those_without_it(self):
        self.train(self.config, (1, 2), "without")
        self.train(self.config, (1, 2), "with", "--run.timeline=1-6")
        self.assert_same_run("without", "with")

    def test_bad_ranges(self):
        for value, words in (("5-7", "run.timeline = 5-7, but the run has 6 steps; give steps from 1 to 6"),
                             ("7", "run.timeline = \"7\" is not allowed"), ("3-2", "give off, or the first"),
                             ("0-2", "is not allowed"), ("on", "is not allowed")):
            with self.subTest(value=value):
                self.assert_refused(self.alone("train", self.config, "--run.dir=refused", f"--run.timeline={value}"),
                                    harness.USAGE, words)


if __name__ == "__main__":
    harness.main()
