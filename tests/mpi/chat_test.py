"""Dialogues: imported with a template, masked, trained on, resumed on another grid, and answered."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import harness
from harness import DATA, DONE, PEER, USAGE

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "io/python"
sys.path.insert(0, str(SCRIPTS))
import strata_reader  # noqa: E402

SPECIALS = ["<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
            "<bos>", "<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<s>", "</s>"]
COLOURS = {"amber": "gold", "brook": "blue", "cedar": "brown", "dune": "sand", "ember": "red", "fjord": "green",
           "grove": "lime", "heath": "pink"}
CHATML = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def byte_characters():
    """The characters that stand for bytes in a tokenizer.json."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def tokenizer_json():
    """Bytes, and one merge: two line feeds."""
    characters = byte_characters()
    feed = characters[10]
    vocabulary = {character: byte for byte, character in characters.items()}
    vocabulary[feed + feed] = 256
    return {"added_tokens": [{"id": 257 + i, "content": text, "special": True} for i, text in enumerate(SPECIALS)],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": [f"{feed} {feed}"]}}


def dialogue(*contents, roles=("user", "assistant")):
    return {"messages": [{"role": roles[i % len(roles)], "content": text} for i, text in enumerate(contents)]}


class Chat(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.directory / "model").mkdir()
        (cls.directory / "model/tokenizer.json").write_text(json.dumps(tokenizer_json()))

    def write_lines(self, name, objects):
        text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in objects)
        (self.directory / name).write_text(text)

    def arguments(self, name, template, *more):
        return ["data", "import", "--format=chat", "--tokenizer=model/tokenizer.json", f"--template={template}",
                f"--files={name}.jsonl", f"--output={name}", "--overwrite", *more]

    def chats(self, name, objects, template="chatml", *more):
        self.write_lines(f"{name}.jsonl", objects)
        self.alone(*self.arguments(name, template, "--split=1.0", *more), expect=DONE)
        return strata_reader.Dataset(self.directory / name)

    def texts(self, data):
        """The whole text, and what counts."""
        ids = data.tokens[:]
        pieces = [chr(id) if id < 256 else "\n\n" if id == 256 else SPECIALS[id - 257] for id in ids]
        return "".join(pieces), "".join(piece for piece, counts in zip(pieces, data.counts()) if counts)

    def test_templates(self):
        talk = dialogue("Be brief.", "Hi!", "Hello.", "Bye?", "Bye.", roles=("system", "user", "assistant", "user", "assistant"))
        for template, whole in (
                ("chatml", "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n"
                           "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye?<|im_end|>\n"
                           "<|im_start|>assistant\nBye.<|im_end|>\n"),
                ("llama3", "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
                           "<|start_header_id|>user<|end_header_id|>\n\nHi!<|eot_id|>"
                           "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
                           "<|start_header_id|>user<|end_header_id|>\n\nBye?<|eot_id|>"
                           "<|start_header_id|>assistant<|end_header_id|>\n\nBye.<|eot_id|>"),
                ("phi3", "<|system|>\nBe brief.<|end|>\n<|user|>\nHi!<|end|>\n<|assistant|>\nHello.<|end|>\n"
                         "<|user|>\nBye?<|end|>\n<|assistant|>\nBye.<|end|>\n"),
                ("zephyr", "<|system|>\nBe brief.</s>\n<|user|>\nHi!</s>\n<|assistant|>\nHello.</s>\n"
                           "<|user|>\nBye?</s>\n<|assistant|>\nBye.</s>\n")):
            with self.subTest(template=template):
                text, counted = self.texts(self.chats("talk", [talk], template))
                self.assertEqual(text, whole)
                end = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>", "phi3": "<|end|>", "zephyr": "</s>"}[template]
                self.assertEqual(counted, f"Hello.{end}Bye.{end}")
        pair = dialogue(" Hi!\n", " Hello. ")
        for template, whole, learned in (
                ("gemma", "<bos><start_of_turn>user\nHi!<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n",
                 "Hello.<end_of_turn>"),
                ("mistral", "<s>[INST] Hi! [/INST] Hello.</s>", "Hello.</s>")):
            with self.subTest(template=template):
                self.assertEqual(self.texts(self.chats("talk", [pair], template)), (whole, learned))

    def test_what_counts(self):
        # A token of two texts counts with the one that does: two line feeds are one token.
        text, counted = self.texts(self.chats("feeds", [dialogue("Hi", "\n\nyes")]))
        self.assertEqual(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\n\nyes<|im_end|>\n")
        self.assertEqual(counted, "\n\n\nyes<|im_end|>")
        _, counted = self.texts(self.chats("roles", [dialogue("Hi", "Yes")], "chatml", "--roles=user,assistant"))
        self.assertEqual(counted, "Hi<|im_end|>Yes<|im_end|>")
        # The spelling of a token in a message is text, unless asked otherwise.
        data = self.chats("spelled", [dialogue("<|im_end|>", "Yes")])
        self.assertEqual(list(data.tokens[:]).count(257 + 1), 2)
        data = self.chats("spelled", [dialogue("<|im_end|>", "Yes")], "chatml", "--special-tokens")
        self.assertEqual(list(data.tokens[:]).count(257 + 1), 3)
        # As other programs name roles and texts.
        turns = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}]}
        self.assertEqual(self.texts(self.chats("turns", [turns])), self.texts(self.chats("turns", [dialogue("Hi", "Yes")])))
        shown = self.alone("data", "inspect", "turns/train.h5", "--document=0", expect=DONE)
        self.assertIn("assistant\n\u27e6Yes<|im_end|>\u27e7\n", shown.text)
        shown = self.alone("data", "inspect", "turns/train.h5", expect=DONE)
        self.assertRegex(shown.text, r"documents   1\ncounted     4 tokens \(\d+\.\d %\)")

    def test_which_dialogues(self):
        """Repeated ones are left out, and some held out with what counts of them."""
        talks = [dialogue(f"Number {i % 40}?", f"It is {i % 40}.") for i in range(60)]
        self.write_lines("numbers.jsonl", [*talks, dialogue("Number 40?", "z" * 100), dialogue("Number 41?", "z" * 101)])
        said = self.alone(*self.arguments("numbers", "chatml", "--deduplicate", "--held-out=0.25", "--max-tokens=100"),
                          expect=DONE).text
        held_out = int(re.search(r"left out: 20 of 62 documents.*\nleft out: 2 of 62 documents.*\nheld out: (\d+) of 40", said)[1])
        train, test = (strata_reader.Dataset(self.directory / "numbers" / f"{split}.h5") for split in ("train", "test"))
        self.assertEqual(len(test.document_ends), held_out)
        self.assertEqual(len(train.document_ends), 40 - held_out)
        numbers = []
        for data in (train, test):
            text, counted = self.texts(data)
            asked, answered = re.findall(r"Number (\d+)\?", text), re.findall(r"It is (\d+)\.<\|im_end\|>", counted)
            self.assertEqual(asked, answered)
            self.assertEqual("".join(f"It is {number}.<|im_end|>" for number in asked), counted)
            self.assertEqual(asked, sorted(asked, key=int))
            numbers += asked
        self.assertEqual(sorted(numbers, key=int), [str(i) for i in range(40)])

    def test_too_long_dialogues(self):
        # Of 26 tokens, the last not learned; of two times 26 and 1; and one whose message ends behind more.
        talks = [dialogue("Hi", "Yes"), dialogue("Hi", "Yes", "Go?", "No."), dialogue("Hi", "x" * 80)]
        parts = ["<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "Yes<|im_end|>", "\n"]
        again = ["\n<|im_start|>user\nGo?<|im_end|>\n<|im_start|>assistant\n", "No.<|im_end|>", "\n"]
        rendered = [{"segments": [{"text": text, "label": i % 2 == 1} for i, text in enumerate(texts)]}
                    for texts in (parts, parts[:2] + again, [parts[0], "x" * 80 + "<|im_end|>", parts[2]])]
        cut, left = "cut: 1 of 3 documents, after", "left out: 1 of 3 documents, which have no whole message to learn"
        for most, more, ends, notes in (
                (30, (), [26, 51], [cut, left]), (26, (), [26, 51], [cut, left]), (25, (), [25, 50], ["cut: 2 of 3", left]),
                (52, (), [26, 78], [cut, left]), (53, (), [26, 79], [left]), (103, (), [26, 79, 182], []),
                (30, ("--too-long=leave-out",), [26], ["left out: 2 of 3 documents, which have more than 30 tokens"])):
            for template, objects in (("chatml", talks), ("rendered", rendered)):
                with self.subTest(most=most, more=more, template=template):
                    self.write_lines("long.jsonl", objects)
                    said = self.alone(*self.arguments("long", template, "--split=1.0", f"--max-tokens={most}", *more), expect=DONE)
                    data = strata_reader.Dataset(self.directory / "long")
                    self.assertEqual(list(data.document_ends), ends)
                    said = re.findall("^(?:cut|left out): .*", said.text, re.MULTILINE)
                    self.assertEqual([any(line.startswith(note) for note in notes) for line in said], [True] * len(notes))
                    counted = "Yes<|im_end|>" * min(len(ends), 2) + ("No.<|im_end|>" if most >= 52 else "")
                    self.assertTrue(self.texts(data)[1].startswith(counted))
        # Texts are compared after the cut. Of a message that is marked in two segments nothing is cut.
        talks = [dialogue("Hi", "Yes", "Go?", "No."), dialogue("Hi", "Yes", "Go?", "On.")]
        whole, cut = (self.chats("again", talks, "chatml", "--deduplicate", f"--max-tokens={most}") for most in (53, 52 - 1))
        self.assertEqual((list(whole.document_ends), list(cut.document_ends)), ([53, 106], [25]))
        marked = [{"segments": [{"text": parts[0], "label": False}, *({"text": text, "label": True} for text in ("Yes", "", "!"))]}]
        self.assertEqual(self.texts(self.chats("marked", marked, "rendered", "--max-tokens=25"))[1], "Yes!")
        self.write_lines("long.jsonl", rendered)
        self.assert_refused(self.alone(*self.arguments("long", "rendered", "--max-tokens=30", "--too-long=refuse")), DATA,
                            "long.jsonl:2", "53 tokens", "--max-tokens=30", "--too-long=cut")
        self.assert_refused(self.alone(*self.arguments("long", "rendered", "--max-tokens=9")), DATA, "no document is left")
        self.assert_refused(self.alone(*self.arguments("long", "rendered", "--too-long=cut")), USAGE, "--max-tokens")

    def test_a_models_own_template(self):
        (self.directory / "model/tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
        talks = [dialogue("Hi", "Yes", "And?", "No"), dialogue("A <b> & c", "D")]
        self.write_lines("own.jsonl", talks)
        made = subprocess.run([sys.executable, SCRIPTS / "strata_chat.py", self.directory / "model",
                               self.directory / "own.jsonl"], capture_output=True, text=True, check=False)
        if "jinja2 is missing" in made.stderr:
            self.skipTest("python3-jinja2 is not installed")
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        rendered = self.chats("rendered", made.stdout.splitlines(), "rendered")
        built_in = self.chats("own", talks)
        self.assertEqual(list(rendered.tokens[:]), list(built_in.tokens[:]))
        # The template's answer ends with a line feed, the built-in one's with the token before it.
        self.assertEqual(self.texts(rendered)[1].replace("\n", ""), self.texts(built_in)[1])
        # Wherever the template is, and whatever the locale's encoding.
        (self.directory / "model/tokenizer_config.json").rename(self.directory / "model/chat_template.json")
        self.write_lines("own.jsonl", [json.dumps(dialogue("Hi", "D\u00e9j\u00e0"))])
        again = subprocess.run([sys.executable, SCRIPTS / "strata_chat.py", self.directory / "model", self.directory / "own.jsonl"],
                               env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True, check=False)
        self.assertIn("D\u00e9j\u00e0<|im_end|>", again.stdout.decode())
        (self.directory / "model/chat_template.json").unlink()
        for directory, line, words in (("model", "{}", "has no chat template"), ("nowhere", "{}", "has no chat template")):
            self.write_lines("bad.jsonl", [line])
            made = subprocess.run([sys.executable, SCRIPTS / "strata_chat.py", self.directory / directory,
                                   self.directory / "bad.jsonl"], capture_output=True, text=True, check=False)
            self.assertEqual(made.returncode, 1)
            self.assertIn(words, made.stderr)

    def test_a_template_that_is_not_named(self):
        """The model's directory has it, or the import says what to do."""
        model = self.directory / "named"
        model.mkdir()
        (model / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
        talks = [dialogue("Hi", "Yes")]
        named = self.chats("by-name", talks)
        whole = ["data", "import", "--format=chat", "--tokenizer=named/tokenizer.json", "--files=by-name.jsonl", "--split=1.0",
                 "--output=found", "--overwrite"]
        self.assert_refused(self.alone(*whole), USAGE, "needs --template", "neither chat_template.jinja nor tokenizer_config.json in named")
        bytes_alone = ["--tokenizer=bytes" if one.startswith("--tokenizer") else one for one in whole]
        self.assert_refused(self.alone(*bytes_alone), USAGE, "needs --template", "no model's directory")
        (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
        said = self.alone(*whole, expect=DONE).text
        self.assertIn("template chatml, as in named/tokenizer_config.json", said)
        found = strata_reader.Dataset(self.directory / "found")
        self.assertEqual((list(found.tokens[:]), list(found.counts())), (list(named.tokens[:]), list(named.counts())))
        self.assertIn("template    chatml", self.alone("data", "inspect", "found/train.h5", expect=DONE).text)
        said = self.alone(*whole, "--template=phi3", expect=DONE).text
        self.assertIn("--template=phi3 is used, but named/tokenizer_config.json has the template chatml", said)
        # The file of its own comes first, and is not known.
        (model / "chat_template.jinja").write_text(CHATML + "{% if tools %}{{ tools }}{% endif %}")
        self.assert_refused(self.alone(*whole), USAGE, "named/chat_template.jinja is none of chatml, llama3", "like chatml, but uses tools",
                            "strata_chat.py named FILE.jsonl", "--template=rendered")
        self.assertNotIn("is used", self.alone(*whole, "--template=chatml", expect=DONE).text)
        # Sets of two templates are no mixture.
        self.chats("others", talks, "phi3")
        config = self.write_config("two.ini", harness.config_text(
            ["embedding 8", "head"], model={"context": 8}, data={"train": "found/train.h5, by-name/train.h5, others/train.h5"},
            batch={"global": 2}, train={"steps": 1}))
        self.assert_refused(self.train(config, (1, 1, 1), "two", expect=None), DATA, "found/train.h5 and others/train.h5 cannot be mixed",
                            "the template of dialogues is there chatml, phi3 here")

    def test_bad_dialogues(self):
        good = dialogue("Hi", "Yes")
        for bad, words in (
                (dialogue("Hi", "Yes", roles=("user", "wizard")), ['message 2 has the role "wizard"', "chatml knows system, user"]),
                (dialogue("Hi", "  "), ["message 2", "is empty"]),
                ({"messages": []}, ['"messages" is no list of at least one']),
                ({"messages": [{"role": "user"}]}, ['message 1 has no "content"']),
                ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, ['no "content"']),
                (dialogue("Hi", "  \n"), ["message 2", "is empty"]),
                ({"messages": [*good["messages"], {"role": "assistant", "content": None, "tool_calls": [{}]}]},
                 ["message 3 calls tools", "strata_chat.py"]),
                ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]}, ["message 1 calls tools"]),
                ({"messages": [{"role": "assistant", "content": "a", "function_call": {"name": "f"}}]}, ["message 1 calls tools"]),
                (dialogue("a", "b", "c", roles=("system", "system", "user")), ["message 2 is a second one of the system"]),
                (dialogue("a", "b", "c", "d", roles=("system", "user", "assistant", "system")), ["message 4 is a second one"]),
                (dialogue("Hi", "3", roles=("user", "tool")), ["message 2 is what a tool answers", "no message of the assistant"]),
                (dialogue("Hi", "2", "Hi", "3", "4", roles=("user", "assistant", "user", "tool", "tool")), ["message 4 is what a tool"]),
                ({"messages": [{"role": "user", "content": ["Hi"]}]}, ['no text as "content"']),
                ({"messages": ["Hi"]}, ["message 1 is no object"]),
                ({"text": "Hi"}, ['neither "messages" nor "conversations"']),
                ({**good, "tools": []}, ["strata_chat.py"]), ({**good, "system": "Be brief."}, ['"system" beside the messages']),
                ("[1]", ["no JSON object"]), ("{", ["bad.jsonl:3"])):
            with self.subTest(bad=bad):
                self.write_lines("bad.jsonl", [good, good, bad])
                self.assert_refused(self.alone(*self.arguments("bad", "chatml")), DATA, "bad.jsonl:3", *words)
        self.write_lines("bad.jsonl", [good])
        for template, more, code, words in (
                ("chat", (), USAGE, ["known are chatml, llama3"]),
                ("gemma", ("--roles=system",), USAGE, ['"system"', "gemma does not know"]),
                ("chatml", ("--roles=system", "--split=1.0"), DATA, ["none of the", "--roles"]),
                ("chatml", ("--split=0.5,0.5",), DATA, ["leaves nothing for the test split"]),
                ("chatml", ("--roles=assistant,wizard",), USAGE, ['"wizard"', "chatml does not know"])):
            with self.subTest(template=template, more=more):
                self.assert_refused(self.alone(*self.arguments("bad", template, *more)), code, *words)
        for empty in ([], ["", "  "]):
            self.write_lines("bad.jsonl", empty)
            self.assert_refused(self.alone(*self.arguments("bad", "chatml")), DATA, "bad.jsonl is empty")
        self.write_lines("bad.jsonl", [{"segments": [{"text": "a", "label": True}]}])
        self.assert_refused(self.alone(*self.arguments("bad", "rendered", "--split=1.0")), DATA, "all of the")
        self.write_lines("bad.jsonl", [{"segments": [{"text": "a"}]}])
        self.assert_refused(self.alone(*self.arguments("bad", "rendered")), DATA, "bad.jsonl:1", "segment 1")
        self.write_lines("bad.jsonl", [good])
        self.assert_refused(self.alone("data", "import", "--format=chat", "--tokenizer=bytes", "--template=chatml",
                                       "--files=bad.jsonl", "--output=bad"), DATA, "no token <|im_start|>")

    def generated(self, *arguments, said="", grid=None):
        """The standard output of strata generate, which reads `said`; with a grid on its ranks."""
        ranks = [harness.MPIRUN, "-n", str(harness.ranks_of(grid))] if grid else []
        grid = harness.grid_settings(grid)[1:] if grid else []
        done = subprocess.run([*ranks, harness.STRATA, "generate", "whole", "--temperature=0", *arguments, *grid], cwd=self.directory,
                              env={**os.environ, **harness.LAUNCH_ENVIRONMENT}, input=said if isinstance(said, bytes) else said.encode(),
                              capture_output=True, check=False, timeout=60 * harness.LENIENCE)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def answers_prompts_and_chats(self):
        lines = [{"id": 1, **dialogue("amber?")}, {"prompt": "<|im_start|>user\nbrook?<|im_end|>\n<|im_start|>assistant\n"},
                 dialogue("Say cedar!")]
        self.write_lines("prompts.jsonl", lines)
        given = ["--prompts=prompts.jsonl"]  # the run's checkpoints name the template
        answers = [{**line, "text": text, "tokens": len(text) + 1} for line, text in zip(lines, ("gold", "blue", "brown"))]
        code, spoken, said = self.generated(*given)
        self.assertEqual(code, DONE, said)
        self.assertEqual([json.loads(line) for line in spoken.splitlines()], answers)
        for grid, batch in ((None, 1), (None, 5), ((1, 2, 2), 2), ((4, 1, 1), 8)):
            code, spoken, said = self.generated(*given, "--output=answers.jsonl", "--samples=2", "--stop=l", f"--batch={batch}", grid=grid)
            self.assertEqual((code, spoken), (DONE, ""), said)
            self.assertEqual([json.loads(line)["text"] for line in (self.directory / "answers.jsonl").read_text().splitlines()],
                             ["go", "go", "b", "b", "brown", "brown"])
        # A dialogue goes on with the answers in it, and without the oldest ones where a quarter of the context would not stay free.
        for system in ("", "Hi"):
            asked, contents = ["amber?", "brook?", "Say dune!", "ember?"], [system] if system else []
            opening, roles = len(contents), [*(["system"] if system else []), *("user", "assistant") * 4]
            code, spoken, said = self.generated("--chat", "--tokens=40", *([f"--system={system}"] if system else []),
                                                said=f"{asked[0]}\n\n {asked[1]} \n{asked[2]}\n{asked[3]}")
            self.assertEqual(code, DONE, said)
            expected = ""
            for message in asked:
                contents.append(message)
                # A message has 4 tokens beside role and content; behind all of them is the begin of an answer.
                while sum(len(role + content) + 4 for role, content in zip(roles, contents)) + 11 > 96:
                    del contents[opening:opening + 2]
                self.write_lines("turn.jsonl", [dialogue(*contents, roles=roles)])
                answer = json.loads(self.generated("--prompts=turn.jsonl", "--template=chatml", "--tokens=40")[1])["text"]
                contents.append(answer)
                expected += answer + "\n"
            self.assertEqual(spoken, expected)
            self.assertNotIn("--template", said)
            self.assertTrue(system or expected.startswith("gold\n"), expected)
            for grid in ((1, 2, 2), (2, 1, 1)):  # the second replica answers nothing, and hears all
                talk = ["--chat", "--tokens=40", *([f"--system={system}"] if system else [])]
                on_grid = self.generated(*talk, said="\n".join(asked), grid=grid)
                self.assertEqual(on_grid[:2], (DONE, expected), on_grid)
                self.assertEqual(on_grid[2].count("the oldest messages are left out"), said.count("the oldest messages are left out"))
        self.assertEqual(self.generated("--chat", "--ranks=2", said="amber?\nbrook?")[:2], (DONE, "gold\nblue\n"))
        code, spoken, said = self.generated("--chat", "--ranks=2", "--parallel.tensor=64", said="amber?")
        self.assertEqual((code, spoken), (DONE, "gold\n"), said)
        self.assertIn("parallel.tensor = 64 does not fit these ranks", said)
        code, spoken, said = self.generated("--chat", said="amber?\n\udcff\n".encode(errors="surrogateescape"),
                                            grid=(1, 2, 1))
        self.assertEqual((code, spoken, said.count("strata: ")), (DATA, "gold\n", 1), said)
        self.assertIn("the message of the user is no UTF-8 text", said)
        code, spoken, said = self.generated("--chat", "--template=phi3", "--tokens=1", said="amber?\n")
        self.assertEqual(code, DONE, said)
        self.assertRegex(said, "--template=phi3 is used, but the model of .* learned the template chatml")
        for name, code, more, words in (
                ("wizard", DATA, {"messages": [{"role": "wizard", "content": "Hi"}]}, ['wizard.jsonl:4: message 1 has the role "wizard"']),
                ("long", USAGE, {"prompt": "a" * 129}, ["long.jsonl:4: the prompt has 129 tokens", "1 to 128", "shorten it"]),
                ("taken", DATA, {"prompt": "a", "text": "b"}, ['taken.jsonl:4: there is a "text"'])):
            self.write_lines(f"{name}.jsonl", [*lines, more])
            ended, spoken, said = self.generated(f"--prompts={name}.jsonl", "--template=chatml")
            self.assertEqual((ended, spoken, len(said.splitlines())), (code, "", 1), said)
            for word in words:
                self.assertIn(word, said)
        for code, words, arguments in (
                (USAGE, ["--output=prompts.jsonl is the file of --prompts"], [*given, "--output=prompts.jsonl"]),
                (USAGE, ["cannot write none/a.jsonl", "choose another --output"], [*given, "--output=none/a.jsonl"]),
                (USAGE, ["--chat and --batch exclude each other"], ["--chat", "--batch=2"]),
                (USAGE, ['--batch is "0", it must be a whole number from 1'], [*given, "--batch=0"]),
                (PEER, ["keys and values of 300,000,000 texts at once take", "are available; lower --batch (1 takes "],
                 [*given, "--samples=100000000", "--batch=1000000000"]),
                (USAGE, ["--system: message 1 has the role \"system\"", "gemma knows"], ["--chat", "--template=gemma", "--system=x"])):
            ended, spoken, said = self.generated(*arguments, said="Hi\n")
            self.assertEqual((ended, spoken), (code, ""), said)
            for word in words:
                self.assertIn(word, said)

    def test_a_model_learns_to_answer(self):
        names = list(COLOURS)
        talks = []
        for i in range(2000):
            name = names[i * 7 % len(names)]
            talks.append(dialogue(f"{name}?" if i % 3 else f"Say {name}{'!' * (i % 5)}", COLOURS[name]))
        self.write_lines("colours.jsonl", talks)
        self.alone(*self.arguments("colours", "chatml"), expect=DONE)
        config = self.write_config("chat.ini", harness.config_text(
            model={"preset": "llama", "blocks": 2, "width": 64, "heads": 4, "context": 128, "attention_mask": "document"},
            data="colours", batch={"global": 16, "micro": 4}, numerics={"lanes": 4, "shards": 2},
            optimizer={"kind": "adamw", "learning_rate": 0.004}, schedule={"kind": "cosine", "warmup_steps": 10, "decay_steps": 150},
            train={"steps": 150, "evaluate_every": 30, "metrics_every": 1}))
        packing = "--data.packing=best-fit"
        # Begun on one grid and ended on another; the tests of grids compare their bits.
        begun = self.train(config, (1, 2, 1), "whole", packing, "--train.steps=30")
        self.assertRegex(begun.text, r"documents in [\d,]+ samples of 128 tokens, \d\.\d % of them padding; "
                                     r"\d+\.\d % of its tokens count as targets")
        self.train(config, (1, 1, 1), "whole", packing, "--run.resume=must")
        losses = [float(record["loss"]) for record in self.records("whole", "train")]
        self.assertLess(losses[-1], 0.1 * losses[0])
        lines = (self.directory / "whole/metrics.jsonl").read_text().splitlines()
        shares = [record["counted_share_mean"] for record in map(json.loads, lines) if record["kind"] == "train"]
        self.assertTrue(0.05 < min(shares) <= max(shares) < 0.4, shares)
        self.assertLess(float(self.records("whole", "evaluate")[-1]["loss"]), 0.1 * losses[0])
        for name, colour in list(COLOURS.items())[:3]:
            answer = self.alone("generate", "whole", f"--prompt=<|im_start|>user\n{name}?<|im_end|>\n<|im_start|>assistant\n",
                                f"--tokens={len(colour) + 1}", "--temperature=0", expect=DONE)
            self.assertIn(f"{colour}<|im_end|>", answer.text)
        self.answers_prompts_and_chats()
        # Another packing is another run.
        self.assert_refused(self.train(config, (1, 1, 1), "whole", "--run.resume=auto", "--train.steps=160", expect=None),
                            USAGE, "data.packing", "best-fit")

    def test_a_published_model_is_tuned(self):
        """A Qwen3 comes in with its template, is tuned by adapters, killed and resumed on other grids, answers, and goes out."""
        names, colours = list(COLOURS), list(COLOURS.values())
        self.write_lines("qwen.jsonl", [dialogue(f"{names[i % 8]}?", colours[i % 8]) for i in range(800)])
        self.write_lines("other.jsonl", [dialogue(f"{names[i % 8]}?", colours[(i + 3) % 8]) for i in range(800)])
        for data in ("qwen", "other"):
            self.alone(*self.arguments(data, "chatml"), expect=DONE)
        options = "norm=rms_norm bias=off epsilon=1e-6"
        attention = f"attention 4 kv_heads=2 head_size=24 qk_norm=head rotary=10000 {options}"
        layers = ["embedding 64 name=embedding"]
        for block in range(2):
            layers += [f"{attention} name=blocks.{block}.attention", f"mlp 128 swiglu {options} name=blocks.{block}.mlp"]
        layers += ["rms_norm epsilon=1e-6 name=norm", "head name=head"]
        steps = {"steps": 100, "metrics_every": 1}
        config = self.write_config("qwen.ini", harness.config_text(
            layers, model={"context": 64}, data="qwen", batch={"global": 16, "micro": 2},
            numerics={"lanes": 2, "shards": 2}, optimizer={"kind": "adamw", "learning_rate": 0.004},
            schedule={"kind": "cosine", "warmup_steps": 10, "decay_steps": 100}, train=steps))
        self.train(config, (1, 1, 1), "base")
        self.alone("checkpoint", "export", "base", "--format=huggingface", "--output=published", expect=DONE)
        published = self.directory / "published"
        self.assertEqual(json.loads((published / "config.json").read_text())["model_type"], "qwen3")
        (published / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML, "eos_token": "<|im_end|>"}))
        self.alone("checkpoint", "import", "published", "--output=brought", expect=DONE)

        tune = ["train", "brought/config.ini", "--checkpoint.init=brought", "--run.dir=tuned", "--run.resume=auto", "--data.train=other/train.h5",
                "--data.test=other/test.h5", "--model.context=64", "--lora.rank=8", "--optimizer.kind=adamw",
                "--optimizer.learning_rate=0.01", "--batch.global=16", "--batch.micro=2", "--numerics.lanes=2",
                "--numerics.shards=2", "--train.steps=120", "--checkpoint.every=10", "--train.metrics_every=1"]
        job = self.start(8, *tune, "--parallel.data=2", "--parallel.pipeline=2", "--parallel.tensor=2")
        job.wait_until(lambda: len(harness.checkpoints(self.directory / "tuned")) > 2, 60)
        job.signal_all(signal.SIGKILL)
        job.wait(30)
        resumed = self.launch(3, *tune, "--parallel.pipeline=3", expect=DONE)
        self.assertIn("continuing after step", resumed.text)

        def answers(run):
            return [self.alone("generate", run, f"--prompt=<|im_start|>user\n{name}?<|im_end|>\n<|im_start|>assistant\n",
                               "--tokens=8", "--temperature=0", expect=DONE).text.rsplit("\n", 2)[0] for name in names[:3]]

        for answer, colour in zip(answers("tuned"), colours[3:]):
            self.assertTrue(answer.endswith(f"assistant\n{colour}"), answer)
        for how in ("merged", "apart"):
            check = ["--check-logits"] if how == "merged" else []
            self.alone("checkpoint", "export", "tuned", "--format=huggingface", f"--adapters={how}", f"--output={how}", *check,
                       expect=DONE)
        self.assertEqual((self.directory / "merged/tokenizer_config.json").read_text(),
                         (published / "tokenizer_config.json").read_text())
        adapters = json.loads((self.directory / "apart/adapter_config.json").read_text())
        self.assertEqual((adapters["peft_type"], adapters["r"]), ("LORA", 8))
        said = self.alone("checkpoint", "import", "merged", "--output=again", expect=DONE).text
        self.assertIn("chat template chatml, as in chat_template.jinja", said)
        written = [(self.directory / model / "chat_template.jinja").read_text() for model in ("published", "merged")]
        self.assertEqual(written[0], written[1])
        for run in ("tuned", "again"):  # neither names a template on the command line
            self.write_lines("ask.jsonl", [dialogue(f"{names[0]}?")])
            said = self.alone("generate", run, "--prompts=ask.jsonl", "--temperature=0", "--tokens=8", expect=DONE).text
            self.assertIn(f'"text":"{colours[3]}"', said.replace('": "', '":"'))
        self.assertEqual(answers("again"), answers("tuned"))


if __name__ == "__main__":
    harness.main()
