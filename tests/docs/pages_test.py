"""Runs a page's commands and compares what the page shows:  pages_test.py PAGE.md

A fenced block is a transcript: "$ " begins a command, and what it prints follows. "..." stands for any lines, or within
a line for any text; a command without lines may print anything. Times and rates are left aside. A block with a language
(ini, python, ...) is not run, nor is one whose opening line gives a reason, which pages do not show: "```sh not run: WHY".
A command fails if and only if it shows an error of strata, or the number that "echo $?" prints.

STRATA_BIN is the program. The commands run in a directory with jobs/, as in a fresh checkout, and the files that
make_inputs() makes. A block "```ini NAME.ini" is a file that the reader writes. Without MNIST in STRATA_DATA_DIR, pages
that read it are skipped.
"""

import math
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
LIMIT_SECONDS = 1500
MOST_COMMANDS = 5  # of a recipe
# What recipes reach: of the last number that a command prints behind these words.
BARS = (("strata evaluate runs/houses", "R2 ", 0.7, 1), ("strata train flowers.ini", "accuracy ", 90, 100),
        ("strata train photos.ini", "accuracy ", 80, 100), ("strata train licences.ini", "test loss ", 0, 2.6),
        ("strata train tuned.ini", "test loss ", 0, 1.5))

# What the commands run under. A reader stops a run that has shown something.
PRELUDE = """
export LC_ALL=C.UTF-8
kill() { until grep -qs '"evaluate"' runs/*/metrics.jsonl; do sleep 0.05; done; builtin kill "$@"; }
"""

# Times, rates and what else differs from run to run.
ASIDE = ((r"[\d,.]+[kM]? (samples|tokens)/s", r"N \1/s"), (r"data wait [\d.]+ %", "data wait N"),
         (r"compute [\d.]+( / [\d.]+)* ms \(rank \d+\)  ", ""), (r"ETA .*", "ETA T"),
         (r"\b\d[\d,.]* (h|min|s|ms|us)\b( \d+ (min|s)\b)?", "T"), (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "DATE"),
         (r"after step \d+", "after step N"), (r"step-\d{8}", "step-N"))


def write_table(path, head, rows):
    path.write_text("\n".join([head, *(",".join(str(cell) for cell in row) for row in rows)]) + "\n")


def write_houses(directory):
    """Prices by area, rooms, age, distance and district, with a tenth of noise."""
    draw = random.Random(1)
    districts = {"harbour": 1.3, "old town": 1.15, "station": 0.9, "hill": 1.0}
    rows = []
    for number in range(1, 1501):
        area, age, distance = draw.uniform(30, 220), draw.randrange(0, 120), draw.uniform(0.2, 15)
        district = draw.choice(list(districts))
        price = (20000 + 2400 * area) * districts[district] * math.exp(-age / 400 - distance / 25) * draw.gauss(1, 0.1)
        rows.append((number, round(area), 1 + round(area / 30 + draw.uniform(-1, 1)), age, round(distance, 1), district,
                     100 * round(price / 100)))
    head = "id,area,rooms,age,distance,district,price"
    write_table(directory / "houses.csv", head, rows[:-3])
    write_table(directory / "new.csv", head.removesuffix(",price"), [row[:-1] for row in rows[-3:]])


def write_flowers(directory):
    """Three kinds, one after the other in the file."""
    draw = random.Random(2)
    kinds = {"crocus": (4.9, 3.1, 1.5), "iris": (6.1, 2.8, 4.4), "tulip": (6.7, 3.4, 5.6)}
    rows = [(*(round(draw.gauss(mean, 0.35), 2) for mean in means), kind) for kind, means in kinds.items() for _ in range(200)]
    write_table(directory / "flowers.csv", "leaf,width,petal,kind", rows)


def write_sums(directory):
    draw = random.Random(4)
    words = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
             "eighteen").split()
    pairs = [(draw.randrange(10), draw.randrange(10)) for _ in range(3000)]
    (directory / "mine.txt").write_text("".join(f"{words[a]} and {words[b]} are {words[a + b]}.\n" for a, b in pairs))


def write_png(path, pixels):
    """Source: W3C, PNG specification, 3rd edition, section 5. `pixels`: rows of bytes, 3 a pixel."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    size = struct.pack(">IIBBBBB", len(pixels[0]) // 3, len(pixels), 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) +
                     chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in pixels))) + chunk(b"IEND", b""))


def write_photos(directory):
    """Noisy shapes of 32 x 32 pixels, a folder for each kind."""
    draw = random.Random(3)
    inside = {"disc": lambda x, y: x * x + y * y < 80, "ring": lambda x, y: 50 < x * x + y * y < 130,
              "bar": lambda x, y: abs(x) < 4 and abs(y) < 13}
    for kind, is_inside in inside.items():
        folder = directory / "photos" / kind
        folder.mkdir(parents=True)
        for number in range(200):
            left, top = draw.uniform(12, 20), draw.uniform(12, 20)
            colours = [[draw.randrange(256) for _ in range(3)] for _ in range(2)]
            write_png(folder / f"{number:03}.png", [bytes(
                min(255, max(0, int(draw.gauss(colour, 25)))) for x in range(32)
                for colour in colours[is_inside(x - left, y - top)]) for y in range(32)])


def make_inputs(page, directory):
    """Makes what the page's reader has. Returns: what is missing."""
    if page == "recipes.md":
        write_houses(directory)
        write_flowers(directory)
        write_photos(directory)
        write_sums(directory)
        return None
    digits = pathlib.Path(os.environ.get("STRATA_DATA_DIR", "/nowhere"), "mnist-10k")
    if not digits.is_dir():
        return f"{page} reads MNIST, and STRATA_DATA_DIR has no mnist-10k"
    shutil.copytree(digits, directory / "data" / "download")
    return None


