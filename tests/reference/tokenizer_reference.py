"""Holds GPT-2's byte pairs to the published algorithm, in Python with the expression that defines its words.

Usage: tokenizer_reference.py TOKENIZER_CASES. The vocabulary is in STRATA_DATA_DIR/gpt2-bpe. Ends with 77
(skipped) where that is not set or Python's regex module is missing.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import unicodedata

try:
    import regex
except ImportError as missing:
    print(f"skipped: {missing}; Debian's package is python3-regex")
    sys.exit(77)
DATA = pathlib.Path(os.environ.get("STRATA_DATA_DIR") or "/nonexistent")
if not (DATA / "gpt2-bpe").exists():
    print("skipped: STRATA_DATA_DIR is not set, or has no gpt2-bpe")
    sys.exit(77)

WORDS = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

TEXTS = [
    "", " ", "  ", "\n", "\n\n", " \n ", "\t\tx", "a  b   c    d ", "x \n\n\n  y\r\n\r\nz   ",
    "I'll say we've done what you're told, it's 'sun' and I'd 'DON'T' don''t 'tis rock'n'roll",
    "1 22 333 4444 55555 3.14159 1,000,000 0x7f 2026-11-21 ½ Ⅷ ² ٣٤٥ 五",
    "naïve façade Ærøskøbing Straße ÅNGSTRÖM e\u0301 n\u0303 i\u0307",
    "Привет, мир! Съешь же ещё этих мягких французских булок",
    "Γειά σου Κόσμε, ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "你好，世界。中文分词测试：一二三", "こんにちは世界。カタカナとひらがな", "안녕하세요 세계",
    "مرحبا بالعالم كيف حالك؟", "שלום עולם", "नमस्ते दुनिया क्या हाल है", "สวัสดีชาวโลก", "ଓଡ଼ିଆ ಕನ್ನಡ తెలుగు",
    "😀 😃👍🏽 👨\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 🇩🇪 ❤️ ☃ ♥",
    "a\u00a0b\u2003c\u3000d\u2028e\u0085f\u200bg\ufeffh\u1680i\u202fj\u205fk\x1cl\x1dm\x0bn\x0co",
    "def f(x):\n    if x == 1:\n\t\treturn {'a': [1, 2]}  # no comment\n\n\n", "https://a.b/c?d=e&f=%20#g",
    "<|endoftext|> is text here", "_____ ----- ***** ..... !?!?!?", "\x00\x01\x7f", "\U0010ffff\U000e0001",
    "a" * 3000, " " * 3000, "ab" * 1500 + "é" * 500, "!" * 1001, "0123456789" * 100,
]


def byte_characters():
    """The character that stands for each byte in the files."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {**{byte: chr(byte) for byte in visible},
            **{byte: chr(256 + i) for i, byte in enumerate(hidden)}}


class Reference:
    def __init__(self):
        self.ids = json.loads((DATA / "gpt2-bpe/encoder.json").read_text(encoding="utf-8"))
        lines = (DATA / "gpt2-bpe/vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
        self.ranks = {tuple(line.split()): rank for rank, line in enumerate(lines) if line}
        self.characters = byte_characters()
        self.known = {}

    def word(self, word):
        if word not in self.known:
            parts = [self.characters[byte] for byte in word.encode()]
            while len(parts) > 1:
                best = min(zip(parts, parts[1:]),
                           key=lambda pair: self.ranks.get(pair, len(self.ranks)))
                if best not in self.ranks:
                    break
                merged, i = [], 0
                while i < len(parts):
                    if tuple(parts[i:i + 2]) == best:
                        merged.append(parts[i] + parts[i + 1])
                        i += 2
                    else:
                        merged.append(parts[i])
                        i += 1
                parts = merged
            self.known[word] = [self.ids[part] for part in parts]
        return self.known[word]

    def encode(self, text):
        return [id for word in WORDS.findall(text) for id in self.word(word)]


def every_character():
    """Texts with characters of all kinds, between others that show where words end.

    Only characters of Unicode 3.2: newer ones are of another kind to a library that does not know them yet.
    """
    old = unicodedata.ucd_3_2_0
    known = [chr(code) for code in range(0x110000)
             if old.category(chr(code)) not in ("Cn", "Cs", "Co") and (code < 0x3400 or code % 17 == 0)]
    return ["".join(f"a{character}1{character}.{character} " for character in known[i:i + 500])
            for i in range(0, len(known), 500)]


def random_texts(count):
    generator = random.Random(7)
    pieces = ["a", "the", " the", "e", "S", "'", "'s", "'ll", "'re", " ", "  ", "\n", "\t", "\u00a0", "\u3000",
              "1", "42", "٣", "é", "ß", "猫", "ま", "Ж", "😀", "\u0301", "\u200d", ".", ",", "!", "-", "_", "\x1c"]
    return ["".join(generator.choices(pieces, k=generator.randrange(1, 40))) for _ in range(count)]


def ours(program, texts):
    message = b"".join(f"{len(text.encode())}\n".encode() + text.encode() for text in texts)
    files = [DATA / "gpt2-bpe/encoder.json", DATA / "gpt2-bpe/vocab.bpe"]
    answer = subprocess.run([program, *files], input=message, stdout=subprocess.PIPE, check=True)
    return [[int(id) for id in line.split()] for line in answer.stdout.decode().split("\n")[:-1]]


def main():
    texts = TEXTS + every_character() + random_texts(3000)
    shakespeare = DATA / "tinyshakespeare/input.txt"
    if shakespeare.exists():
        texts.append(shakespeare.read_text(encoding="utf-8"))
    reference = Reference()
    found = ours(sys.argv[1], texts)
    assert len(found) == len(texts), f"{len(found)} answers to {len(texts)} texts"
    different = 0
    for text, ids in zip(texts, found):
        expected = reference.encode(text)
        if ids != expected:
            different += 1
            at = next((i for i, pair in enumerate(zip(ids, expected)) if pair[0] != pair[1]),
                      min(len(ids), len(expected)))
            print(f"{text[:60]!r}: token {at} is {ids[at:at + 4]}, expected {expected[at:at + 4]}")
    tokens = sum(len(ids) for ids in found)
    print(f"{len(texts)} texts, {tokens} tokens, {different} texts differ")
    return 1 if different else 0


sys.exit(main())
