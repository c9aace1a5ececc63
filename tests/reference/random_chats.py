"""Conversations made at random, for check_templates.py."""
import json
import random

WORDS = ("the sun Paris 22 degrees it's \"quoted\" 'single' a\\b <b>bold</b> &amp; & 5>3 {{ braces }} {% raw %} "
         "caf\u00e9 stra\u00dfe \u0130stanbul \u01c6 \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \u0416\u0443\u043a "
         "\U0001f999 e\u0301 \u2028 \u200b \u00a0 100% %s 1.0 null None true x=1, [1,2] /path </s> <s> <|im_end|> "
         "<|im_start|> <|eot_id|> <think> </think> [INST] [/INST] <tool_call> <|end|> <end_of_turn> ##").split(" ")
SPACE = [" ", " ", " ", " ", "\n", "\n\n", "  ", "\t", "\r\n", "\u3000", " \n ", "\x1f", "\u0085"]
KEYS = ["location", "unit", "a", "b", "x y", "Zebra", "apple", "k\u00e9y", "10", "nested", "items", "description", "type",
        "name", "<k>"]
THOUGHTS = ["<think>\n{}\n</think>\n\n{}", "<think>{}</think>{}", "{}</think>{}", "<think>\n\n</think>\n\n{}{}",
            "<thinking>{}</thinking>{}", "<think>{}{}"]
FLAGS = ["enable_thinking", "add_vision_id", "preserve_thinking", "truncate_history_thinking", "low_effort",
         "medium_effort", "continue_final_message", "keep_past_thinking", "clear_thinking", "skip_think", "thinking",
         "tools_in_user_message", "regen_tool_call_ids", "enable_citations", "USE_DEFAULT_PROMPT", "skip_thinking"]


