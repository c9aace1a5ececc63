"""Tiny models of every family, with logits and gradients by transformers in double precision.

    python tests/reference/families.py [NAME ...]

writes tests/fixtures/NAME: config.json and model.safetensors (f32, as save_pretrained writes them),
reference.lua and reference.bin (tests/fixtures/README.md has their format). Weights have a standard
deviation of 0.3, norms lie in 0.4 .. 1.2, biases are of the size of what they are added to, and
segments are longer than the sliding window, so that nothing may be left out unnoticed.

Such models are sharp: rounding to f32 alone moves some logits by more than the tests allow. So the
first seed is taken for which transformers' own f32 stays within MARGIN of the double reference.
"""

import json
import os
import shutil
import sys

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")
SEGMENTS = [19, 1, 12, 8]
TEMPERATURE = 2.0
MARGIN = 3.5e-6  # a third of what the tests allow, times max(1, |logit|)

COMMON = dict(vocab_size=61, hidden_size=32, intermediate_size=53, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
              tie_word_embeddings=False, rms_norm_eps=1e-5, hidden_act="silu",
              bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=100)

# name: (what differs from COMMON, whether config.json is rewritten with the keys of transformers 4);
# None takes a key away, except that of the padding token, which is then null
FAMILIES = {
    "llama": (dict(model_type="llama"), False),
    "llama3-rope": (dict(model_type="llama", rope_parameters=LLAMA3, tie_word_embeddings=True,
                         max_position_embeddings=800, vocab_size=67), True),
    "llama-bias": (dict(model_type="llama", attention_bias=True, mlp_bias=True,
                        num_key_value_heads=4, rope_parameters=dict(rope_type="default",
                                                                    rope_theta=500000.0)), False),
    "smollm2": (dict(model_type="llama", hidden_size=30, num_attention_heads=3,
                     num_key_value_heads=1, num_hidden_layers=3, tie_word_embeddings=True,
                     rope_parameters=dict(rope_type="default", rope_theta=100000.0)), True),
    "mistral": (dict(model_type="mistral", sliding_window=7, head_dim=12, rms_norm_eps=1e-3), False),
    "qwen2": (dict(model_type="qwen2", tie_word_embeddings=True, rms_norm_eps=1e-6,
                   rope_parameters=dict(rope_type="default", rope_theta=1000000.0)), True),
    "qwen2-window": (dict(model_type="qwen2", use_sliding_window=True, sliding_window=6,
                          max_window_layers=1, num_hidden_layers=3,
                          vocab_size=71), False),
    "qwen3": (dict(model_type="qwen3", head_dim=14, num_key_value_heads=1, rms_norm_eps=1e-6,
                   attention_bias=False), False),
    "phi3": (dict(model_type="phi3", partial_rotary_factor=0.5, sliding_window=7,
                  vocab_size=97, intermediate_size=43), False),
    "gemma": (dict(model_type="gemma", head_dim=12, hidden_act="gelu_pytorch_tanh",
                   tie_word_embeddings=True, pad_token_id=None, rms_norm_eps=1e-6), False),
    "gemma2": (dict(model_type="gemma2", head_dim=10, hidden_act=None, num_hidden_layers=3,
                    hidden_activation="gelu_pytorch_tanh", sliding_window=6,
                    query_pre_attn_scalar=24, attn_logit_softcapping=2.0,
                    final_logit_softcapping=3.0, tie_word_embeddings=True, pad_token_id=None,
                    rms_norm_eps=1e-6), False),
    "olmo2": (dict(model_type="olmo2", pad_token_id=None), False),
    "granite": (dict(model_type="granite", attention_bias=True, mlp_bias=True,
                     embedding_multiplier=1.7, residual_multiplier=0.6, attention_multiplier=0.3,
                     logits_scaling=2.5, tie_word_embeddings=True, pad_token_id=None), False),
}
OFFSET = {"gemma": 1.0, "gemma2": 1.0}  # added to the weights of norms


