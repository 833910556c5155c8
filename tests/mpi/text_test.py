"""Text in: data sets of tokens as the command makes them, read back with h5py, and its errors.

Parts need GPT-2's vocabulary and a text of Shakespeare's in the directory that STRATA_DATA_DIR names.
"""

import base64
import json
import os
import pathlib
import re
import struct
import time
import unittest

import h5py
import numpy as np

import harness
from harness import DATA, DONE, USAGE

DATA_DIR = pathlib.Path(os.environ.get("STRATA_DATA_DIR") or "/nonexistent")
SHAKESPEARE = DATA_DIR / "tinyshakespeare/input.txt"
ENCODER, MERGES = DATA_DIR / "gpt2-bpe/encoder.json", DATA_DIR / "gpt2-bpe/vocab.bpe"
NO_DATA = "STRATA_DATA_DIR is not set, or has no tinyshakespeare and gpt2-bpe"


class TextTest(harness.StrataTest):
    def write(self, name, content):
        path = self.directory / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def tokens(self, directory, split):
        with h5py.File(self.directory / directory / f"{split}.h5") as master:
            return master["tokens"][()]


class Imports(TextTest):
    def test_characters_as_h5py_sees_them(self):
        text = "Wie schön! 猫と😀\n" * 700
        self.write("chars.txt", text)
        finished = self.import_data("--format=text", "--tokenizer=chars", "--files=chars.txt",
                                    "--split=0.9,0.1", "--output=chars")
        self.assertRegex(finished.text, r"9,450 training tokens; chars/test.h5: 1,050 test tokens; "
                                        r"vocabulary of 14; [\d,]+ tokens/s\n")
        characters = sorted(set(text))
        with h5py.File(self.directory / "chars/train.h5") as master:
            self.assertEqual(master.attrs["format"], b"strata-dataset")
            self.assertEqual(master.attrs["task"], b"next_token")
            self.assertEqual(master.attrs["tokenizer"], b"chars")
            self.assertEqual(master.attrs["tokens"], int(0.9 * len(text)))
            self.assertEqual(master.attrs["vocabulary"], len(characters))
            self.assertEqual(master.attrs["block_tokens"], 4096)
            self.assertEqual(master["tokens"].dtype, np.uint16)
            self.assertEqual(master["checksums"].shape, (3,))
            self.assertEqual([chr(code) for code in master["text/characters"]], characters)
        both = np.concatenate([self.tokens("chars", "train"), self.tokens("chars", "test")])
        self.assertEqual("".join(characters[id] for id in both), text)

        inspected = self.alone("data", "inspect", "chars/train.h5", "chars/test.h5", "--verify", expect=DONE)
        for words in ["9,450 uint16", "vocabulary  14", "tokenizer   chars", '"Wie schön! 猫と😀\\nWie', "ok"]:
            self.assertIn(words, inspected.text)

    def test_importing_again_gives_the_same_shards(self):
        self.write("again.txt", "to be or not to be\n" * 1000)
        for output in ("first", "second"):
            self.import_data("--format=text", "--tokenizer=bytes", "--files=again.txt", f"--output={output}")
        for shard in ("train-00000.h5", "test-00000.h5"):
            self.assertEqual((self.directory / "first" / shard).read_bytes(),
                             (self.directory / "second" / shard).read_bytes())

    def test_a_flipped_bit_is_found(self):
        self.write("flip.txt", "x" * 20000 + "needle" + "x" * 20000)
        self.import_data("--format=text", "--tokenizer=bytes", "--files=flip.txt", "--split=1.0", "--output=flip")
        shard = self.directory / "flip/train-00000.h5"
        content = shard.read_bytes()
        needle = "needle".encode("utf-16-le")
        self.assertEqual(content.count(needle), 1)
        shard.write_bytes(content.replace(needle, "noodle".encode("utf-16-le")))
        inspected = self.alone("data", "inspect", "flip/train.h5", "--verify")
        self.assert_refused(inspected, DATA, "1 shard is bad")
        self.assertIn("BAD: block 4 is damaged (1 bad blocks)", inspected.text)

    def test_token_files(self):
        ids = np.arange(5000) % 777
        self.write("nano.bin", ids.astype("<u2").tobytes())
        header = np.zeros(256, "<i4")
        header[:3] = 20240520, 1, len(ids)
        self.write("llmc.bin", header.tobytes() + ids.astype("<u2").tobytes())
        sizes = np.array([3000, 2000], "<i4")
        self.write("mega.bin", ids.astype("<i4").tobytes())
        self.write("mega.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 2, 3) + sizes.tobytes()
                   + np.array([0, 12000], "<i8").tobytes() + np.array([0, 1, 2], "<i8").tobytes())
        for kind, file in [("nanogpt", "nano.bin"), ("llmc", "llmc.bin"), ("megatron", "mega.bin")]:
            self.import_data(f"--format=tokens-{kind}", f"--files={file}", "--vocabulary=777",
                             "--split=4000,1000", f"--output={kind}")
            np.testing.assert_array_equal(self.tokens(kind, "train"), ids[:4000])
            np.testing.assert_array_equal(self.tokens(kind, "test"), ids[4000:])

    def test_memory_does_not_grow_with_the_text(self):
        piece = b"All the world's a stage, and all the men and women merely players.\n" * 10000
        with open(self.directory / "long.txt", "wb") as file:
            for _ in range(150):
                file.write(piece)
        job = harness.Job([harness.STRATA, "data", "import", "--format=text", "--tokenizer=chars",
                           "--files=long.txt", "--output=long"], self.directory)
        peak_mib = 0
        while job.running():
            status = pathlib.Path("/proc", str(job.process.pid), "status").read_text()
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            peak_mib = max(peak_mib, int(found.group(1)) / 1024 if found else 0)
            time.sleep(0.02)
        finished = job.wait(60)
        self.assertEqual(finished.code, DONE, finished.text)
        print(f"peak {peak_mib:.0f} MiB for a text of {150 * len(piece) / 2**20:.0f} MiB", flush=True)
        self.assertLess(peak_mib, 64)
        self.assertGreater(peak_mib, 1)


