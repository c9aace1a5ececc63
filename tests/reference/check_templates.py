#!/usr/bin/env python3
"""Chat templates rendered by moonstill and by Jinja2 as transformers sets it up: the same texts, the
same generation marks, and errors in the same places.

    python tests/reference/check_templates.py [--count 2000] [--seed 1] [--only PATTERN] [--show 3]

Every template of the data beside the repository is rendered with `--count` conversations made at
random: roles in and out of order, tools, calls with nested arguments, floats like 1.0, integers beyond
2^53, texts of all scripts, empty and of many lines, reasoning, lists of parts, null contents, special
tokens and HTML spelled out. `--only` takes templates whose name matches. Then `--expressions` (default
3000) templates of a few random expressions each. Needs the executable (MS_BUILD, default build)."""
import argparse
import collections
import copy
import datetime
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import zlib

import jinja2
import transformers
from random_chats import Chats
from random_jinja import VARIABLES, Expressions
from transformers.utils import chat_template_utils as hf

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(ROOT, os.environ.get("MS_BUILD", "build"), "moonstill")
DATA = os.path.join(os.environ.get("MS_SHARED", os.path.join(ROOT, "..", "shared")), "data", "templates")

# Renders each template with each set of variables. Answers: "text BYTES OFFSETS...", "error BYTES",
# and the bytes.
SCRIPT = """
local jinja = require 'moonstill.jinja.jinja'
local json = require 'moonstill.base.json'
local now = { year = 2025, month = 7, day = 10, hour = 12, min = 0, sec = 0 }
local sets = {}
for _, value in json.lines(arg[2], { ordered = true }) do sets[#sets + 1] = value end
local function answer(kind, bytes, marks)
  io.write(kind, ' ', #bytes, marks or '', '\\n', bytes)
end
for _, job in json.lines(arg[1]) do
  local ok, template = pcall(jinja.compile, job.source, 't')
  for i = job.one or 1, job.one or #sets do
    local fine, text, _, marks = ok, template, nil, nil
    if ok then fine, text, _, marks = pcall(template.render, template, sets[i], { now = now }) end
    if fine then
      for k = 1, #(marks or {}) do marks[k] = ' ' .. marks[k] end
      answer('text', text, marks and table.concat(marks) or ' none')
    else
      answer('error', tostring(text))
    end
  end
end
"""


# The conversations of the fixture, a line each.
FIXED = """
local conversations = require 'tests.support.conversations'
local json = require 'moonstill.base.json'
for n = 1, tonumber(arg[1]) do io.write(json.encode(conversations.fixed(n)), '\\n') end
"""
FIXTURE = os.path.join(ROOT, "tests", "fixtures", "templates.json")


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 7, 10, 12, 0, 0)


hf.datetime = Frozen


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def templates():
    """Every chat template of the data once: name to source."""
    found = {}

    def add(name, source):
        if source not in found.values():
            found[name] = source

    def values(path):
        with open(os.path.join(DATA, path), encoding="utf-8") as f:
            return json.load(f)

    for path in sorted(glob.glob(DATA + "/**/*.jinja", recursive=True)):
        add(os.path.relpath(path, DATA), read(path))
    for path in sorted(glob.glob(DATA + "/tokenizer-configs/*/tokenizer_config.json")):
        if "chat_template" in (config := values(path)):
            add(os.path.relpath(path, DATA), config["chat_template"])
    for case in values("hf-jinja/e2e_cases.json")["cases"]:
        add("hf-jinja e2e " + case["name"], case["chat_template"])
    for case in values("llama.cpp/test-chat-template.json")["cases"]:
        add("llama.cpp " + case["name"], case["template_str"])
    for name, group in values("neural-api/chat_template_cases.json").items():
        add("neural-api " + name, group["template"])
    return found


# comparison ---------------------------------------------------------------------------------------

# What Python prints of objects is its own business; what moonstill refuses by design is no difference.
# It gives no marks where they stand in a text that is put together first: Jinja2's are wrong there.
ADDRESS = re.compile(rb"\bat 0x[0-9a-f]+|<built-in method|<function [a-z]|<class |<bound method|<Macro |<LoopContext|<Namespace")
# A slice of a constant that has none is undefined in Jinja2, though one of a variable is an error.
REFUSED = re.compile(rb"beyond 64 bits|a negative number to a fractional power|is not subscriptable|type: 'slice'")


class TooLong(Exception):
    pass


def alarm(*_):
    raise TooLong("a minute is over")


def reference(source, variables):
    """("text", text, flat byte offsets) or ("error", exception)."""
    try:
        template = hf._compile_jinja_template(source)
        blocks, marks = [], []
        with template.environment.activate_tracker(blocks, marks):
            # a copy: some filters change what they are given
            for block in template.generate(**copy.deepcopy(variables)):
                blocks.append(block)
        text = "".join(blocks)
        encoded = text.encode()
        flat = [len(text[:at].encode()) for mark in marks for at in mark]
        return "text", encoded, flat
    except (TooLong, KeyboardInterrupt):
        raise
    except Exception as e:
        return "error", e, None


class Ours:
    """The answers of moonstill, in the order of the jobs."""

    def __init__(self, jobs, sets, folder):
        paths = [os.path.join(folder, name) for name in ("jobs.jsonl", "sets.jsonl", "check.lua")]
        for path, lines in ((paths[0], jobs), (paths[1], sets)):
            with open(path, "w", encoding="utf-8") as f:
                f.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        with open(paths[2], "w") as f:
            f.write(SCRIPT)
        command = [PROGRAM, paths[2], paths[0], paths[1]]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)

    def next(self):
        head = self.process.stdout.readline().split()
        if not head:
            sys.exit(f"moonstill ended with status {self.process.wait()}")
        marks = None if head[2:] == [b"none"] else [int(x) for x in head[2:]]
        return head[0].decode(), self.process.stdout.read(int(head[1])), marks


