"""Holds tokenizers to others: byte pairs to the published algorithms, in Python with the expressions that define words,
and SentencePiece's models, also in the form of a tokenizer.json, to its Python module, where Debian's
python3-sentencepiece is installed.

Usage: tokenizer_reference.py TOKENIZER_CASES. The vocabulary is in STRATA_DATA_DIR/gpt2-bpe. Ends with 77
(skipped) where that is not set or Python's regex module is missing.
"""

import base64
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
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
LLAMA3_WORDS = regex.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+")
O200K_WORDS = regex.compile(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

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
    "I'LL SAY WE'VE DONE'D IT'S YOU'RE don'T 'ſ x'ſy 'Re 'vE", "!\r\n\r\nx.\n\n y\t\n\tz\r  \n  w\r",
    "\tx\u00a0y\u3000z !x\n!x",
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
    def __init__(self, words=WORDS):
        self.words = words
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
        return [id for word in self.words.findall(text) for id in self.word(word)]


class WholeWords(Reference):
    """With ignore_merges: a word that is a token becomes it without merges."""

    def word(self, word):
        whole = self.ids.get("".join(self.characters[byte] for byte in word.encode()))
        return super().word(word) if whole is None else [whole]


class Ranks:
    """As tiktoken does it: the pair whose bytes together have the lowest rank is merged, leftmost first."""

    def __init__(self, ranks, words):
        self.ranks, self.words, self.known = ranks, words, {}

    def word(self, word):
        word = word.encode()
        if word not in self.known:
            parts = [word] if word in self.ranks else [bytes([byte]) for byte in word]
            while True:
                joined = [(self.ranks[left + right], i) for i, (left, right) in enumerate(zip(parts, parts[1:]))
                          if left + right in self.ranks]
                if not joined:
                    break
                at = min(joined)[1]
                parts[at:at + 2] = [parts[at] + parts[at + 1]]
            self.known[word] = [self.ranks[part] for part in parts]
        return self.known[word]

    def encode(self, text):
        return [id for word in self.words.findall(text) for id in self.word(word)]


def tokenizer_json(reference, pairs, **changes):
    """A Hugging Face tokenizer.json of GPT-2's vocabulary and merges."""
    merges = sorted(reference.ranks, key=reference.ranks.get)
    content = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": 50256, "content": "<|endoftext|>", "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": True, "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "vocab": reference.ids,
                  "merges": [list(merge) if pairs else " ".join(merge) for merge in merges]}}
    content["model"].update(changes.pop("model", {}))
    content.update(changes)
    return json.dumps(content, ensure_ascii=pairs)


def llama3_splitter():
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": LLAMA3_WORDS.pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}


def sentence_pieces(texts, directory):
    """Name, arguments and the library's processor of models of both kinds."""
    try:
        import sentencepiece
    except ImportError as missing:
        print(f"skipped: {missing}; Debian's package is python3-sentencepiece")
        return
    lines = [line for text in texts for line in text.split("\n") if line][:4000]
    for name, options in [
            ("bpe", {"model_type": "bpe", "byte_fallback": True, "split_digits": True,
                     "normalization_rule_name": "identity", "remove_extra_whitespaces": False}),  # as Llama 2's
            ("unigram", {"model_type": "unigram"})]:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, vocab_size=700, hard_vocab_limit=False,
            character_coverage=0.98, minloglevel=2, num_threads=1, **options)
        path = directory / f"{name}.model"
        path.write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        yield f"SentencePiece {name}", [path], processor


def converted(processor):
    """A tokenizer.json with the byte pairs of a model of SentencePiece, in the form that Llama 2's has."""
    pieces = [processor.id_to_piece(id) for id in range(processor.get_piece_size())]
    known = set(pieces)
    merges = [[piece[:i], piece[i:]] for piece in sorted(pieces, key=lambda piece: -processor.get_score(
        processor.piece_to_id(piece))) for i in range(1, len(piece)) if piece[:i] in known and piece[i:] in known]
    return json.dumps({
        "added_tokens": [{"id": id, "content": pieces[id], "special": True, "normalized": False} for id in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "merges": merges,
                  "vocab": {piece: id for id, piece in enumerate(pieces)}}})


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


