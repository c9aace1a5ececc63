"""One step of distillation in moonstill and in PyTorch with transformers, interleaved in one run.

    python tests/bench/pytorch.py [--steps 3] [--batch 8] [--threads 2] [--folder DIR]

GSM8K in data order with GPT-2's tokenizer; a student of SmolLM2-135M's shape and a teacher of
SmolLM2-360M's, random weights, f32; 0.5 CE + 0.5 forward KL over the whole vocabulary at T = 2; AdamW
with clipping. Three processes do the same work in turn:

  a          the loop people run: padded batches, logits of all positions
  b          that loop made as good as it gets: packed, supervised rows only, loss in chunks,
             attention by segment, fused AdamW
  moonstill  tests/bench/pytorch.lua

Every loop gets one step to warm up; its loss is compared. Real tokens are counted, never padding.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SHARED = os.environ.get("MS_SHARED", os.path.join(ROOT, "..", "shared"))
COMMON = dict(vocab_size=50257, tie_word_embeddings=True, max_position_embeddings=2048,
              rms_norm_eps=1e-5, bos_token_id=50256, eos_token_id=50256,
              rope_parameters=dict(rope_type="default", rope_theta=100000.0))
SHAPES = {
    "student": dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                    num_attention_heads=9, num_key_value_heads=3),
    "teacher": dict(hidden_size=960, intermediate_size=2560, num_hidden_layers=32,
                    num_attention_heads=15, num_key_value_heads=5),
}
T, CHUNK, LR, CLIP = 2.0, 256, 1e-5, 1.0


# --- what all loops work on ----------------------------------------------------------------------

def prepare(folder, samples):
    """Writes the models, and the samples as lines `prompt tokens, then all ids`."""
    import torch
    from tokenizers import Tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM
    for seed, (name, shape) in enumerate(SHAPES.items()):
        path = os.path.join(folder, name)
        if os.path.exists(os.path.join(path, "model.safetensors")):
            continue
        torch.manual_seed(seed)
        LlamaForCausalLM(LlamaConfig(**COMMON, **shape, initializer_range=0.04)).save_pretrained(path)
    tok = Tokenizer.from_file(os.path.join(SHARED, "data/tokenizers/gpt2/tokenizer.json"))
    with open(os.path.join(SHARED, "data/datasets/gsm8k/train.jsonl")) as f, \
            open(os.path.join(folder, "samples.txt"), "w") as out:
        for _, line in zip(range(samples), f):
            row = json.loads(line)
            prompt = tok.encode(row["question"] + "\n").ids
            ids = prompt + tok.encode(row["answer"]).ids + [50256]
            print(len(prompt), *ids, file=out)


def read_samples(folder):
    with open(os.path.join(folder, "samples.txt")) as f:
        rows = [[int(x) for x in line.split()] for line in f]
    return [(row[0], row[1:]) for row in rows]


def status(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(key))


# --- the PyTorch loops ---------------------------------------------------------------------------

class Loop:
    def __init__(self, folder, attention, fused):
        import torch
        from transformers import LlamaForCausalLM

        def load(name):
            return LlamaForCausalLM.from_pretrained(os.path.join(folder, name), dtype=torch.float32,
                                                    attn_implementation=attention)
        self.torch, self.student, self.teacher = torch, load("student").train(), load("teacher").eval()
        self.teacher.requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=LR, weight_decay=0.0,
                                           fused=fused)

    def step(self, samples):
        loss = self.backward(samples)
        self.torch.nn.utils.clip_grad_norm_(self.student.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class Padded(Loop):
    """(a)"""

    def __init__(self, folder):
        super().__init__(folder, "sdpa", None)

    def backward(self, samples):
        torch, F = self.torch, self.torch.nn.functional
        longest = max(len(ids) for _, ids in samples)
        ids = torch.full((len(samples), longest), 50256)
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
        for i, (prompt, row) in enumerate(samples):
            ids[i, :len(row)] = torch.tensor(row)
            mask[i, :len(row)] = 1
            labels[i, prompt:len(row)] = ids[i, prompt:len(row)]
        out = self.student(input_ids=ids, attention_mask=mask, labels=labels)
        with torch.no_grad():
            teacher = self.teacher(input_ids=ids, attention_mask=mask).logits
        answer = labels[:, 1:] != -100
        lq = F.log_softmax(out.logits[:, :-1] / T, -1)
        lp = F.log_softmax(teacher[:, :-1] / T, -1)
        kl = F.kl_div(lq, lp, reduction="none", log_target=True).sum(-1)
        loss = 0.5 * out.loss + 0.5 * T * T * (kl * answer).sum() / answer.sum()
        loss.backward()
        return float(loss.detach())


def by_segment(module, query, key, value, attention_mask, scaling=None, segments=None, **_):
    """Causal attention inside each segment of one packed row: no mask, nothing across."""
    import torch
    F = torch.nn.functional
    parts = [F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
             for q, k, v in zip(query.split(segments, 2), key.split(segments, 2),
                                value.split(segments, 2))]
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None


class Packed(Loop):
    """(b)"""

    def __init__(self, folder):
        from transformers import AttentionInterface, AttentionMaskInterface
        AttentionInterface.register("by_segment", by_segment)
        AttentionMaskInterface.register("by_segment", lambda *args, **kwargs: None)
        super().__init__(folder, "by_segment", True)

    def backward(self, samples):
        torch, F = self.torch, self.torch.nn.functional
        lengths = [len(row) for _, row in samples]
        ids = torch.tensor([[x for _, row in samples for x in row]])
        position = torch.cat([torch.arange(n) for n in lengths])[None]
        rows, end = [], 0
        for prompt, row in samples:
            rows += range(end + prompt - 1, end + len(row) - 1)
            end += len(row)
        rows = torch.tensor(rows)
        call = dict(input_ids=ids, position_ids=position, use_cache=False, segments=lengths)
        with torch.no_grad():
            taught = self.teacher.model(**call).last_hidden_state[0, rows]
        hidden = self.student.model(**call).last_hidden_state[0, rows]
        cut = hidden.detach().requires_grad_()
        labels, total = ids[0, rows + 1], 0.0
        for h, t, y in zip(cut.split(CHUNK), taught.split(CHUNK), labels.split(CHUNK)):
            z = self.student.lm_head(h)
            with torch.no_grad():
                lp = F.log_softmax(self.teacher.lm_head(t) / T, -1)
            kl = F.kl_div(F.log_softmax(z / T, -1), lp, reduction="sum", log_target=True)
            part = (0.5 * F.cross_entropy(z, y, reduction="sum") + 0.5 * T * T * kl) / len(rows)
            part.backward()
            total += float(part.detach())
        hidden.backward(cut.grad)
        return total


def work(args):
    """A process that runs one loop: a line on stdin is the number of a batch."""
    import torch
    torch.set_num_threads(args.threads)
    bare = status("VmRSS")
    loop = {"a": Padded, "b": Packed}[args.loop](args.folder)
    samples = read_samples(args.folder)
    print(json.dumps({"bare": bare}), flush=True)
    for line in sys.stdin:
        first = int(line) * args.batch
        part = samples[first:first + args.batch]
        start = time.perf_counter()
        loss = loop.step(part)
        print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss,
                          "tokens": sum(len(row) for _, row in part), "peak": status("VmHWM")}),
              flush=True)


# --- the comparison ------------------------------------------------------------------------------

class Worker:
    def __init__(self, name, command, env):
        self.name, self.steps = name, []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, cwd=ROOT, env=env)
        self.bare = self.read()["bare"]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(self.name + ": ended early")
        return json.loads(line)

    def step(self, number):
        self.process.stdin.write("%d\n" % number)
        self.process.stdin.flush()
        self.steps.append(self.read())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def start(args):
    env = dict(os.environ, OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads))
    build = os.environ.get("MS_BUILD", "build")
    env.setdefault("MS_LIB", os.path.join(ROOT, build, "libmoonstill.so"))
    env["LUA_PATH"] = "lua/?.lua;lua/?/init.lua;?.lua;;"
    common = ["--folder", args.folder, "--batch", str(args.batch), "--threads", str(args.threads)]
    me = [sys.executable, os.path.abspath(__file__)]
    commands = {"a": me + ["--loop", "a"] + common, "b": me + ["--loop", "b"] + common,
                "moonstill": ["luajit", "tests/bench/pytorch.lua", args.folder, str(args.batch),
                              str(args.threads)]}
    return [Worker(name, commands[name], env) for name in args.only.split(",")]


def fixed_bytes(folder):
    """Student's weights, gradients and two moments, and the teacher's weights."""
    size = {name: os.path.getsize(os.path.join(folder, name, "model.safetensors")) for name in SHAPES}
    return 4 * size["student"] + size["teacher"]


def versions():
    import torch
    import transformers
    blas = [line.strip(" -") for line in torch.__config__.show().splitlines()
            if "Math Kernel" in line or "MKL-DNN" in line or "OpenMP" in line or "BLAS_INFO" in line]
    print("torch %s, transformers %s, python %s" % (torch.__version__, transformers.__version__,
                                                    sys.version.split()[0]))
    for line in blas:
        print("  " + line[:160])
    lua = "io.write((require 'moonstill.base.text')((function() local o = require('ffi').new 'char *[1]' " \
          "require 'moonstill.C'.ms_version(1, o) return o[0] end)()))"
    env = dict(os.environ, LUA_PATH="lua/?.lua;lua/?/init.lua;;")
    env.setdefault("MS_LIB", os.path.join(ROOT, os.environ.get("MS_BUILD", "build"), "libmoonstill.so"))
    print(subprocess.run(["luajit", "-e", lua], cwd=ROOT, env=env, text=True,
                         stdout=subprocess.PIPE).stdout.strip())


def report(workers, folder):
    fixed = fixed_bytes(folder) / 2 ** 20
    ours = next((w for w in workers if w.name == "moonstill"), None)
    print("\n%-10s %9s %9s %12s %12s %14s %12s" % ("loop", "s/step", "tokens/s", "first loss",
                                                  "peak MiB", "beyond fixed", "bare MiB"))
    for w in workers:
        seconds = statistics.median(s["seconds"] for s in w.steps[1:])
        rate = statistics.median(s["tokens"] / s["seconds"] for s in w.steps[1:])
        peak = w.steps[-1]["peak"] / 2 ** 20
        print("%-10s %9.2f %9.0f %12.6f %12.0f %14.0f %12.0f"
              % (w.name, seconds, rate, w.steps[0]["loss"], peak, peak - fixed, w.bare / 2 ** 20))
    print("fixed: weights, gradients and moments of the student, weights of the teacher: %.0f MiB"
          % fixed)
    for w in workers:
        if ours and w is not ours:
            ratio = statistics.median(x["seconds"] / y["seconds"]
                                      for x, y in zip(w.steps[1:], ours.steps[1:]))
            print("moonstill is %.2fx (%s): median of paired steps" % (ratio, w.name))
    losses = [w.steps[0]["loss"] for w in workers]
    apart = max(losses) - min(losses)
    print("first losses differ by %.1e" % apart)
    return apart <= 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", default="/tmp/moonstill-bench")
    parser.add_argument("--only", default="a,b,moonstill", help="which loops, and their order")
    parser.add_argument("--loop", choices=["a", "b"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    if args.loop:
        return work(args)
    versions()
    prepare(args.folder, args.batch * (args.steps + 1))
    workers = start(args)
    for number in range(args.steps + 1):
        order = workers if number % 2 else workers[::-1]
        for w in order:
            w.step(number)
            s = w.steps[-1]
            print("step %d %-10s %7.2f s %6d tokens  loss %.6f" % (number, w.name, s["seconds"],
                                                                  s["tokens"], s["loss"]), flush=True)
    for w in workers:
        w.close()
    if not report(workers, args.folder):
        raise SystemExit("the loops do not compute the same loss")


if __name__ == "__main__":
    main()
