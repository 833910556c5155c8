"""checkpoint.best and train.patience: the best checkpoint outlives the newest ones, an end without improvement comes at
the same step on every grid, and both survive kills and resumes on other grids. strata sweep runs many settings."""

import json
import shutil
import signal

import harness
from harness import CHECKPOINT, DONE, USAGE

# So few samples that the test loss rises again.
NETWORK = harness.config_text(
    ["dense 16 relu", "dense 4"], batch={"global": 8}, numerics={"lanes": 2},
    optimizer={"kind": "sgd", "learning_rate": 0.3},
    train={"steps": 60, "evaluate_every": 4}, checkpoint={"every": 6, "keep": 1}, run={"resume": "auto"})
BEST = {"loss": lambda record: -float(record["loss"]), "accuracy": lambda record: float(record["accuracy"])}


def expected_best(records, by):
    """The step of the best evaluation; of equal ones the first."""
    return int(max(records, key=BEST[by])["step"])


class Choose(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=24, test=60)

    def steps(self, run):
        return [int(path.name[5:]) for path in harness.checkpoints(self.directory / run)]

    def best_of(self, run, *command):
        """The step of the checkpoint that a command with --checkpoint=best uses."""
        finished = self.alone(*command, run, "--checkpoint=best", expect=DONE)
        return finished.text

    def test_the_best_checkpoint_is_kept(self):
        self.train(self.config, (1, 1), "plain")
        evaluated = {record["step"]: record["loss"] for record in self.records("plain", "evaluate")}
        for by in BEST:
            for grid in [(2, 1), (1, 2)]:
                run = f"best-{by}-{grid[0]}-{grid[1]}"
                with self.subTest(run=run):
                    self.train(self.config, grid, run, f"--checkpoint.best={by}")
                    self.assert_same_run("plain", run)
                    best = expected_best(self.records(run, "evaluate"), by)
                    self.assertLess(best, 60)  # or the test would show nothing
                    self.assertEqual(self.steps(run), [best, 60])
                    name = f"step-{best:08d}"
                    self.assertIn(f"{name}: loss {evaluated[str(best)]}", self.best_of(run, "evaluate"))
                    self.assertIn(name, self.best_of(run, "checkpoint", "verify"))
                    self.assertIn(name, self.best_of(run, "checkpoint", "inspect"))
                    newest = self.alone("evaluate", run)
                    self.assertIn("step-00000060", newest.text)
        self.assert_refused(self.alone("evaluate", "plain", "--checkpoint=best"), USAGE, "checkpoint.best is off")
        self.assert_refused(self.alone("evaluate", "plain", "--checkpoint=bets"), USAGE, "one of newest, best")

    def test_the_best_checkpoint_survives_kills_and_other_grids(self):
        by = ["--checkpoint.best=loss"]
        self.train(self.config, (1, 1), "whole", *by)
        best = expected_best(self.records("whole", "evaluate"), "loss")
        grids = [(2, 1), (1, 2), (1, 1), (2, 2)]
        for number, stop in enumerate([best, best + 1, best + 8]):
            run = f"killed-{number}"
            with self.subTest(stop=stop):
                job = self.start(2, "train", self.config, f"--run.dir={run}", "--parallel.data=2", *by)
                metrics = self.directory / run / "metrics.jsonl"
                job.wait_until(lambda: metrics.exists() and f'"step":{stop},' in metrics.read_text(), 60)
                job.signal_all(signal.SIGKILL)
                job.wait(60)
                for grid in grids[number:number + 2]:
                    self.train(self.config, grid, run, *by)
                self.assert_same_run("whole", run)
                self.assertEqual(self.steps(run), [best, 60])

    def test_a_lost_best_checkpoint_is_not_named(self):
        self.train(self.config, (1, 1), "lost", "--checkpoint.best=loss")
        best, _ = self.steps("lost")
        shutil.rmtree(self.directory / "lost/checkpoints" / f"step-{best:08d}")
        self.assertIn("step-00000060", self.best_of("lost", "evaluate"))
        (self.directory / "lost/metrics.jsonl").write_text("")
        self.assert_refused(self.alone("evaluate", "lost", "--checkpoint=best"), CHECKPOINT, "has an evaluation")

    def test_patience_ends_at_one_step_on_every_grid(self):
        self.train(self.config, (1, 1), "patient")
        for by in BEST:
            records = self.records("patient", "evaluate")
            patience = 2
            values = [BEST[by](record) for record in records]
            end = next(i for i in range(len(values)) if i - values.index(max(values[:i + 1])) >= patience)
            step = int(records[end]["step"])
            self.assertLess(step, 60)
            settings = [f"--train.patience={patience}", f"--checkpoint.best={by}"]
            for grid in [(1, 1), (2, 1), (1, 2)][:3 if by == "loss" else 1]:
                run = f"patience-{by}-{grid[0]}-{grid[1]}"
                with self.subTest(run=run):
                    finished = self.train(self.config, grid, run, *settings)
                    self.assertIn(f"finished after step {step} of 60: the test {by} did not improve in the last 2 "
                                  "evaluations", finished.text)
                    self.assertEqual(self.records(run, "evaluate"), records[:end + 1])
                    self.assertEqual(self.steps(run)[-1], step)
                    if grid == (1, 1):
                        continue
                    again = self.train(self.config, grid[::-1], run, *settings)
                    self.assertIn(f"finished after step {step} of 60", again.text)
                    self.assertEqual(self.records(run, "evaluate"), records[:end + 1])
            # The count begins again from the file: a run stopped between two evaluations of it goes on to the same step.
            run = f"patience-{by}-resumed"
            for last in (step - 5, step - 1):
                self.train(self.config, (1, 1), run, *settings, f"--train.steps={last}")
                # Without the evaluation at its end, which the whole run lacks.
                lines = (self.directory / run / "metrics.jsonl").read_text().splitlines(keepends=True)
                (self.directory / run / "metrics.jsonl").write_text("".join(
                    line for line in lines
                    if json.loads(line)["kind"] != "evaluate" or json.loads(line)["step"] % 4 == 0))
            self.train(self.config, (2, 1), run, *settings)
            self.assertEqual(self.records(run, "evaluate"), records[:end + 1])
            # More patience goes on.
            self.train(self.config, (1, 1), run, "--train.patience=100", f"--checkpoint.best={by}")
            self.assert_same_run("patient", run)


if __name__ == "__main__":
    harness.main()