class Exact(TorchFunctionMode):
    """Everything transformers asks for in float32 is done in float64: norms, softmax. Not so the
    rotary angles: what they are rounded to belongs to the model. Their cosine and sine are exact."""

    angles = False  # inside the rotary embedding

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def wide(x):
            return torch.float64 if x is torch.float32 else x

        if Exact.angles:
            if func in (torch.Tensor.cos, torch.Tensor.sin):
                args = (args[0].double(),)
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.float:
            return args[0].double()
        return func(*[wide(a) for a in args], **{k: wide(v) for k, v in (kwargs or {}).items()})


def old_spelling(path):
    """config.json as transformers 4 wrote it: the same model, other keys."""
    with open(path) as f:
        config = json.load(f)
    config["torch_dtype"] = config.pop("dtype")
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config.pop("layer_types", None)
    config["transformers_version"] = "4.45.0"
    with open(path, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


def fill(model, generator):
    offset = OFFSET.get(model.config.model_type, 0.0)
    for name, p in model.named_parameters():
        if name.endswith("norm.weight"):
            p.data = torch.rand(p.shape, generator=generator) * 0.8 + 0.4 - offset
        elif name.endswith("bias"):
            p.data = torch.randn(p.shape, generator=generator) * 0.4
        else:
            p.data = torch.randn(p.shape, generator=generator)
            p.data *= 0.301 / p.data.std()


def inputs(vocab, generator):
    """Tokens, weights of predicting positions and the teacher's logits of those that have one."""
    tokens = torch.randint(0, vocab, (sum(SEGMENTS),), generator=generator)
    weight = torch.tensor([0.0, 0.5, 1.0, 2.0])[
        torch.randint(0, 4, tokens.shape, generator=generator)]
    end = 0
    for n in SEGMENTS:
        end += n
        weight[end - 1] = 0.0
    teacher = torch.randn(int((weight > 0).sum()), vocab, generator=generator) * 2.0
    return tokens, weight, teacher


def logits_of(model, tokens):
    """Each segment by itself: nothing is padded and nothing is packed."""
    rows = [model(input_ids=part[None], use_cache=False).logits[0] for part in tokens.split(SEGMENTS)]
    return torch.cat(rows)


def losses_of(logits, tokens, weight, teacher):
    rows = weight.nonzero()[:, 0]
    a = weight[rows].to(logits.dtype)
    z = logits[rows]
    ce = (a * F.cross_entropy(z, tokens[rows + 1], reduction="none")).sum() / a.sum()
    lp = F.log_softmax(teacher.to(logits.dtype) / TEMPERATURE, -1)
    lq = F.log_softmax(z / TEMPERATURE, -1)
    kl = (lp.exp() * (lp - lq)).sum(-1)
    kd = TEMPERATURE ** 2 * (a * kl).sum() / a.sum()
    return {"ce": ce, "kd": kd, "mix": 0.5 * ce + 0.5 * kd}


def check_slope(model, name, p, gradient, loss):
    """The largest element of a gradient against a central difference: autograd is checked too."""
    i = int(gradient.abs().argmax())
    flat, step = p.data.view(-1), 1e-6
    value = float(flat[i])
    pair = []
    for sign in (1, -1):
        flat[i] = value + sign * step
        with torch.no_grad():
            pair.append(float(loss()))
    flat[i] = value
    slope, want = (pair[0] - pair[1]) / (2 * step), float(gradient.view(-1)[i])
    assert abs(slope - want) <= 1e-5 * max(1e-3, abs(want)), (name, slope, want)


class Binary:
    """reference.bin: arrays one after another, little-endian f32; `index` says where."""

    def __init__(self):
        self.parts, self.index, self.size = [], [], 0

    def add(self, name, array):
        flat = np.ascontiguousarray(array, dtype="<f4").reshape(-1)
        self.parts.append(flat)
        self.index.append((name, self.size, flat.size))
        self.size += flat.size


def lua_list(values):
    return "{ " + ", ".join("%.9g" % float(v) for v in values) + " }"


def write_reference(folder, tokens, weight, losses, binary):
    binary_path = os.path.join(folder, "reference.bin")
    np.concatenate(binary.parts).tofile(binary_path)
    starts = np.concatenate([[0], np.cumsum(SEGMENTS)])
    lines = ["-- Made by tests/reference/families.py with transformers %s and torch %s."
             % (transformers.__version__, torch.__version__.split("+")[0]),
             "return {",
             "  token = %s," % lua_list(tokens),
             "  segment_start = %s," % lua_list(starts),
             "  weight = %s," % lua_list(weight),
             "  temperature = %g," % TEMPERATURE]
    lines.append("  loss = { %s }," % ", ".join("%s = %.15g" % (k, float(v))
                                                for k, v in losses.items()))
    lines.append("  arrays = {")
    lines += ["    ['%s'] = { %d, %d }," % entry for entry in binary.index]
    lines += ["  },", "}"]
    with open(os.path.join(folder, "reference.lua"), "w") as f:
        f.write("\n".join(lines) + "\n")


def keep_angles(model, single):
    """The rotary embedding of `model` works as that of `single`, which is in float32, does."""
    rotary = model.model.rotary_emb
    rotary.inv_freq = single.model.rotary_emb.inv_freq
    assert rotary.inv_freq.dtype == torch.float32

    def switch(on):
        def hook(*_):
            Exact.angles = on
        return hook
    rotary.register_forward_pre_hook(switch(True))
    rotary.register_forward_hook(switch(False), always_call=True)


def open_exact(folder, attention="eager"):
    """The saved model in double precision throughout, but for the angles of its rotary embedding."""
    single = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                  attn_implementation="eager")
    with Exact():
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention,
                                                 dtype=torch.float64).eval()
        model.load_state_dict({k: v.double() for k, v in single.state_dict().items()})
    # PyTorch leaves the padding token's row out of the embedding's gradient, although the loss does
    # depend on it: what is wanted here is the derivative.
    model.model.embed_tokens.padding_idx = None
    assert all(p.dtype == torch.float64 for p in model.parameters())
    keep_angles(model, single)
    return model


