"""strata plan: what the text and the page show of a run that never starts."""

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
PRICES = ["--failures=2", "--restart=600", "--kwh-price=0.25", "--node-hour-price=10"]


class Plan(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # A name that HTML must not take for markup.
        cls.config = cls().write_config("a <b>&'.ini", CONFIG)

    def plan(self, *options):
        finished = self.alone("plan", self.config, "--machine=h100", *options)
        self.assertEqual(finished.code, DONE, finished.text)
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
        self.assertEqual(len(items), 4 + text.count("\n", text.index("steps without a break")))
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

    def test_wrong_figures_are_refused(self):
        for option in ["--failures=-1", "--restart=often", "--kwh-price=nan", "--node-hour-price=inf"]:
            with self.subTest(option=option):
                finished = self.alone("plan", self.config, "--machine=h100", "--nodes=64", option)
                self.assert_refused(finished, USAGE, option[2:option.index("=")])


if __name__ == "__main__":
    harness.main()
