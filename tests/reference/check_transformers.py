"""Model folders between transformers and moonstill, both ways, for every family.

    python tests/reference/check_transformers.py

Each case is a model that transformers makes at random and saves. moonstill opens it, computes
logits, and saves it again: as it is, in shards, and as a student without its first layer.
transformers loads all of these. Where the weights are the same, its logits must be the same bit for
bit; moonstill's must be within 1e-5 max(1, |logit|) of its logits in f32. Models that moonstill
makes itself go the same way. Of sequences of 20,000 tokens the logits at positions all along are
compared with transformers in double precision, with the angles of its own rotary embedding: they
may be off by twice what transformers in f32 is.
MS_PROGRAM names the executable, default build/moonstill; arguments name cases, default all.
"""

import contextlib
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from families import OFFSET, Exact, open_exact

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PROGRAM = os.environ.get("MS_PROGRAM", os.path.join(ROOT, "build", "moonstill"))
TOKENS = 40  # longer than every window

COMMON = dict(vocab_size=83, hidden_size=48, intermediate_size=80, num_hidden_layers=4,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
              bos_token_id=1, eos_token_id=2, pad_token_id=0)


def rope(kind, **more):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=10000.0, **more))


# name: (config, dtype of the stored weights)
CASES = {
    "llama": (dict(model_type="llama"), torch.float32),
    "llama tied bf16": (dict(model_type="llama", tie_word_embeddings=True), torch.bfloat16),
    "llama f16": (dict(model_type="llama"), torch.float16),
    "llama biases": (dict(model_type="llama", attention_bias=True, mlp_bias=True), torch.float32),
    "llama linear": (dict(model_type="llama", **rope("linear", factor=4.0)), torch.float32),
    "llama3": (dict(model_type="llama", **rope("llama3", factor=8.0, low_freq_factor=1.0,
               high_freq_factor=4.0, original_max_position_embeddings=64)), torch.float32),
    "llama odd": (dict(model_type="llama", hidden_size=36, num_attention_heads=3,
                  num_key_value_heads=1, head_dim=20), torch.float32),
    "mistral": (dict(model_type="mistral", sliding_window=9), torch.float32),
    "mistral no window": (dict(model_type="mistral", sliding_window=None), torch.bfloat16),
    "qwen2": (dict(model_type="qwen2"), torch.float32),
    "qwen2 windows": (dict(model_type="qwen2", use_sliding_window=True, sliding_window=7,
                      max_window_layers=2), torch.float32),
    "qwen2 mixed": (dict(model_type="qwen2", use_sliding_window=True, sliding_window=5,
                    layer_types=["sliding_attention", "full_attention"] * 2), torch.bfloat16),
    "qwen3": (dict(model_type="qwen3", head_dim=20, tie_word_embeddings=True), torch.float32),
    "qwen3 biases": (dict(model_type="qwen3", head_dim=12, attention_bias=True), torch.float32),
    "phi3": (dict(model_type="phi3", sliding_window=11), torch.float32),
    "phi3 part": (dict(model_type="phi3", partial_rotary_factor=0.5), torch.bfloat16),
    # not in bf16: moonstill rounds gemma's multiplier to that, transformers in f32 does not
    "gemma": (dict(model_type="gemma", head_dim=20), torch.float32),
    "gemma gelu": (dict(model_type="gemma", head_dim=12, hidden_act="gelu"), torch.float32),
    "gemma2": (dict(model_type="gemma2", head_dim=20, sliding_window=9, query_pre_attn_scalar=30,
               attn_logit_softcapping=3.0, final_logit_softcapping=2.0), torch.float32),
    "gemma2 no caps": (dict(model_type="gemma2", head_dim=16, sliding_window=5, attention_bias=True,
                       attn_logit_softcapping=None, final_logit_softcapping=None,
                       layer_types=["full_attention"] * 2 + ["sliding_attention"] * 2),
                       torch.float32),
    "olmo2": (dict(model_type="olmo2"), torch.float32),
    "olmo2 biases": (dict(model_type="olmo2", attention_bias=True, num_key_value_heads=4,
                     **rope("linear", factor=2.0)), torch.bfloat16),
    "granite": (dict(model_type="granite", embedding_multiplier=3.0, residual_multiplier=0.3,
                attention_multiplier=0.2, logits_scaling=4.0), torch.float32),
    "granite biases": (dict(model_type="granite", attention_bias=True, mlp_bias=True,
                       tie_word_embeddings=True), torch.bfloat16),
}

# Opens `source` (or makes a model of its config), writes logits and folders below `out`.
SCRIPT = """
local ffi = require 'ffi'
local source, out, make, n = arg[1], arg[2], arg[3] == 'make', tonumber(arg[4])
local token, start = ffi.new('int32_t[?]', n), ffi.new('int32_t[2]', 0, n)
for i = 0, n - 1 do token[i] = (i * 37 + 5) % 83 end
local batch = ms.batch.new(token, n, start, 1)
local function logits(model, name)
  local values, vocab = model:logits(batch)
  local file = assert(io.open(out .. '/' .. name .. '.f32', 'wb'))
  file:write(ffi.string(values, n * vocab * 4))
  file:close()
end
local model
if make then
  local file = assert(io.open(source .. '/config.json'))
  model = ms.model.create(file:read '*a', 3)
  file:close()
else
  model = ms.model.open(source)
end
logits(model, 'same')
model:save(out .. '/same')
model:save(out .. '/shards', { shard_bytes = 20000 })
local student = ms.model.shrink(model, { layers = { 1, 2, 3 } })
logits(student, 'student')
student:save(out .. '/student')
"""