@unittest.skipUnless(SHAKESPEARE.exists() and ENCODER.exists(), NO_DATA)
class Shakespeare(TextTest):
    def test_characters_are_nanogpts(self):
        self.import_data("--format=text", "--tokenizer=chars", f"--files={SHAKESPEARE}", "--split=0.9,0.1",
                         "--output=chars")
        text = SHAKESPEARE.read_text(encoding="utf-8")
        characters = sorted(set(text))
        ids = [characters.index(character) for character in text[:int(0.9 * len(text))]]
        self.assertEqual((len(text), len(characters)), (1115394, 65))
        np.testing.assert_array_equal(self.tokens("chars", "train"), ids)
        self.assertEqual(self.tokens("chars", "test").size, 111540)

    def test_byte_pairs_are_as_many_as_nanogpt_publishes(self):
        text = SHAKESPEARE.read_text(encoding="utf-8")
        cut = int(0.9 * len(text))
        for name, part, expected in [("train", text[:cut], 301966), ("val", text[cut:], 36059)]:
            self.write(f"{name}.txt", part)
            self.import_data("--format=text", "--tokenizer=gpt2", f"--encoder={ENCODER}", f"--merges={MERGES}",
                             f"--files={name}.txt", "--split=1.0", f"--output={name}")
            self.assertEqual(self.tokens(name, "train").size, expected)
        with h5py.File(self.directory / "train/train.h5") as master:
            ends = master["text/token_ends"][()]
            joined = master["text/token_bytes"][()].tobytes()
            self.assertEqual(master["text/merges"].shape, (50000, 2))
            self.assertEqual(master.attrs["separator"], 50256)
            decoded = b"".join(joined[(ends[id - 1] if id else 0):ends[id]] for id in master["tokens"][:5000])
        self.assertEqual(decoded.decode(), text[:len(decoded)])