def differs(want, got):
    """What is wrong with an answer, in words, or None."""
    if want[0] == "error":
        if got[0] != "error":
            return "no error"
        said = str(want[1])
        raised = type(want[1]) is jinja2.exceptions.TemplateError
        if raised and said.encode() not in got[1]:
            return "another message"
        if not re.match(rb"t: line \d+, column \d+: ", got[1]):
            return "an error without a place"
        return None
    if got[0] == "error":
        return "an error"
    if got[1] != want[1]:
        return "another text"
    return None if got[2] in (want[2], None) else "other marks"


def around(text, other):
    """The place where two texts part."""
    at = next((i for i, (a, b) in enumerate(zip(text, other)) if a != b), min(len(text), len(other)))
    return repr(text[max(0, at - 60):at + 60].decode(errors="replace"))


def explain(name, source, variables, want, got, why):
    print(f"-- {name}: {why}")
    if want[0] == "error":
        print(f"   Jinja2:    {type(want[1]).__name__}: {want[1]}"[:300])
    else:
        print("   Jinja2:   ", around(want[1], got[1] if got[0] == "text" else b""), want[2] if why == "other marks" else "")
    print("   moonstill:", got[1].decode(errors="replace")[:300] if got[0] == "error"
          else around(got[1], want[1] if want[0] == "text" else b""), got[2] if why == "other marks" else "")
    if os.environ.get("MS_KEEP"):
        with open(os.environ["MS_KEEP"], "a", encoding="utf-8") as f:
            f.write(json.dumps({"name": name, "source": source, "variables": variables, "why": why}) + "\n")


def compare(title, cases, ours, show):
    """cases: (name, source, variables). Counts, prints the first differences of each name."""
    counts, shown = collections.Counter(), collections.Counter()
    for name, source, variables in cases:
        want = reference(source, variables)
        got = ours.next()
        if want[0] == "text" and (ADDRESS.search(want[1]) or got[0] == "error" and REFUSED.search(got[1])):
            counts["not compared"] += 1
            continue
        why = differs(want, got)
        counts["same errors" if want[0] == "error" else "same texts"] += not why
        counts["with marks"] += not why and bool(want[2]) and bool(got[2])
        counts["without marks, said so"] += want[0] == got[0] == "text" and bool(want[2]) and got[2] is None
        if why:
            counts[why] += 1
            shown[name] += 1
            if shown[name] <= show:
                explain(name, source, variables, want, got, why)
    wrong = sum(shown.values())
    print(f"{title}:", ", ".join(f"{n} {what}" for what, n in counts.items() if n))
    for name, n in shown.most_common():
        print(f"   {n:6d} {name}")
    return len(shown), wrong


def write_fixture(count):
    """What the specs compare with where no Jinja2 is: of each text its length and CRC-32, of an error 0."""
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "fixed.lua")
        with open(script, "w") as f:
            f.write(FIXED)
        env = {**os.environ, "LUA_PATH": f"{ROOT}/?.lua;{ROOT}/lua/?.lua;{ROOT}/lua/?/init.lua;;"}
        lines = subprocess.run([PROGRAM, script, str(count)], check=True, stdout=subprocess.PIPE, env=env).stdout
    sets = [json.loads(line) for line in lines.decode().split("\n")[:-1]]
    found = {}
    for name, source in sorted(templates().items()):
        answers = [reference(source, v) for v in sets]
        found[name] = [f"{len(a[1])} {zlib.crc32(a[1]):08x} {' '.join(map(str, a[2]))}".rstrip() if a[0] == "text" else 0
                       for a in answers]
    with open(FIXTURE, "w", encoding="utf-8") as f:
        lines = (f"{json.dumps(name)}: {json.dumps(answers)}" for name, answers in found.items())
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{FIXTURE}: {len(found)} templates, {count} conversations")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--expressions", type=int, default=3000)
    parser.add_argument("--show", type=int, default=3)
    parser.add_argument("--fixture", type=int, default=0, help="write tests/fixtures/templates.json and end")
    options = parser.parse_args()
    if options.fixture:
        return write_fixture(options.fixture)
    print(f"Jinja2 {jinja2.__version__}, transformers {transformers.__version__}")
    signal.signal(signal.SIGALRM, alarm)
    chosen = {n: s for n, s in templates().items() if re.search(options.only, n)}
    maker = Chats(options.seed)
    sets = [maker.variables() for _ in range(options.count)]
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours([{"source": s} for s in chosen.values()], sets, folder)
        cases = ((n, s, v) for n, s in chosen.items() for v in sets)
        bad, wrong = compare(f"{len(chosen)} templates, {len(sets)} conversations each", cases, ours, options.show)
        expressions = Expressions(options.seed)
        texts = [expressions.template() for _ in range(options.expressions)]
        ours = Ours([{"source": s} for s in texts], [VARIABLES], folder)
        _, more = compare(f"{len(texts)} random templates", ((s, s, VARIABLES) for s in texts), ours, options.show)
    bad += more > 0  # the random templates are one test
    print(f"{len(chosen) + 1 - bad} passed, {bad} failed, 0 skipped")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
