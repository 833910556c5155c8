"""What cmake --install writes: manual pages, completions, modulefiles, and libraries that a program is built from.

Usage: install_test.py BUILD_DIR SOURCE_DIR STRATA
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD, SOURCE, STRATA = sys.argv[1:4]
HERE = pathlib.Path(__file__).resolve().parent
PREFIX = "/opt/strata"

# A line, and all its candidates; or with ... at the end, some of them.
COMPLETED = [
    ("strata tr", ["train "]),
    ("strata --v", ["--version "]),
    ("strata ", ["train ", "data ", "doctor ", "..."]),
    ("strata data ", ["import ", "inspect "]),
    ("strata schedule c", ["check ", "convert "]),
    ("strata help comp", ["completion "]),
    ("strata train --parallel.t", ["--parallel.tensor="]),
    ("strata train net.ini --batch.global=8 --dr", ["--dry-run "]),
    ("strata train net.ini --run.device=c", ["cpu ", "cuda "]),
    ("strata train net.ini --data.train=f", []),
    ("strata train n", []),
    ("strata data import --fo", ["--format="]),
    ("strata data import --parallel.t", []),
    ("strata data inspect --v", ["--verify "]),
    ("strata report runs/a --co", []),
    ("strata sweep net.ini --ra", ["--random=", "--ranks=", "--ranks-per-node="]),
    ("strata job net.ini --parallel.t", ["--parallel.tensor="]),
    ("strata generate runs/a --tok", ["--tokens="]),
    ("strata evaluate runs/a --checkpoint=", ["newest ", "best "]),
    ("strata checkpoint export runs/a --format=h", ["huggingface "]),
]
MODULE = [f"prepend\tPATH\t{PREFIX}/bin", f"prepend\tCMAKE_PREFIX_PATH\t{PREFIX}", f"prepend\tMANPATH\t{PREFIX}/share/man",
          "append\tMANPATH\t"]


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.TemporaryDirectory()
        subprocess.run(["cmake", "--install", BUILD, "--prefix", PREFIX], check=True,
                       env={**os.environ, "DESTDIR": cls.root.name}, stdout=subprocess.DEVNULL)
        cls.share = pathlib.Path(cls.root.name + PREFIX, "share")

    @classmethod
    def tearDownClass(cls):
        cls.root.cleanup()

    def page(self, name):
        return (self.share / f"man/man1/{name}.1").read_text().replace("\\-", "-")

    def tool(self, *names):
        found = next(filter(None, map(shutil.which, names)), None)
        if found is None:
            self.skipTest(f"{names[0]} is not installed")
        return found

    def test_each_command_has_a_page(self):
        listed = set(re.findall(r"^\.BR (strata\S+)", self.page("strata"), re.MULTILINE))
        self.assertEqual(listed, {page.stem for page in self.share.glob("man/man1/*")} - {"strata"})
        for line in re.findall(r"^  strata ([a-z]+ ?[a-z]*)", output(STRATA, "help"), re.MULTILINE):
            page = "strata-" + line.strip().replace(" ", "-")
            self.assertTrue(page in listed or page.rsplit("-", 1)[0] in listed, page)

    def test_pages_name_each_option_of_help(self):
        for page in self.share.glob("man/man1/strata-*.1"):
            command = page.stem.removeprefix("strata-").replace("-", " ")
            options = set(re.findall(r"^  (--[a-z][a-z0-9-]*)", output(STRATA, "help", *command.split()), re.MULTILINE)) - {"--help"}
            text = self.page(page.stem)
            for option in options:
                self.assertRegex(text, re.escape(option) + r"\b", page)
        reference = (pathlib.Path(SOURCE) / "docs/configuration.md").read_text()
        for section, body in re.findall(r"## \[(\w+)\](.*?)(?=\n## |\Z)", reference, re.DOTALL):
            for key in re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE):
                self.assertIn(f"\n.B {section}.{key}\n", self.page("strata-train"))

    def test_pages_render_without_warnings(self):
        groff = self.tool("groff")
        for page in sorted(self.share.glob("man/man1/*")):
            for macros in ("-man", "-mandoc"):
                result = subprocess.run([groff, macros, "-ww", "-z", page], capture_output=True, text=True, check=True)
                self.assertEqual(result.stderr, "", page)
            self.assertRegex(self.page(page.stem), rf"\n\.SH NAME\n{page.stem} - [^\n]+\n\.SH SYNOPSIS\n")

    def test_bash_completes(self):
        script = self.share / "bash-completion/completions/strata"
        for line, expected in COMPLETED:
            found = [word for word in output("bash", HERE / "completion.bash", script, line).split("|") if word]
            if expected and expected[-1] == "...":
                self.assertLess(set(expected[:-1]), set(found), line)
            else:
                self.assertEqual(found, expected, line)

    def test_zsh_reads_its_script(self):
        subprocess.run([self.tool("zsh"), "-n", self.share / "zsh/site-functions/_strata"], check=True)

    def module_sets(self, *command):
        self.assertEqual([line for line in output(*command).split("\n") if line], MODULE)

    def test_lua_reads_the_modulefile(self):
        lua = self.tool("lua", "lua5.4", "lua5.3", "luajit")
        file, = self.share.glob("modulefiles/strata/*.lua")
        self.module_sets(lua, HERE / "module.lua", file)

    def test_tcl_reads_the_modulefile(self):
        tclsh = self.tool("tclsh")
        file, = (file for file in self.share.glob("modulefiles/strata/*") if file.suffix != ".lua")
        self.assertEqual(file.read_text().split("\n")[0], "#%Module1.0")
        self.module_sets(tclsh, HERE / "module.tcl", file)

    def test_refuses_pages_and_shells_that_do_not_exist(self):
        for command, message in [(["man", "strata-trian"], 'nearest is "strata-train"'),
                                 (["completion", "fish"], "one of bash, zsh"), (["completion"], "one of bash, zsh")]:
            result = subprocess.run([STRATA, "help", *command], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 2)
            self.assertIn(message, result.stderr)

    def test_a_program_finds_the_libraries(self):
        """examples/train.cpp against the install tree: trains, with the same bits on two ranks, and strata reads its run."""
        prefix = self.share.parent  # elsewhere than installed: the tree may be moved
        build = f"{self.root.name}/example"
        output("cmake", "-S", f"{SOURCE}/examples", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
        output("cmake", "--build", build)
        losses = []
        for ranks in (1, 2):
            run = f"{build}/points-{ranks}"
            output("mpirun", "-n", str(ranks), f"{build}/train", run)
            with open(f"{run}/run/metrics.jsonl", encoding="utf-8") as lines:
                records = map(json.loads, lines)  # those of slow ranks and checkpoints come when they happen
                losses.append([record["loss"] for record in records if "loss" in record])
            accuracy = re.search(r"accuracy ([\d.]+) %", output(f"{prefix}/bin/strata", "evaluate", f"{run}/run"))[1]
            self.assertGreater(float(accuracy), 95.0)
        self.assertGreater(len(losses[0]), 1000)
        self.assertEqual(*losses)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
