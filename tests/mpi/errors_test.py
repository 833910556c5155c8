"""Wrong input: each with its exit code and exactly one report, in the user's words."""

import os
import pty
import re
import shutil
import subprocess

import h5py
import numpy as np

import harness
from harness import CHECKPOINT, DATA, DONE, PEER, USAGE

NETWORK = harness.config_text(
    ["dense 16 relu", "dropout 0.1", "dense 4"], batch={"global": 16}, numerics={"lanes": 2},
    optimizer={"kind": "adam"}, train={"steps": 6, "evaluate_every": 2}, checkpoint={"every": 2})


def flip_byte(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


class Errors(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.test = cls()
        cls.set_up_classes(NETWORK, (10,), 4, train=80, test=20)
        cls.runs = 0

    def fresh_run(self):
        type(self).runs += 1
        return f"run-{self.runs}"

    def refused(self, code, *words, settings=(), ranks=1, config=None, run=None):
        """Trains and expects a refusal."""
        arguments = ["train", config or self.config, f"--run.dir={run or self.fresh_run()}",
                     *settings]
        finished = self.alone(*arguments) if ranks == 1 else self.launch(ranks, *arguments)
        with self.subTest(settings=settings, ranks=ranks):
            self.assert_refused(finished, code, *words)

    def copy_of(self, name):
        """A copy of a data set or run, to damage."""
        copy = f"{name}-copy-{self.fresh_run()}"
        shutil.copytree(self.directory / name, self.directory / copy)
        return copy


class Settings(Errors):
    def test_refusals_are_one_report(self):
        """Of the reader of configs and of the plan; unit.app.Refusals has all of them."""
        self.refused(USAGE, "command line", '"batch.golbal"', 'nearest is "batch.global"',
                     settings=["--batch.golbal=3"], ranks=2)
        self.refused(USAGE, "the job has 2 ranks", "1 data x 3 pipeline x 1 tensor needs 3",
                     "launch 3 ranks", ranks=2, settings=["--parallel.pipeline=3"])
        self.refused(USAGE, '"batch.global=3" is not understood', "--section.key=value",
                     settings=["batch.global=3"])
        self.refused(USAGE, "data.train is empty", "strata data import", settings=["--data.train="])

    def test_ranks_with_other_options(self):
        for command, option in (("train", "--dry-run"), ("evaluate", "--classes"), ("evaluate", "--checkpoint=best")):
            rank = [harness.STRATA, command, self.config, f"--run.dir={self.fresh_run()}"]
            self.assert_refused(self.start_each(rank, [*rank, option]).wait(60), USAGE, "do not hold the same options: rank 1")

    def planned(self, *settings, config=None):
        finished = self.alone("train", config or self.config, *settings, "--dry-run", expect=DONE)
        return finished.text

    def test_the_command_line_wins(self):
        self.assertIn("batch: 12 samples", self.planned("--batch.global=8", "--batch.global=12"))
        self.assertIn("10 steps = 2.00 epochs", self.planned("--train.epochs=2"))
        epochs = self.write_config("epochs.ini", NETWORK.replace("steps = 6", "epochs = 3"))
        self.assertIn("15 steps = 3.00 epochs", self.planned(config=epochs))
        self.assertIn("4 steps = 0.80 epochs", self.planned("--train.steps=4", config=epochs))

    def test_every_command_has_help(self):
        pages = self.alone("help", "man", expect=DONE).text.split()
        commands = [page.removeprefix("strata-").replace("-", " ") for page in pages if page != "strata"]
        self.assertGreaterEqual(len(commands), 25)
        for command in commands:
            helped = self.alone(*command.split(), "--help", expect=DONE)
            self.assertTrue(helped.text.startswith(f"strata {command} "), helped.text)
            self.assertEqual(helped.text, self.alone("help", *command.split()).text)
        for command, others in (("data", 1), ("checkpoint", 3), ("schedule", 4), ("timeline", 2)):
            self.assertEqual(self.alone(command, "--help").text.count(f"\nstrata {command} "), others)
        usage = self.alone("--help").text
        for command in commands:
            self.assertIn(f"  strata {command} ", usage)
        common = self.alone("train", "--help", expect=DONE).text.splitlines()
        self.assertLessEqual(len(common), 45)
        self.assertLessEqual(max(map(len, common)), 80)
        settings = self.alone("train", "--help=all", expect=DONE).text
        for key in ("model.layer", "data.train", "batch.global", "run.dir", "train.steps"):
            self.assertEqual(sum(line.startswith(f"  {key} ") for line in common), 1)
            self.assertEqual(settings.count(f"\n  {key} "), 1)
        reference = self.alone("help", "reference").text
        self.assertEqual(len(re.findall(r"^\| `", reference, re.MULTILINE)),
                         len(re.findall(r"^  [a-z]+\.[a-z0-9_]+ ", settings, re.MULTILINE)))

    def test_no_gpu(self):
        for ranks in (1, 2):
            self.refused(PEER, "run.device is cuda", "set run.device to cpu",
                         settings=["--run.device=cuda"], ranks=ranks, run="no-gpu")
        self.assertFalse((self.directory / "no-gpu").exists())

    def test_test_data_can_be_switched_off(self):
        run = self.fresh_run()
        self.train(self.config, (1, 1), run, "--data.test=")
        self.assertEqual([row for row in harness.metrics(self.directory / run)
                          if ("kind", "evaluate") in row], [])

    def test_files_that_are_not_there(self):
        self.refused(USAGE, "missing.ini does not exist", config="missing.ini", ranks=4)
        self.refused(USAGE, "classes is a directory, a regular file was expected",
                     config="classes")
        self.refused(DATA, "missing/train.h5 does not exist",
                     settings=["--data.train=missing/train.h5"], ranks=2)
        self.assert_refused(self.alone("train"), USAGE, "needs a config file")
        self.assert_refused(self.alone("trian", "x"), USAGE, 'nearest is "train"')
        self.assert_refused(self.alone("data import"), USAGE, 'there is no command "data import"')
        for words in (["help", "trian"], ["trian", "--help"]):
            self.assert_refused(self.alone(*words), USAGE, 'there is no command "trian"; the nearest is "train"')
        self.assert_refused(self.alone("help", "--foo"), USAGE, "no option --foo; strata help takes none")
        (self.directory / "a-file").write_text("")
        self.refused(USAGE, "cannot make the directory a-file", "another run.dir", run="a-file",
                     ranks=2)

    def test_schedules(self):
        (self.directory / "bad.csv").write_text("0F0,0B0\n1F0,1X0\n")
        self.assert_refused(self.alone("schedule", "check", "bad.csv"), USAGE, 'bad.csv:2: cell 2 is "1X0"')
        self.alone("schedule", "convert", "zb-v", "--output=v.csv", "--messages=on", expect=DONE)
        done = self.alone("schedule", "check", "v.csv")
        self.assertEqual((done.code, done.text), (DONE, "v.csv: sound; 4 ranks, 8 microbatches, 2 chunks a rank; "
                                                          "at most 8 activations of a chunk on a rank\n"))
        made = self.alone("schedule", "make", "--memory=8", "--chunks=1", "--forward=1,1,1,2", "--output=made.csv",
                          expect=DONE)
        simulated = self.alone("schedule", "simulate", "made.csv", "--forward=1,1,1,2")
        step = made.text.splitlines()[1]
        self.assertTrue(step.startswith("step "), made.text)
        self.assertEqual(simulated.text.splitlines()[1], step)

    def test_a_schedule_file(self):
        # 2 stages and 2 microbatches.
        settings = ["--parallel.pipeline=2", "--batch.global=16", "--batch.micro=8", "--numerics.lanes=1"]
        self.refused(USAGE, "nowhere.csv does not exist", ranks=2,
                     settings=[*settings, "--parallel.schedule=file:nowhere.csv"])
        (self.directory / "good.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n")
        self.assertIn("schedule: file:good.csv, 2 stages, bubble",
                      self.planned(*settings, "--parallel.schedule=file:good.csv"))

    def test_evaluation_on_any_ranks(self):
        run = self.fresh_run()
        self.train(self.config, (2, 1), run, "--numerics.lanes=2")
        evaluated = self.alone("evaluate", run, "--classes", expect=DONE)
        for ranks in (2, 3, 4, 5, 6):
            self.assertEqual(self.launch(ranks, "evaluate", f"{run}/config.ini", "--classes").text, evaluated.text)
        self.assert_refused(self.launch(5, "evaluate", run, "--train.evaluate_batches=1"), USAGE, "no grid of 5 ranks fits", "data must divide 2 lanes",
                            "pipeline is at most 3 layers", "launch 1 or 2 or 3 or 4 or 6")
        self.assert_refused(self.alone("evaluate", run, "--data.test=", "--data.train="), USAGE,
                            "data.test and data.train are empty")

    def test_a_checkpoint_names_its_classes(self):
        rows = [f"{i % 7},{i % 3},{('ash', 'birch', 'cedar')[i % 3]}" for i in range(60)]
        (self.directory / "trees.csv").write_text("\n".join(["a,b,tree", *rows]))
        self.import_data("--format=csv", "--files=trees.csv", "--label=tree", "--split=40,20", "--output=trees")
        run = self.fresh_run()
        self.train(self.config, (1, 1), run, "--data.train=trees/train.h5", "--data.test=trees/test.h5",
                   "--model.layer=dense 3", "--data.normalise=standard", "--batch.global=4", "--batch.micro=2")
        evaluated = self.alone("evaluate", run, "--classes")
        self.assertIn("\nbirch ", evaluated.text)
        (self.directory / "trees/train.h5").unlink()
        self.assertEqual(self.alone("evaluate", run, "--classes").text, evaluated.text)

    def test_names_are_matched(self):
        """Classes and columns of data that are imported apart, as test data, for checkpoint.init and to continue."""
        def import_table(name, columns, rows, split="1.0"):
            (self.directory / f"{name}.csv").write_text("\n".join([columns, *rows]) + "\n")
            self.import_data("--format=csv", f"--files={name}.csv", "--label=tree", f"--split={split}",
                             "--order=file", f"--output={name}")

        learned = [(i % 7, i % 3, ("ash", "birch", "cedar")[i % 3]) for i in range(60)]
        tested = [(i % 5, 1 + i % 2, ("birch", "cedar")[i % 2]) for i in range(21)]
        import_table("both", "a,b,tree", [f"{a},{b},{tree}" for a, b, tree in learned + tested], "60,21")
        import_table("apart", "tree,b,a", [f"{tree},{b},{a}" for a, b, tree in tested])
        import_table("mirrored", "b,a,tree", [f"{b},{a},{tree}" for a, b, tree in learned])
        import_table("oaks", "a,b,tree", [f"{a},{b},{tree.replace('cedar', 'oak')}" for a, b, tree in learned])
        runs = [self.fresh_run() for _ in range(3)]
        settings = ["--model.layer=dense 8 relu", "--model.layer=dense 3", "--batch.global=4", "--batch.micro=2",
                    "--data.train=both/train.h5"]
        texts = [self.train(self.config, grid, run, *settings, f"--data.test={data}").text for grid, run, data in
                 [((1, 1), runs[0], "both/test.h5"), ((1, 2), runs[1], "apart/train.h5")]]
        self.assertNotIn("matched by name", texts[0])
        self.assertIn("apart/train.h5 has its columns in another order than both/train.h5: matched by name; "
                      "apart/train.h5 numbers its classes otherwise than both/train.h5: matched by name", texts[1])
        self.assert_same_run(*runs[:2])

        def evaluated(run, data, ranks=1):
            said = self.launch(ranks, "evaluate", run, f"--data.test={data}", "--classes",
                               "--confusion=confusion.csv", expect=DONE).text
            lines = said[said.index("loss "):].replace(data, "").splitlines()
            return ([line for line in lines if "matched by name" not in line],
                    (self.directory / "confusion.csv").read_text())
        expected = evaluated(runs[0], "both/test.h5")
        self.assertEqual(evaluated(runs[1], "apart/train.h5", 2), expected)
        # The new run reads its columns in the order of the old one.
        tune = ["train", self.config, *settings[:4], "--data.test=", f"--checkpoint.init={runs[0]}",
                f"--run.dir={runs[2]}", "--optimizer.learning_rate=0"]
        self.alone(*tune, "--data.train=mirrored/train.h5", "--train.steps=1", expect=DONE)
        self.alone(*tune, "--data.train=mirrored/train.h5", "--train.steps=2", "--run.resume=must", expect=DONE)
        self.assertEqual(evaluated(runs[2], "apart/train.h5"), expected)
        oaks = ["--data.train=oaks/train.h5", "--dry-run"]
        unknown = "oaks/train.h5 has samples of the class 'oak', which"
        for arguments, word in [(["evaluate", runs[0], "--data.test=oaks/train.h5"], "master.h5 lacks"),
                                (["train", self.config, *settings, "--data.test=oaks/train.h5", "--dry-run"],
                                 "both/train.h5 lacks"),
                                ([*tune, *oaks], "checkpoint.init_except: dense1.* for columns, dense2.* for classes"),
                                ([*tune, *oaks, "--run.resume=must"], "go on with the data set of the run")]:
            self.assert_refused(self.alone(*arguments), DATA, unknown, word)
        self.alone(*tune, *oaks, "--checkpoint.init_except=dense2.*", expect=DONE)

    def test_a_confusion_matrix_that_cannot_be_written(self):
        # Before the checkpoint is looked for: there is none.
        evaluate = ["evaluate", self.config, "--run.dir=nothing"]
        for ranks in (1, 2):
            finished = self.launch(ranks, *evaluate, "--confusion=absent/matrix.csv")
            self.assert_refused(finished, USAGE, "cannot write", "absent/matrix.csv: No such file", "another file")
        kept = self.directory / "kept.csv"
        kept.write_text("of yesterday")
        for file in ("kept.csv", "new.csv"):
            self.assert_refused(self.alone(*evaluate, f"--confusion={file}"), CHECKPOINT,
                                "there is no checkpoint")
        self.assertEqual(kept.read_text(), "of yesterday")
        self.assertFalse((self.directory / "new.csv").exists())


class Terminals(Errors):
    """What a run prints, and to whom."""

    def test_a_terminal_shows_one_progress_line(self):
        run = self.fresh_run()
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [harness.STRATA, "train", str(self.config), f"--run.dir={run}", "--train.log_every=1"],
            cwd=self.directory, stdin=subprocess.DEVNULL, stderr=theirs, close_fds=True,
            env={**os.environ, **harness.LAUNCH_ENVIRONMENT})
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the terminal's other end is closed
                break
            if not piece:
                break
            shown += piece
        os.close(ours)
        self.assertEqual(process.wait(60), DONE, shown)
        # What stays of a line is what was printed after the last return to its begin.
        lines = [line.split("\r\x1b[K")[-1] for line in shown.decode().replace("\r\n", "\n").split("\n")]
        self.assertEqual([line for line in lines if re.match(r"step \d/6 ", line)], lines[-2:-1])
        self.assertTrue(lines[-2].startswith("step 6/6 "), lines)
        self.assertEqual([line[:17] for line in lines if "test" in line],
                         [f"step {step}: test loss" for step in (2, 4, 6)])
        log = (self.directory / run / "log.txt").read_text()
        self.assertEqual(re.findall(r"step (\d)/6 ", log), list("123456"))
        self.assertNotIn("\x1b", log)
        self.assertNotIn("\r", self.alone("train", self.config, f"--run.dir={self.fresh_run()}").text)

    def with_a_closed_pipe(self, *arguments, errors):
        """Runs the executable, and reads one line of what it prints."""
        process = subprocess.Popen([harness.STRATA, *map(str, arguments)], cwd=self.directory,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                                   env={**os.environ, **harness.LAUNCH_ENVIRONMENT})
        process.stdout.readline()
        process.stdout.close()
        said = b""
        if process.stderr:
            with process.stderr as stream:
                said = stream.read()
        return process.wait(60), said.decode()

    def test_a_run_continues_when_its_output_is_closed(self):
        run = self.fresh_run()
        code, _ = self.with_a_closed_pipe("train", self.config, f"--run.dir={run}", "--train.log_every=1",
                                          errors=subprocess.STDOUT)
        self.assertEqual(code, DONE)
        log = (self.directory / run / "log.txt").read_text()
        self.assertEqual(re.findall(r"step (\d)/6 ", log), list("123456"))
        self.assertIn("peak memory", log.splitlines()[-1])
        self.assertEqual(harness.checkpoints(self.directory / run)[-1].name, "step-00000006")

    def test_other_commands_end_when_their_output_is_closed(self):
        code, said = self.with_a_closed_pipe("data", "inspect", *["classes/train.h5"] * 2000,
                                             errors=subprocess.PIPE)
        self.assertNotEqual(code, DONE)
        self.assertEqual(said, "")


class Data(Errors):
    def test_imports(self):
        """One of each kind; unit.io and unit.app.Refusals have all of them."""
        (self.directory / "ragged.csv").write_text("a,b,label\n1,2,x\n3,4\n")
        (self.directory / "there").mkdir()
        npy = ["--format=npy", "--inputs=classes-inputs.npy", "--targets=classes-targets.npy"]
        for code, words, arguments, output in [
                (DATA, ["absent does not exist"], ["--format=idx", "--images=absent", "--labels=absent", "--split=1,1"], "no"),
                (DATA, ["ragged.csv:3", "2 fields"], ["--format=csv", "--files=ragged.csv", "--label=label"], "no"),
                (DATA, ["1,000"], [*npy, "--split=1000,1"], "there"),
                (USAGE, ["--split=ten", "8000,2000"], [*npy, "--split=ten"], "no"),
                (USAGE, ["classes/train.h5 already exists", "--overwrite"], npy, "classes")]:
            with self.subTest(arguments=arguments):
                self.assert_refused(self.alone("data", "import", *arguments, f"--output={output}"), code, *words)
        self.assertFalse((self.directory / "no").exists())
        self.assertEqual(list((self.directory / "there").iterdir()), [])

    def test_flipped_bit(self):
        copy = self.copy_of("classes")
        shard = self.directory / copy / "train-00000.h5"
        with h5py.File(shard) as file:
            offset = file["inputs"].id.get_offset() + 33 * 10 * 4 + 5
        flip_byte(shard, offset)
        for ranks, pipeline in [(1, 1), (2, 1), (4, 2)]:
            self.refused(DATA, "train-00000.h5", "sample 33", ranks=ranks,
                         settings=[f"--data.train={copy}/train.h5",
                                   f"--parallel.pipeline={pipeline}"])
        verified = self.alone("data", "inspect", f"{copy}/train.h5", "--verify")
        self.assert_refused(verified, DATA, "1 shard is bad")
        self.assertIn("train-00000.h5", verified.text)
        self.assertEqual(self.alone("data", "inspect", "classes/train.h5", "--verify").code, DONE)

    def test_damaged_master(self):
        copy = self.copy_of("classes")
        with h5py.File(self.directory / copy / "train.h5", "r+") as file:
            file["mean"][0] += 1.0
        self.refused(DATA, "train.h5 is damaged", "import it anew", ranks=2,
                     settings=[f"--data.train={copy}/train.h5"])
        self.assert_refused(self.alone("data", "inspect", f"{copy}/train.h5"), DATA, "is damaged")

    def test_splits_that_differ(self):
        self.import_arrays("bytes", np.ones((20, 10), dtype=np.uint8), np.arange(20) % 4, "10,10")
        self.import_classes("wide", (12,), 4, train=40, test=20)
        self.import_classes("more", (10,), 6, train=40, test=20)
        self.import_arrays("values", np.ones((20, 10)), np.linspace(0, 1, 20), "10,10")
        for test, words in [("bytes", ["bytes/test.h5 are uint8", "normalised differently"]),
                            ("wide", ["inputs of 12", "inputs of 10", "import both"]),
                            ("more", ["6 classes", "4 classes"]),
                            ("values", ["values/test.h5", "values of 1", "4 classes"])]:
            self.refused(DATA, *words, settings=[f"--data.test={test}/test.h5"], ranks=2)



if __name__ == "__main__":
    harness.main()
