"""Conversations as tokens, moonstill's and those of transformers.

    python tests/reference/check_chat.py [--conversations N] [--seed S] [TEMPLATE.jinja...]

Random conversations go through the tokenizers beside the repository, each with its own template and
with those given (default: all of ../shared/data/templates), by moonstill's `chat:encode` and by
`apply_chat_template`. The ids must be equal; where the template marks what the model says, so must
the masks of assistant tokens be, but for tokens that transformers marks too much (see `differ`).
Thinking that a template does not write is left out (`thinking = "drop"`). What both refuse is
counted; what moonstill alone refuses is, with its reasons: no sample is learnt of which it is not
known where the answers are. MS_PROGRAM names the executable, default build/moonstill.
"""

import argparse
import collections
import glob
import json
import os
import random
import subprocess
import tempfile

import transformers
from transformers import PreTrainedTokenizerFast

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
DATA = os.path.join(ROOT, "..", "shared", "data")
PROGRAM = os.environ.get("MS_PROGRAM", os.path.join(ROOT, "build", "moonstill"))
TOKENIZERS = ["qwen3", "phi-3-mini", "mistral-v1-minueza-32m-chat"]
FOLDERS = ["trl", "axolotl", "llama.cpp", "mistral-common/chat_templates"]

OURS = """
local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local folder, template, path = arg[1], arg[2], arg[3]
local chat = ms.chat.open(folder, nil, { template = template ~= '' and template or nil })
local all = chat:with { spelled = 'tokens' }
local less = all:with { thinking = 'drop' }
for _, row in json.lines(path, { ordered = true }) do
  local ok, ids, n, weights = pcall(all.encode, all, row)
  if not ok and ids:find 'thinking = drop' then ok, ids, n, weights = pcall(less.encode, less, row) end
  local out = { error = not ok and tostring(ids) or nil, marked = all.set:choose(row.tools).compiled.has_generation }
  if ok then
    out.ids, out.mask = json.array(), json.array()
    for i = 1, n do out.ids[i], out.mask[i] = ids[i - 1], i > 1 and weights[i - 2] or 0 end
  end
  print(json.encode(out))
end
"""

WORDS = ["Hi", "What is 12*34?", "one\ntwo\n\nthree", "  spaces  ", "Grüße, 日本 👍🏽", "if a < b: print('x')",
         "<b>bold</b>", "{{ not a template }}", "a\n", "\n\nb", "The answer is 408.", "…", "\u00a0x", "tab\tx",
         "[INST] x", "### Response:", "long " * 40]
SPELLED = ["<|im_start|>", "<s>", "<|endoftext|> x", "a<|user|>b"]
THOUGHTS = ["Hm.", "Let me see.\nTwo, then.", "12*34 = 408"]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}}}]


def conversation(r):
    def text():
        return " ".join(r.choice(WORDS + SPELLED if r.random() < 0.1 else WORDS) for _ in range(r.randint(1, 3)))

    messages = [{"role": "system", "content": text()}] if r.random() < 0.4 else []
    row = {"messages": messages}
    tools = r.random() < 0.15
    for _ in range(r.randint(1, 4)):
        messages.append({"role": "user", "content": text()})
        if tools and r.random() < 0.5:
            messages.append({"role": "assistant", "content": "", "tool_calls": [
                {"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": {"a": r.randint(0, 9)}}}]})
            messages.append({"role": "tool", "tool_call_id": "abcdefghi", "name": "add", "content": text()})
        answer = {"role": "assistant", "content": text()}
        if r.random() < 0.2:
            answer["reasoning_content"] = r.choice(THOUGHTS)
        messages.append(answer)
    if tools:
        row["tools"] = TOOLS
    return row


def theirs(tok, row, template):
    try:
        out = tok.apply_chat_template(row["messages"], tools=row.get("tools"), chat_template=template, tokenize=True,
                                      return_dict=True, return_assistant_tokens_mask=True)
    except Exception as error:  # whatever a template raises
        return None, None, str(error)
    return out["input_ids"], out["assistant_masks"], None


def ours(folder, template, path, script):
    run = subprocess.run([PROGRAM, script, folder, template or "", path], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr)
    return [json.loads(line) for line in run.stdout.splitlines()]


def differ(got, want, ids, taking):
    """Whether masks differ in more than what transformers marks too much: a token around an empty block, and one that
    has taken the spaces with which a content begins."""
    return any(g > w or (g < w and want[i - 1] and ids[i] not in taking) for i, (g, w) in enumerate(zip(got, want)))


def compare(name, rows, got, want, reasons, taking):
    counts = collections.Counter()
    for row, g, (ids, mask, error) in zip(rows, got, want):
        if error or "error" in g:
            kind = "both refuse" if error and "error" in g else "transformers refuses" if error else "moonstill refuses"
            if kind == "moonstill refuses":
                reasons[(name, g["error"].split(": ", 1)[-1][:110])] += 1
        elif g["ids"] != ids:
            kind = "IDS DIFFER"
        elif g["marked"] and differ([int(w > 0) for w in g["mask"]], [0] + mask[1:], ids, taking):
            kind = "MASKS DIFFER"
        else:
            kind = "equal, masks too" if g["marked"] else "equal"
        if kind.isupper() and not counts[kind]:
            print(json.dumps(row, ensure_ascii=False))
        counts[kind] += 1
    print(name, dict(counts), flush=True)
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--conversations", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("templates", nargs="*")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    r = random.Random(options.seed)
    rows = [conversation(r) for _ in range(options.conversations)]
    paths = options.templates or sorted(
        path for folder in FOLDERS for path in glob.glob(os.path.join(DATA, "templates", folder, "*.jinja")))
    total, reasons = collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as work:
        script, data = os.path.join(work, "ours.lua"), os.path.join(work, "rows.jsonl")
        with open(script, "w") as f:
            f.write(OURS)
        with open(data, "w") as f:
            f.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        for name in TOKENIZERS:
            folder = os.path.join(DATA, "tokenizers", name)
            tok = PreTrainedTokenizerFast.from_pretrained(folder)
            taking = {i for i, token in tok.added_tokens_decoder.items() if token.rstrip}
            for path in [None] + paths:
                template = open(path, newline="").read() if path else None
                label = "%s with %s" % (name, os.path.relpath(path, DATA) if path else "its own template")
                try:
                    got = ours(folder, path, data, script)
                except RuntimeError as error:
                    print(label, "NOT READ", error)
                    total["NOT READ"] += 1
                    continue
                want = [theirs(tok, row, template) for row in rows]
                total += compare(label, rows, got, want, reasons, taking)
    for (name, reason), count in sorted(reasons.items()):
        print("  %s: %d: %s" % (name, count, reason))
    print(dict(total))
    raise SystemExit(any(kind.isupper() for kind in total))


main()
