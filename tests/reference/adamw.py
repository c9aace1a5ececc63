"""AdamW on given gradients, by torch.optim.AdamW in float32 and in double.

    python tests/reference/adamw.py

writes tests/fixtures/adamw.json: a tiny llama's config, its shapes, and after a few steps on
gradients computed from a formula (which the test repeats) the sums and some elements of weights and
moments, with and without clipping. Steps have different learning rates.
"""

import json
import os
import sys

import torch

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "adamw.json")
RATES = [1e-2, 2e-2, 5e-3, 1e-2, 3e-3]
CONFIG = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=11, hidden_size=8,
              intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
              num_key_value_heads=1, max_position_embeddings=32, tie_word_embeddings=True,
              rms_norm_eps=1e-5, hidden_act="silu", torch_dtype="float32")
L = "model.layers.0."
SHAPES = {
    "model.embed_tokens.weight": [11, 8], L + "input_layernorm.weight": [8],
    L + "self_attn.q_proj.weight": [8, 8], L + "self_attn.k_proj.weight": [4, 8],
    L + "self_attn.v_proj.weight": [4, 8], L + "self_attn.o_proj.weight": [8, 8],
    L + "post_attention_layernorm.weight": [8], L + "mlp.gate_proj.weight": [12, 8],
    L + "mlp.up_proj.weight": [12, 8], L + "mlp.down_proj.weight": [8, 12],
    "model.norm.weight": [8],
}


def wave(n, a):
    """Values that any language computes alike: products of small integers, exact in float32."""
    return torch.tensor([((i * 37 + a * 101) % 257 - 128) / 128 for i in range(n)],
                        dtype=torch.float64)


def run(dtype, clip):
    names = list(SHAPES)
    params = [torch.nn.Parameter(wave(torch.Size(SHAPES[n]).numel(), k).reshape(SHAPES[n]).to(dtype))
              for k, n in enumerate(names)]
    decay = [p for p, n in zip(params, names) if "norm" not in n]
    plain = [p for p, n in zip(params, names) if "norm" in n]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1},
                             {"params": plain, "weight_decay": 0.0}], betas=(0.9, 0.95), eps=1e-8)
    norms = []
    for step, lr in enumerate(RATES):
        for k, p in enumerate(params):
            g = wave(p.numel(), 7 * step + 3 * k + 1) * 0.25 ** (k % 3)
            p.grad = g.reshape(p.shape).to(dtype)
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in params)).item()
        norms.append(norm)
        if clip and norm > clip:
            for p in params:
                p.grad *= clip / norm
        for group in opt.param_groups:
            group["lr"] = lr
        opt.step()
    return norms, {n: dict(w=p.detach().flatten().tolist(),
                           m=opt.state[p]["exp_avg"].flatten().tolist(),
                           v=opt.state[p]["exp_avg_sq"].flatten().tolist())
                   for n, p in zip(names, params)}


def main():
    cases = []
    for clip in (0.0, 1.5):
        norms, double = run(torch.float64, clip)
        _, single = run(torch.float32, clip)
        worst = max(abs(a - b) for n in double for a, b in zip(double[n]["w"], single[n]["w"]))
        print(f"clip {clip}: float32 differs from double by {worst:.2g}", file=sys.stderr)
        keep = {n: {k: [float(f"{x:.9g}") for x in single[n][k]] for k in "wmv"} for n in single}
        cases.append(dict(clip=clip, norms=norms, values=keep))
    with open(OUT, "w") as f:
        json.dump(dict(torch=torch.__version__, config=CONFIG, rates=RATES, cases=cases,
                       options=dict(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)), f)
        f.write("\n")


main()