def small_vocabulary(*more):
    """The bytes as GPT-2's files write them, "th", and further tokens."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    byte = [chr(value) for value in visible] + [chr(256 + i) for i in range(256 - len(visible))]
    return {token: id for id, token in enumerate([*byte, "th", *more])}


class OtherTokenizers(TextTest):
    """Tokenizers of other programs, from the import to generated text."""

    TEXT = "the other  brother's path\n" * 200

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test = cls()
        test.write("text.txt", cls.TEXT)
        ids = small_vocabulary("the")
        ids["th"], ids["the"] = ids["the"], ids["th"]  # not in the order of merges, as GPT-2's are
        test.write("tokenizer.json", json.dumps({
            "added_tokens": [{"id": len(ids), "content": "<|endoftext|>"}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
            "model": {"type": "BPE", "vocab": ids, "merges": ["t h", "th e"]}}))
        ranks = [*(bytes([byte]) for byte in range(256)), b"th", b"the", b"er"]
        test.write("ranks.tiktoken", b"".join(base64.b64encode(token) + f" {rank}\n".encode()
                                     for rank, token in enumerate(ranks)))
        cls.config = test.write_config("lm.ini", harness.config_text(
            model={"preset": "gpt", "blocks": 1, "width": 8, "heads": 1, "context": 8}, data="json",
            batch={"global": 4}, train={"steps": 1}))

    def import_with(self, file, output, *arguments):
        self.import_data("--format=text", f"--tokenizer={file}", "--files=text.txt", f"--output={output}", *arguments)
        inspected = self.alone("data", "inspect", f"{output}/train.h5", "--verify")
        self.assertIn("the other  brother's path\\nthe", inspected.text)

    def train_and_generate(self, output):
        data = [f"--data.{split}={output}/{split}.h5" for split in ("train", "test")]
        self.train(self.config, (1, 1), f"{output}-run", *data)
        # The checkpoint has the tokenizer: the data set is not needed.
        (self.directory / output).rename(self.directory / f"{output}-moved")
        made = self.alone("generate", f"{output}-run", "--prompt=the brother", "--tokens=5", expect=DONE)
        self.assertTrue(made.text.startswith("the brother"), made.text)
        (self.directory / f"{output}-moved").rename(self.directory / output)

    def test_byte_pairs(self):
        self.import_with("tokenizer.json", "json")
        self.import_with("ranks.tiktoken", "ranks", "--split-pattern=llama3")
        self.train_and_generate("json")
        refused = self.alone("evaluate", "json-run", "--data.test=ranks/test.h5")
        self.assert_refused(refused, DATA, "260 token ids", "259 token ids")
        with h5py.File(self.directory / "json/train.h5") as master:
            self.assertEqual(master.attrs["tokenizer"], b"byte-pairs")
            self.assertEqual(master.attrs["split_pattern"], b"gpt2")
            self.assertEqual(master["text/special_tokens"][()].tolist(), [258])

    def test_sentence_pieces(self):
        try:
            import sentencepiece
        except ImportError as missing:
            self.skipTest(str(missing))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(self.TEXT.split("\n")), model_prefix=str(self.directory / "pieces"), vocab_size=300,
            model_type="bpe", byte_fallback=True, normalization_rule_name="identity", hard_vocab_limit=False,
            remove_extra_whitespaces=False, minloglevel=2)
        self.import_with("pieces.model", "pieces")
        processor = sentencepiece.SentencePieceProcessor(str(self.directory / "pieces.model"))
        ids = np.concatenate([self.tokens("pieces", "train"), self.tokens("pieces", "test")])
        self.assertEqual(ids.tolist(), processor.encode(self.TEXT))
        self.train_and_generate("pieces")
        with h5py.File(self.directory / "pieces/train.h5") as master:
            self.assertEqual(master["text/model"][()].tobytes(), (self.directory / "pieces.model").read_bytes())
        config = self.directory / "tokenizer_config.json"
        for written, frame, before in (({"add_bos_token": True}, b"1 $A", [1]), ({"add_bos_token": False}, None, []),
                                       ({"tokenizer_class": "LlamaTokenizer"}, b"1 $A", [1]), ({}, None, [])):
            config.write_text(json.dumps(written))
            self.import_with("pieces.model", "framed", "--overwrite")
            self.assertEqual(self.tokens("framed", "train")[:4].tolist(), (before + processor.encode(self.TEXT))[:4])
            with h5py.File(self.directory / "framed/train.h5") as master:
                self.assertEqual(master.attrs.get("document_frame"), frame)
        config.write_text("[")
        finished = self.alone("data", "import", "--format=text", "--files=text.txt", "--output=no",
                              "--tokenizer=pieces.model")
        self.assert_refused(finished, DATA, "tokenizer_config.json is no JSON object")
        config.unlink()
        # Tokens beside the model: the end has a role, so it is special.
        start = processor.get_piece_size()
        beside = [self.write("added_tokens.json", json.dumps({"<|im_start|>": start, "<|im_end|>": start + 2})),
                  self.write("special_tokens_map.json", json.dumps({"eos_token": {"content": "<|im_end|>"}}))]
        self.write("chat.txt", "<|im_start|>the other<|im_end|>" * 20)
        given = ["--format=text", "--files=chat.txt", "--split=1.0", "--separator=off"]
        self.import_data(*given, "--tokenizer=pieces.model", "--output=marked", "--special-tokens")
        self.assertEqual(self.tokens("marked", "train").tolist(), [start, *processor.encode("the other"), start + 2] * 20)
        self.import_data(*given, "--tokenizer=pieces.model", "--output=chat")
        ids = self.tokens("chat", "train").tolist()
        self.assertEqual(ids, [start, *processor.encode("the other<|im_end|>")] * 20)
        self.train(self.config, (1, 1), "chat-run", "--data.train=chat/train.h5", "--data.test=chat/train.h5")
        self.alone("checkpoint", "export", "chat-run", "--format=huggingface", "--output=chat-out", expect=DONE)
        written = json.loads((self.directory / "chat-out/tokenizer_config.json").read_text())["added_tokens_decoder"]
        self.assertEqual({id: (token["content"], token["special"]) for id, token in written.items()},
                         {str(start): ("<|im_start|>", False), str(start + 2): ("<|im_end|>", True)})
        self.assertEqual(json.loads((self.directory / "chat-out/added_tokens.json").read_text()),
                         {"<|im_start|>": start, "<|im_end|>": start + 2})
        self.import_data(*given, "--tokenizer=chat-out/tokenizer.model", "--output=again")
        self.assertEqual(self.tokens("again", "train").tolist(), ids)
        for path in beside:
            path.unlink()

    def test_refusals(self):
        for code, words, arguments in [
                (USAGE, ["ranks.tiktoken is a file of ranks", "--split-pattern=gpt2, llama3"],
                 ["--tokenizer=ranks.tiktoken"]),
                (USAGE, ["tokenizer.json says itself"], ["--tokenizer=tokenizer.json", "--split-pattern=gpt2"]),
                (USAGE, ["--split-pattern is for a file of ranks"], ["--tokenizer=bytes", "--split-pattern=gpt2"]),
                (USAGE, ["--special-tokens is for"], ["--tokenizer=bytes", "--special-tokens"]),
                (DATA, ["none.json does not exist"], ["--tokenizer=none.json"]),
                (DATA, ["text.txt line 1", "base64"], ["--tokenizer=text.txt"])]:
            with self.subTest(arguments=arguments):
                finished = self.alone("data", "import", "--format=text", "--files=text.txt", "--output=no", *arguments)
                self.assert_refused(finished, code, *words)
                self.assertFalse((self.directory / "no").exists())


if __name__ == "__main__":
    if not SHAKESPEARE.exists():
        print(NO_DATA, flush=True)
    harness.main()
