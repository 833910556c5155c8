"""Trains with the settings of every row of docs/strategies.md that names other systems' strategies."""

import pathlib
import re

import harness
import language

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "strategies.md"


def rows():
    """The rows with settings under the page's last heading: the system, the name, the ranks and the settings."""
    found = []
    system = ""
    for line in PAGE.read_text().split("## Names of other systems")[1].splitlines():
        if line.startswith("### "):
            system = line[4:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if system and line.startswith("|") and cells[2].isdigit():
            found.append((system, cells[0], int(cells[2]), cells[3].strip("`").split()))
    return found


class Strategies(language.LanguageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.config = cls().write_config("tiny.ini", harness.config_text(
            model={"preset": "gpt", "blocks": 2, "width": 16, "heads": 2, "context": 8}, data="text",
            batch={"global": 16, "micro": 2}, optimizer={"kind": "adamw", "learning_rate": 0.01},
            train={"steps": 3, "evaluate_batches": 1}))

    def test_each_row_trains(self):
        table = rows()
        self.assertEqual({system for system, *_ in table}, {"TensorFlow", "PyTorch", "Horovod"})
        self.assertGreater(len(table), 30)
        trained = {}
        for system, name, ranks, settings in table:
            with self.subTest(system=system, name=name):
                for setting in settings:
                    self.assertRegex(setting, r"^--[a-z]+\.[a-z_]+=")
                # Rows with the same settings are one run.
                key = (ranks, *settings)
                if key in trained:
                    continue
                run = trained[key] = f"run-{len(trained)}"
                finished = self.launch(ranks, "train", self.config, f"--run.dir={run}", *settings, expect=harness.DONE)
                losses = [float(record["loss"]) for record in self.records(run, "train")]
                self.assertIn(len(losses), (3, 6))
                # What the settings say is what ran.
                self.assertEqual(int(re.search(r"on (\d+) rank", finished.text)[1]), ranks)
                written = (self.directory / run / "config.ini").read_text()
                for setting in settings:
                    name, value = setting.split(".", 1)[1].split("=")
                    self.assertIn(f"\n{name} = {value}\n", written)

    def test_settings_of_the_page_exist(self):
        reference = self.alone("help", "reference").text
        keys = set()
        for part in re.split(r"^## \[", reference, flags=re.MULTILINE)[1:]:
            section = part.split("]")[0]
            keys |= {f"{section}.{key}" for key in re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)}
        named = set(re.findall(r"[`-]([a-z]+\.[a-z_]+)(?=`|=| =)", PAGE.read_text()))
        self.assertIn("local.outer_rate", named)
        self.assertEqual(named - keys, set())


if __name__ == "__main__":
    harness.main()