class Chats:
    """Variables of a rendering, each set unlike the others."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def chance(self, p):
        return self.r.random() < p

    def text(self):
        r = self.r
        if self.chance(0.06):
            return r.choice(["", " ", "\n", " \n\t", "\u00a0", "0", "x"])
        parts = []
        for _ in range(r.choice([1, 2, 3, 5, 8, 15])):
            parts += [r.choice(WORDS), r.choice(SPACE)]
        if self.chance(0.7):
            parts.pop()
        return ("\n" if self.chance(0.1) else "") + "".join(parts)

    def number(self):
        r = self.r
        return r.choice([0, 1, -1, 7, 1.0, -0.0, 0.1, 2.5, 1e16, 1e15, 1.5e-7, 123456.789, 1e22, 1e300, 5e-324, 3.0, 100.0,
                         2**53, 2**53 + 1, -2**53 - 1, 2**63 - 1, -2**63, r.randint(-10**18, 10**18), r.random(),
                         r.uniform(-1e6, 1e6), 10.0**r.randint(-12, 25), 1e-5, 0.0001])

    def value(self, depth=0):
        r = self.r
        kind = r.random()
        if kind < 0.4:
            return self.text()
        if kind < 0.6:
            return self.number()
        if kind < 0.7:
            return r.choice([True, False, None])
        if depth > 2:
            return r.choice([[], {}, ""])
        if kind < 0.85:
            return [self.value(depth + 1) for _ in range(r.randint(0, 3))]
        return self.object(depth + 1)

    def object(self, depth=0):
        return {self.r.choice(KEYS): self.value(depth) for _ in range(self.r.randint(0, 4))}

    def schema(self, depth=0):
        r = self.r
        kind = r.choice(["string", "integer", "number", "boolean", "array", "object", ["string", "null"]])
        s = {"type": kind}
        if self.chance(0.7):
            s["description"] = self.text()
        if self.chance(0.2):
            s["enum"] = [self.text() for _ in range(r.randint(1, 3))]
        if self.chance(0.1):
            s["default"] = self.value(2)
        if self.chance(0.1):
            s["nullable"] = self.chance(0.5)
        if kind == "array" and depth < 2:
            s["items"] = self.schema(depth + 1)
        if kind == "object" and depth < 2:
            s["properties"] = {k: self.schema(depth + 1) for k in r.sample(KEYS, r.randint(0, 3))}
            if self.chance(0.5):
                s["required"] = list(s["properties"])[:1]
        if self.chance(0.1):
            s["anyOf"] = [{"type": "string"}, {"type": "null"}]
        return s

    def tool(self):
        r = self.r
        f = {"name": r.choice(["get_weather", "multiply", "brave_search", "code_interpreter", "f<x>"]),
             "description": self.text()}
        if self.chance(0.9):
            properties = {k: self.schema() for k in r.sample(KEYS, r.randint(0, 4))}
            f["parameters"] = {"type": "object", "properties": properties}
            if self.chance(0.7):
                f["parameters"]["required"] = [k for k in properties if self.chance(0.5)]
            if self.chance(0.2):
                f["parameters"]["additionalProperties"] = False
        if self.other_tools:  # as Command-R has them
            f["parameter_definitions"] = {k: {"description": self.text(), "type": "str", "required": self.chance(0.5)}
                                          for k in r.sample(KEYS, r.randint(0, 2))}
            return f
        if self.chance(0.1):
            f["return"] = self.schema()
        if self.chance(0.1):
            f["strict"] = True
        return {"type": "function", "function": f} if self.chance(0.93) else f

    def call(self):
        r = self.r
        arguments = self.object()
        if self.chance(0.15):
            arguments = json.dumps(arguments)
        call = {"function": {"name": r.choice(["get_weather", "multiply", "f<x>"]), "arguments": arguments}}
        if self.chance(0.8):
            call = {"type": "function", **call}
        if self.chance(0.5):
            call["id"] = r.choice(["123456789", "call_abc", "abcdefghi", "a1b2c3d4e"])
        return call if self.chance(0.95) else call["function"]

    def content(self, role):
        kind = self.r.random()
        if kind < 0.75 and self.style == "mixed" or self.style in ("texts", "strict"):
            return self.text()
        if self.style == "parts":
            return [{"type": "text", "text": self.text()} for _ in range(self.r.choice([1, 1, 1, 2, 3]))]
        if kind < 0.8:
            return None
        if kind < 0.98:
            return [self.part(role) for _ in range(self.r.randint(0, 3))]
        return self.r.choice([self.number(), True, self.object(1), [self.text()]])

    def part(self, role):
        kind = self.r.random()
        if kind < 0.8 or role == "assistant":
            return {"type": "text", "text": self.text()}
        return self.r.choice([{"type": "image"}, {"type": "image", "image": "x.png"}, {"type": "video"},
                              {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "content": self.text()},
                              {"text": self.text()}, {"type": "audio"}])

    def assistant(self, tools):
        r = self.r
        m = {"role": "assistant", "content": self.content("assistant")}
        if self.chance(0.2) and self.style != "parts":
            m["content"] = r.choice(THOUGHTS).format(self.text(), self.text())
        if self.chance(0.2):
            m[r.choice(["reasoning_content", "reasoning_content", "thinking", "reasoning", "tool_plan"])] = \
                self.text() if self.chance(0.9) else None
        if self.chance(0.5 if tools else 0.08) and self.style != "strict":
            m["tool_calls"] = [self.call() for _ in range(r.choice([1, 1, 1, 2, 3, 0]))]
            if self.chance(0.6):
                m["content"] = "" if self.style == "texts" else r.choice([None, ""])
            if self.chance(0.2) and self.style != "texts":
                del m["content"]
        elif self.chance(0.05):
            m["tool_calls"] = None
        return m

    def result(self, call):
        m = {"role": self.r.choice(["tool", "tool", "tool", "function", "ipython"]), "content": self.content("tool")}
        function = call.get("function", call)
        if self.chance(0.7):
            m["name"] = function.get("name", "f")
        if self.chance(0.7):
            m["tool_call_id"] = call.get("id", "123456789")
        if self.chance(0.2):
            m["content"] = json.dumps(self.object())
        if self.chance(0.1):
            m["content"] = str(self.number())
        return m

    def messages(self, tools):
        r = self.r
        if self.chance(0.12):  # anything in any order
            return [{"role": r.choice(["system", "user", "assistant", "tool", "developer", "critic"]),
                     "content": self.content("x")} for _ in range(r.randint(0, 5))]
        list_ = []
        strict = self.style == "strict"  # user and assistant in turn
        if self.chance(0.04):
            list_.append({"role": "functions", "content": json.dumps([self.tool()])})
        elif not strict and self.chance(0.45):
            list_.append({"role": "system" if self.chance(0.93) else "developer", "content": self.content("system")})
        for _ in range(r.choice([1, 1, 2, 2, 3, 4])):
            list_.append({"role": "user", "content": self.content("user")})
            if not strict and self.chance(0.05):
                list_.append({"role": "user", "content": self.content("user")})
            answer = self.assistant(tools)
            list_.append(answer)
            calls = answer.get("tool_calls")
            if calls and self.chance(0.9):
                list_ += [self.result(c) for c in calls]
                if self.chance(0.8):
                    list_.append(self.assistant(False))
        if self.chance(0.3):
            list_.append({"role": "user", "content": self.content("user")})
        if self.chance(0.03):
            del r.choice(list_)["role"]
        return list_

    def variables(self):
        r = self.r
        self.style = r.choice(["strict", "texts", "texts", "parts", "mixed"])
        self.other_tools = self.chance(0.1)
        tools = [self.tool() for _ in range(r.randint(1, 3))] if self.chance(0.4) else None
        v = {"messages": self.messages(tools), "add_generation_prompt": self.chance(0.5)}
        if tools or self.chance(0.8):
            v["tools"] = tools if self.chance(0.95) else []
        if self.chance(0.7):
            v["documents"] = None
        if self.chance(0.06):
            v["documents"] = [{"title": self.text(), "text": self.text()} for _ in range(r.randint(0, 2))]
        v.update(r.choice([{"bos_token": "<s>", "eos_token": "</s>"}, {"bos_token": "<s>", "eos_token": "</s>"}, {"bos_token": "", "eos_token": "<|im_end|>"},
                           {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}, {"eos_token": "</s>"},
                           {"bos_token": None, "eos_token": "</s>", "unk_token": None}]))
        for flag in FLAGS:
            if self.chance(0.12):
                v[flag] = r.choice([True, False, False, None])
        for name, p in (("date_string", 0.2), ("custom_instructions", 0.05), ("developer_preamble", 0.05), ("today", 0.05)):
            if self.chance(p):
                v[name] = self.text()
        if self.chance(0.1):
            v["functions"] = r.choice([json.dumps(self.tool()), [self.tool()]])
        if self.chance(0.1):
            v["reasoning_effort"] = r.choice(["low", "high", "none"])
        if self.chance(0.1):
            v[r.choice(["reasoning_mode", "safety_mode"])] = r.choice(["/think", "/no_think", "NONE", "STRICT", None])
        if self.chance(0.05):
            v["builtin_tools"] = ["brave_search", "code_interpreter"]
        if self.chance(0.05):
            v["additional_special_tokens"] = ["<|a|>", "<|b|>", "<|c|>", "<|d|>", "<|e|>", "<|f|>"]
        if self.chance(0.05):
            v["response_format"] = {"type": "json_object", "schema": self.schema()}
        return v