# name: config of a model that sees LONG tokens
LONG = 20000
LONG_CASES = {
    "long llama": dict(model_type="llama", **rope("default")),
    "long llama, large base": dict(model_type="llama", rope_parameters=dict(
        rope_type="default", rope_theta=1000000.0)),
    "long llama linear": dict(model_type="llama", **rope("linear", factor=4.0)),
    "long llama3": dict(model_type="llama", **rope("llama3", factor=8.0, low_freq_factor=1.0,
                        high_freq_factor=4.0, original_max_position_embeddings=512)),
    "long phi3": dict(model_type="phi3", partial_rotary_factor=0.5, sliding_window=2000),
}
LONG_SCRIPT = """
local ffi = require 'ffi'
local source, out, n = arg[1], arg[2], tonumber(arg[4])
local token, start, rows = ffi.new('int32_t[?]', n), ffi.new('int32_t[2]', 0, n), {}
for i = 0, n - 1 do token[i] = (i * 37 + i / 83 + 5) % 83 end
for i = 99, n - 1, 100 do rows[#rows + 1] = i end
local values, vocab = ms.model.open(source):logits(ms.batch.new(token, n, start, 1), rows)
local file = assert(io.open(out .. '/long.f32', 'wb'))
file:write(ffi.string(values, #rows * vocab * 4))
file:close()
"""

counts = [0, 0]


def check(name, what, ok, detail=""):
    counts[not ok] += 1
    if not ok:
        print(f"failed: {name}: {what} {detail}")


def logits(folder):
    # eager attention: the window is the mask's, and the same at every length
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    token = torch.tensor([[(i * 37 + 5) % 83 for i in range(TOKENS)]])
    with torch.no_grad():
        return model(token).logits[0].numpy()


def randomize(model):
    """Weights large enough that nothing may be left out unnoticed."""
    generator = torch.Generator().manual_seed(11)
    scale = 0.8 - OFFSET.get(model.config.model_type, 0.0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(scale + 0.2 * noise if "norm" in name else 0.15 * noise)


def run(name, source, out, how, text=SCRIPT, tokens=TOKENS):
    os.mkdir(out)
    script = os.path.join(out, "check.lua")
    with open(script, "w") as f:
        f.write("local ms = require 'moonstill'\n" + text)
    p = subprocess.run([PROGRAM, script, source, out, how, str(tokens)], capture_output=True, text=True)
    check(name, "moonstill", p.returncode == 0, p.stdout + p.stderr)
    return p.returncode == 0


def close(name, what, out, want):
    got = np.fromfile(os.path.join(out, what + ".f32"), np.float32).reshape(want.shape)
    error = np.max(np.abs(got - want) / np.maximum(1, np.abs(want)))
    check(name, f"moonstill's logits ({what})", error <= 1e-5, f"off by {error:.2e}")


def check_case(name, keys, dtype, root):
    source, out = os.path.join(root, "source"), os.path.join(root, "out")
    config = AutoConfig.for_model(**{**COMMON, **keys})
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    randomize(model)
    model.save_pretrained(source, max_shard_size=30000 if "mixed" in name else "5GB")
    if not run(name, source, out, "open"):
        return
    want = logits(source)
    for folder in ("same", "shards"):
        check(name, f"transformers on '{folder}'",
              np.array_equal(logits(os.path.join(out, folder)), want))
    close(name, "same", out, want)
    close(name, "student", out, logits(os.path.join(out, "student")))
    made = os.path.join(root, "made")
    if run(name, source, made, "make"):
        close(name, "same", made, logits(os.path.join(made, "same")))


def long_logits(folder, dtype):
    """Logits at every hundredth position; in double precision with transformers' own angles."""
    token = torch.tensor([[(i * 37 + i // 83 + 5) % 83 for i in range(LONG)]])
    single = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model = single if dtype is torch.float32 else open_exact(folder, "sdpa").eval()
    with (Exact() if dtype is torch.float64 else contextlib.nullcontext()), torch.no_grad():
        hidden = model.model(token, use_cache=False).last_hidden_state[0, 99::100]
        return model.lm_head(hidden).numpy()


def check_long(name, keys, root):
    source, out = os.path.join(root, "source"), os.path.join(root, "out")
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{
        **COMMON, "num_hidden_layers": 2, "max_position_embeddings": 32768, **keys})).float()
    randomize(model)
    model.save_pretrained(source)
    if not run(name, source, out, "open", LONG_SCRIPT, LONG):
        return
    want = long_logits(source, torch.float64)
    plain = np.abs(long_logits(source, torch.float32) - want)
    error = np.abs(np.fromfile(os.path.join(out, "long.f32"), np.float32).reshape(want.shape) - want)
    # Both are f32's rounding alone, which differs with the order of sums.
    check(name, "moonstill's logits", np.max(error) <= 2 * np.max(plain),
          f"off by {np.max(error):.2e}, transformers in f32 by {np.max(plain):.2e}")
    rms = [[np.sqrt(np.mean(part ** 2)) for part in np.array_split(e, 4)] for e in (error, plain)]
    print(f"{name}: logits to {np.max(np.abs(want)):.1f}, errors by quarters (rms):",
          *("%.1e" % x for x in rms[0]), "largest %.1e;" % np.max(error), "transformers in f32:",
          *("%.1e" % x for x in rms[1]), "largest %.1e" % np.max(plain))


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}")
    wanted = [c for c in (*CASES, *LONG_CASES) if len(sys.argv) == 1 or c in sys.argv[1:]]
    for name in wanted:
        with tempfile.TemporaryDirectory() as root:
            if name in CASES:
                check_case(name, *CASES[name], root)
            else:
                check_long(name, LONG_CASES[name], root)
    print(f"{counts[0]} passed, {counts[1]} failed, 0 skipped")
    sys.exit(counts[1] > 0)


if __name__ == "__main__":
    main()
