"""A step of distillation on two ranks of one thread each, beside one rank of two threads, and beside
PyTorch with gloo, interleaved in one run.

    python tests/bench/ranks.py [--steps 3] [--batch 8] [--folder DIR] [--only NAMES]

The models, samples and loss of pytorch.py, whose packed loop this is; half of a batch's samples for each
rank. Loops: `one` moonstill, 1 rank x 2 threads; `dp` its data parallel, 2 x 1, and `shard`, with the
optimizer's state divided; `ddp` and `fsdp`, PyTorch's DistributedDataParallel and fully_shard. Every loop
gets one step to warm up; its loss is compared.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

import pytorch as single
from pytorch import CLIP, LR, ROOT, T

LOOPS = {"one": (1, 2), "dp": (2, 1), "shard": (2, 1), "ddp": (2, 1), "fsdp": (2, 1)}


# --- the PyTorch loops ---------------------------------------------------------------------------

def distiller(folder):
    """Student and teacher on a rank's packed samples: a module, so that wrappers see its forward."""
    import torch
    loop = single.Packed(folder)
    F = torch.nn.functional

    class Distiller(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.student = loop.student

        def forward(self, ids, position, segments, rows, total):
            call = dict(input_ids=ids, position_ids=position, use_cache=False, segments=segments)
            with torch.no_grad():
                lp = F.log_softmax(loop.teacher.lm_head(
                    loop.teacher.model(**call).last_hidden_state[0, rows]) / T, -1)
            z = self.student.lm_head(self.student.model(**call).last_hidden_state[0, rows])
            kl = F.kl_div(F.log_softmax(z / T, -1), lp, reduction="sum", log_target=True)
            ce = F.cross_entropy(z, ids[0, rows + 1], reduction="sum")
            return (0.5 * ce + 0.5 * T * T * kl) / total

    return Distiller()


def packed(samples):
    import torch
    lengths = [len(row) for _, row in samples]
    ids = torch.tensor([[x for _, row in samples for x in row]])
    position = torch.cat([torch.arange(n) for n in lengths])[None]
    rows, end = [], 0
    for prompt, row in samples:
        rows += range(end + prompt - 1, end + len(row) - 1)
        end += len(row)
    return ids, position, lengths, torch.tensor(rows)


def work(args):
    """One rank of a PyTorch loop: a line on stdin is the number of a batch."""
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % args.port, rank=args.rank,
                            world_size=2)
    model = distiller(args.folder)
    if args.loop == "ddp":
        net = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard
        mesh = dist.init_device_mesh("cpu", (2,))
        for layer in model.student.model.layers:
            fully_shard(layer, mesh=mesh)
        net = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=LR, weight_decay=0.0, fused=True)
    samples = single.read_samples(args.folder)
    if args.rank == 0:
        print(json.dumps({"bare": 0}), flush=True)
    for line in sys.stdin:
        first = int(line) * args.batch
        start = time.perf_counter()
        part = samples[first:first + args.batch]
        total = sum(len(row) - prompt for prompt, row in part)
        ids, position, lengths, rows = packed(part[args.rank::2])
        loss = net(ids, position, lengths, rows, total)
        (loss * 2).backward()  # wrappers divide by the ranks
        torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        if args.rank == 0:
            print(json.dumps({"seconds": time.perf_counter() - start, "loss": float(whole),
                              "tokens": sum(len(row) for _, row in part),
                              "peak": single.status("VmHWM")}), flush=True)
    dist.destroy_process_group()


# --- the comparison ------------------------------------------------------------------------------

class Torch(single.Worker):
    """Both ranks read the numbers; the first one answers."""

    def __init__(self, name, command, env):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            command = command + ["--port", str(s.getsockname()[1])]
        self.other = subprocess.Popen(command + ["--rank", "1"], stdin=subprocess.PIPE, text=True,
                                      cwd=ROOT, env=env)
        super().__init__(name, command + ["--rank", "0"], env)

    def step(self, number):
        self.other.stdin.write("%d\n" % number)
        self.other.stdin.flush()
        super().step(number)

    def close(self):
        self.other.stdin.close()
        super().close()
        self.other.wait()


def start(name, args):
    ranks, threads = LOOPS[name]
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    if name in ("ddp", "fsdp"):
        me = [sys.executable, os.path.abspath(__file__)]
        return Torch(name, me + ["--loop", name, "--folder", args.folder, "--batch", str(args.batch)],
                     env)
    program = os.path.join(ROOT, os.environ.get("MS_BUILD", "build"), "moonstill")
    # mpirun hands the first rank what it reads; `moonstill -n` asks nobody
    mpirun = ["mpirun", "-q", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"]
    command = (mpirun if ranks > 1 else []) + [program]
    env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               LUA_PATH="lua/?.lua;lua/?/init.lua;?.lua;;")
    return single.Worker(name, command + ["tests/bench/ranks.lua", args.folder, str(args.batch), name],
                         env)


def report(workers):
    first = workers[0]
    print("\n%-6s %9s %9s %12s %12s" % ("loop", "s/step", "tokens/s", "first loss", "peak MiB"))
    for w in workers:
        seconds = statistics.median(s["seconds"] for s in w.steps[1:])
        rate = statistics.median(s["tokens"] / s["seconds"] for s in w.steps[1:])
        print("%-6s %9.2f %9.0f %12.6f %12.0f" % (w.name, seconds, rate, w.steps[0]["loss"],
                                                  w.steps[-1]["peak"] / 2 ** 20))
    for w in workers[1:]:
        ratio = statistics.median(x["seconds"] / y["seconds"]
                                  for x, y in zip(w.steps[1:], first.steps[1:]))
        print("%s takes %.2f of %s's time: median of paired steps" % (w.name, ratio, first.name))
    losses = [w.steps[0]["loss"] for w in workers]
    print("first losses differ by %.1e; peak is of the first rank" % (max(losses) - min(losses)))
    return max(losses) - min(losses) <= 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--folder", default="/tmp/moonstill-bench")
    parser.add_argument("--only", default=",".join(LOOPS), help="which loops, and their order")
    parser.add_argument("--loop", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    if args.loop:
        return work(args)
    single.versions()
    single.prepare(args.folder, args.batch * (args.steps + 1))
    workers = [start(name, args) for name in args.only.split(",")]
    for number in range(args.steps + 1):
        for w in workers if number % 2 else workers[::-1]:
            w.step(number)
            s = w.steps[-1]
            print("step %d %-6s %7.2f s %6d tokens  loss %.6f" % (number, w.name, s["seconds"],
                                                                  s["tokens"], s["loss"]), flush=True)
    for w in workers:
        w.close()
    if not report(workers):
        raise SystemExit("the loops do not compute the same loss")


if __name__ == "__main__":
    main()