class Command:
    def __init__(self, section, line, text):
        self.section = section
        self.line = line
        self.text = text
        self.shown = []


def blocks_of(page):
    """The fenced blocks: the number of headings before, of the first line, the words behind the fence, the lines."""
    found = re.finditer(r"^```(.*)\n((?:.*\n)*?)```$", page, re.MULTILINE)
    return [(len(re.findall("^## ", page[:block.start()], re.MULTILINE)), page.count("\n", 0, block.start()) + 1,
             block[1].strip(), block[2].splitlines()) for block in found]


def is_whole(command):
    return not command.endswith("\\") and subprocess.run(["bash", "-n", "-c", command], capture_output=True).returncode == 0


def commands_of(path):
    """The commands of a page, the files that its reader writes, and mistakes in its blocks."""
    commands, files, mistakes = [], {}, []
    for section, number, mark, lines in blocks_of(path.read_text()):
        if mark.startswith("ini "):
            files[mark.removeprefix("ini ")] = "\n".join(lines) + "\n"
        if mark and (not mark.startswith("sh") or re.match(r"sh not run: \w", mark)):
            continue
        if mark or not lines or not lines[0].startswith("$ "):
            mistakes.append(f"{path.name}:{number}: give the block's language, begin it with \"$ \", or say why it is not run")
            continue
        whole = True
        for at, line in enumerate(lines, number + 1):
            if whole and line.startswith("$ "):
                commands.append(Command(section, at, line.removeprefix("$ ")))
                whole = is_whole(commands[-1].text)
            elif not whole:
                commands[-1].text += "\n" + line
                whole = is_whole(commands[-1].text)
            else:
                commands[-1].shown.append(line)
    return commands, files, mistakes


def run(commands, directory):
    """The lines and the exit status of each command; nothing for those after the time limit."""
    script = PRELUDE + "".join(f"{command.text}\nprintf '\\n@@ %d %d\\n' {i} $?\n" for i, command in enumerate(commands))
    environment = {**os.environ, "PATH": os.path.dirname(os.environ["STRATA_BIN"]) + ":" + os.environ["PATH"]}
    with open(directory / "output.txt", "wb") as output:
        try:
            subprocess.run(["bash", "-c", script], cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                           stderr=subprocess.STDOUT, timeout=LIMIT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            pass
    text = (directory / "output.txt").read_text(errors="replace")
    results, begin = [], 0
    for end in re.finditer(r"\n?\n@@ \d+ (\d+)\n", text):
        results.append((text[begin:end.start()].splitlines(), int(end[1])))
        begin = end.end()
    return results


def aside(line, same_numbers):
    for pattern, kept in ASIDE:
        line = re.sub(pattern, kept, line)
    if not same_numbers:
        line = re.sub(r"-?\d[\d,.]*\d", "N", line)
    line = re.sub(r"-{5,}", "-----", re.sub(r"\s+", " ", line).strip())
    # With which class one is confused follows from the numbers.
    return line if same_numbers else re.sub(r"^(\S+ N N %) \S+ (-|N %)$", r"\1 C N", line)


def agrees(shown, printed, same_numbers):
    if not shown:
        return True
    pattern = ""
    for line in shown:
        pattern += "(?:.*\n)*?" if line.strip() == "..." else \
            re.escape(aside(line, same_numbers)).replace(re.escape("..."), ".*") + "\n"
    return re.fullmatch(pattern, "".join(aside(line, same_numbers) + "\n" for line in printed)) is not None


def below_the_bar(commands, results):
    """What is wrong with the page of recipes."""
    mistakes = [f"section {section} has more than {MOST_COMMANDS} commands" for section in {one.section for one in commands}
                if sum(one.section == section for one in commands) > MOST_COMMANDS]
    for words, figure, least, most in BARS:
        printed = next("\n".join(lines) for one, (lines, _) in zip(commands, results) if one.text.startswith(words))
        reached = float(re.findall(re.escape(figure) + r"([\d.e+]*\d)", printed)[-1])
        if not least <= reached <= most:
            mistakes.append(f"{words}: {figure}{reached} is not from {least} to {most}")
    return mistakes


def main():
    path = SOURCE / sys.argv[1]
    commands, files, mistakes = commands_of(path)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="strata-page-"))
    try:
        (directory / "jobs").symlink_to(SOURCE / "jobs")
        missing = make_inputs(path.name, directory)
        if missing:
            print(f"skipped: {missing}")
            return SKIPPED
        # Losses have the same bits on CPUs of one class (docs/numerics.md).
        same_numbers = "avx512f" in pathlib.Path("/proc/cpuinfo").read_text()
        for name, text in files.items():
            (directory / name).write_text(text)
        results = run(commands, directory)
        for command, (printed, status) in zip(commands, results):
            fails = any(line.startswith("strata: ") for line in command.shown)
            if not agrees(command.shown, printed, same_numbers) or (status != 0) != fails:
                mistakes.append("\n".join([f"{path.name}:{command.line}: $ {command.text}", "shows", *command.shown,
                                           f"but it prints, with exit status {status},", *printed]))
        if path.name == "recipes.md" and not mistakes:
            mistakes += below_the_bar(commands, results)
        if len(results) < len(commands):
            mistakes.append(f"{path.name}:{commands[len(results)].line}: does not end: {commands[len(results)].text}")
    finally:
        shutil.rmtree(directory)
    print("\n\n".join(mistakes) if mistakes else f"{path.name}: {len(commands)} commands do what the page shows")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