def save_model(name, folder, generator):
    options, old = FAMILIES[name]
    shutil.rmtree(folder, ignore_errors=True)
    settings = {**COMMON, **options}
    settings = {k: v for k, v in settings.items() if v is not None or k == "pad_token_id"}
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fill(model, generator)
    model.save_pretrained(folder)
    generation = os.path.join(folder, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)
    if old:
        old_spelling(os.path.join(folder, "config.json"))
    return config.vocab_size


def rounding(folder, tokens, logits):
    """How far transformers' own f32 is from the double reference."""
    single = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                  attn_implementation="eager").eval()
    with torch.no_grad():
        plain = logits_of(single, tokens).double()
    return float(((plain - logits).abs() / logits.abs().clamp(min=1)).max())


def find(name, folder, seed):
    """The saved model, its inputs and its logits, for the first seed that rounding lets us test."""
    for attempt in range(200):
        generator = torch.Generator().manual_seed(1000 * seed + attempt)
        given = inputs(save_model(name, folder, generator), generator)
        model = open_exact(folder)
        with Exact(), torch.no_grad():
            logits = logits_of(model, given[0])
        off = rounding(folder, given[0], logits)
        if off <= MARGIN:
            print("%-13s seed %d+%d: logits %.1f..%.1f, f32 off by %.1e"
                  % (name, seed, attempt, float(logits.min()), float(logits.max()), off))
            return model, given
    raise SystemExit(name + ": no seed found")


def make(name, seed):
    folder = os.path.normpath(os.path.join(FIXTURES, name))
    model, (tokens, weight, teacher) = find(name, folder, seed)
    binary = Binary()
    with Exact():
        logits = logits_of(model, tokens)
        assert logits.dtype == torch.float64
        losses = losses_of(logits, tokens, weight, teacher)
        binary.add("logits", logits.detach().numpy())
        binary.add("teacher", teacher.numpy())
        parameters = list(model.named_parameters())
        for kind, loss in losses.items():
            gradients = torch.autograd.grad(loss, [p for _, p in parameters], retain_graph=True)
            for (pname, p), g in zip(parameters, gradients):
                binary.add(kind + ":" + pname, g.numpy())
                if kind == "mix":
                    check_slope(model, pname, p, g, lambda: losses_of(
                        logits_of(model, tokens), tokens, weight, teacher)["mix"])
    write_reference(folder, tokens, weight, {k: v.detach() for k, v in losses.items()}, binary)


def main():
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for seed, name in enumerate(FAMILIES):
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            make(name, 1 + seed)


if __name__ == "__main__":
    main()
