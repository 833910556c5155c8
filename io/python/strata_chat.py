#!/usr/bin/env python3
"""Renders dialogues with a model's own chat template for strata data import --format=chat --template=rendered.

Usage: strata_chat.py MODEL_DIRECTORY [FILE.jsonl ...] > rendered.jsonl

MODEL_DIRECTORY holds chat_template.jinja, else chat_template.json or tokenizer_config.json with a chat_template. Each line of the files, or of
standard input, is an object with "messages", and may have "tools", which the template is given; or a pair of answers,
"chosen" and "rejected", texts or lists of such messages, with their "prompt". Each line written has "segments", or for each answer a list, of
"text" and "label": true for what the model is to say, the messages of --roles (default assistant) with
what ends them. That is what a message adds to the template's text of the messages before it and its prompt for an answer.
Needs the Python package jinja2 (Debian: python3-jinja2).
"""

import argparse
import json
import pathlib
import sys


class ChatError(Exception):
    """What is wrong with a model's directory or a dialogue."""


def special_tokens(config):
    """The texts that a template knows by name, as bos_token."""
    found = {}
    for name, value in config.items():
        if name.endswith("_token") and value is not None:
            found[name] = value["content"] if isinstance(value, dict) else value
    return found


def template_of(directory):
    """The template of a model's directory, as a function of messages, tools and add_generation_prompt."""
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ChatError("the Python package jinja2 is missing; install python3-jinja2") from error
    directory = pathlib.Path(directory)
    configs = []
    for path in (directory / "chat_template.json", directory / "tokenizer_config.json"):
        configs.append(json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {})
    source = next((config["chat_template"] for config in configs if config.get("chat_template")), None)
    if (directory / "chat_template.jinja").is_file():
        source = (directory / "chat_template.jinja").read_text(encoding="utf-8")
    if isinstance(source, list):  # of several, by name
        source = {one["name"]: one["template"] for one in source}.get("default")
    if not source:
        raise ChatError(f"{directory} has no chat template, neither chat_template.jinja nor in chat_template.json or "
                        "tokenizer_config.json")

    def refuse(message):
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise ChatError(f"the chat template of {directory} is not understood: {error}") from error
    known = special_tokens(configs[-1])

    def render(messages, tools, prompt):
        try:
            return template.render(messages=messages, tools=tools, add_generation_prompt=prompt, **known)
        except (TemplateError, TypeError) as error:
            raise ChatError(f"the template refuses it: {error}") from error

    return render


def segments_of(render, dialogue, roles):
    """The rendered dialogue in parts; those to learn are what a message of `roles` adds behind the prompt for it."""
    if not isinstance(dialogue, dict) or not isinstance(dialogue.get("messages"), list):
        raise ChatError('the line is no object with a list of "messages"')
    messages, tools = dialogue["messages"], dialogue.get("tools")
    if not all(isinstance(message, dict) for message in messages):
        raise ChatError("a message is no object with a role")
    whole = render(messages, tools, False)
    segments, done = [], 0
    for number, message in enumerate(messages):
        if message.get("role") not in roles:
            continue
        before = render(messages[:number], tools, True) if number else ""
        after = render(messages[:number + 1], tools, False)
        if not (whole.startswith(before) and whole.startswith(after) and done <= len(before) < len(after)):
            raise ChatError(f"what the template writes for message {number + 1} depends on later ones, so that it is not "
                            "known where the answer begins; learn the last one alone, as a dialogue for each answer")
        segments += [{"text": whole[done:len(before)], "label": False}, {"text": after[len(before):], "label": True}]
        done = len(after)
    segments.append({"text": whole[done:], "label": False})
    return [segment for segment in segments if segment["text"]]


def answer_of(pair, which):
    """The dialogue of a pair's answer: the prompt and a text or messages of the assistant, or all messages."""
    answer, prompt = pair[which], pair.get("prompt")
    messages = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
    if not isinstance(messages, list) or not messages:
        raise ChatError(f'"{which}" is neither a text nor a list of messages')
    if isinstance(messages[0], dict) and messages[0].get("role") == "assistant":
        before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if not isinstance(before, list) or not before:
            raise ChatError(f'"{which}" is an answer without a "prompt", a text or a list of messages before it')
        messages = before + messages
    return {"messages": messages, "tools": pair.get("tools")}


def rendered(render, line, roles):
    """What is written for a line."""
    if isinstance(line, dict) and ("chosen" in line or "rejected" in line):
        if missing := {"chosen", "rejected"} - set(line):
            raise ChatError(f'there is no "{missing.pop()}"; a pair has both answers')
        return {which: segments_of(render, answer_of(line, which), roles) for which in ("chosen", "rejected")}
    return {"segments": segments_of(render, line, roles)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--roles", default="assistant", help="with commas between them")
    options = parser.parse_args()
    place = options.directory
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        render = template_of(options.directory)
        for path in options.files or ["-"]:
            with open(0 if path == "-" else path, encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    place = f"{path}:{number}"
                    if line.strip():
                        print(json.dumps(rendered(render, json.loads(line), options.roles.split(",")), ensure_ascii=False))
    except (ChatError, ValueError, OSError) as error:
        sys.exit(f"strata_chat.py: {place}: {error}")


if __name__ == "__main__":
    main()