def ours(program, arguments, texts):
    message = b"".join(f"{len(text.encode())}\n".encode() + text.encode() for text in texts)
    answer = subprocess.run([program, *arguments], input=message, stdout=subprocess.PIPE, check=True)
    lines = [line.partition("|") for line in answer.stdout.decode().split("\n")[:-1]]
    return [[int(id) for id in ids.split()] + ([bytes.fromhex(decoded).decode()] if bar else [])
            for ids, bar, decoded in lines]


def differences(name, found, texts, encode):
    assert len(found) == len(texts), f"{name}: {len(found)} answers to {len(texts)} texts"
    different = 0
    for text, ids in zip(texts, found):
        expected = encode(text)
        if ids != expected:
            different += 1
            at = next((i for i, pair in enumerate(zip(ids, expected)) if pair[0] != pair[1]),
                      min(len(ids), len(expected)))
            print(f"{name}: {text[:60]!r}: token {at} is {ids[at:at + 4]}, expected {expected[at:at + 4]}")
    tokens = sum(len(ids) for ids in found)
    print(f"{name}: {len(texts)} texts, {tokens} tokens, {different} texts differ", flush=True)
    return different


def main():
    program = sys.argv[1]
    texts = TEXTS + every_character() + random_texts(3000)
    shakespeare = DATA / "tinyshakespeare/input.txt"
    if shakespeare.exists():
        texts.append(shakespeare.read_text(encoding="utf-8"))
    gpt2 = Reference()
    whole = WholeWords(LLAMA3_WORDS)
    byte_of = {character: byte for byte, character in gpt2.characters.items()}
    ranks = {bytes(byte_of[character] for character in token): id for token, id in gpt2.ids.items() if id < 50256}
    by_rank = Ranks(ranks, LLAMA3_WORDS)
    different = 0
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        strings, pairs, file = (directory / name for name in ("strings.json", "llama3.json", "ranks.tiktoken"))
        strings.write_text(tokenizer_json(gpt2, False), encoding="utf-8")
        pairs.write_text(tokenizer_json(gpt2, True, pre_tokenizer=llama3_splitter(), model={"ignore_merges": True}))
        file.write_bytes(b"".join(base64.b64encode(token) + f" {rank}\n".encode() for token, rank in ranks.items()))
        for name, arguments, reference in [
                ("GPT-2", [DATA / "gpt2-bpe/encoder.json", DATA / "gpt2-bpe/vocab.bpe"], gpt2),
                ("tokenizer.json of GPT-2", [strings], gpt2),
                ("tokenizer.json with Llama 3's words", [pairs], whole),
                ("ranks with o200k's words", [file, "o200k"], Ranks(ranks, O200K_WORDS)),
                ("ranks with Llama 3's words", [file, "llama3"], by_rank),
                ("the tokenizer.json written from them", [directory / "tokenizer.json"], by_rank)]:
            different += differences(name, ours(program, arguments, texts), texts, reference.encode)
        for name, arguments, processor in sentence_pieces(texts[-1:], directory):
            def with_text(text):
                ids = processor.encode(text)
                return [*ids, processor.decode(ids)]
            # Of a long text the library adds up scores in float32; we encode parts of some KiB.
            parts = [text[i:i + 2000] for text in texts for i in range(0, max(len(text), 1), 2000)]
            compared = parts if "unigram" in name else texts
            different += differences(name, ours(program, arguments, compared), compared, with_text)
            assert (directory / "tokenizer.model").read_bytes() == arguments[0].read_bytes(), f"{name} is written anew"
            if "bpe" in name:
                (directory / "pairs.json").write_text(converted(processor), encoding="utf-8")
                for file in ("pairs.json", "tokenizer.json"):  # the second is written from the first
                    found = ours(program, [directory / file], texts)
                    different += differences(f"{name} as {file}", found, texts, with_text)
    return 1 if different else 0


sys.exit(main())
