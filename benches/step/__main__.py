"""A training step of a gated block, forward and backward, a process and a GPU each.

    torchrun --nproc-per-node 2 benches/step --rounds 9 --json step.json
    torchrun --nproc-per-node 2 benches/step --rows 8192,4096,14336 --profile

``mk.nn.GatedMLP`` beside the same block in torch: eager with NCCL, and compiled with async-TP (what ``torch.compile`` makes of functional
collectives), and beside its GEMMs alone, each by ``torch.mm``. A time is that of the slowest rank; contestants take turns, and the median of
the rounds counts. Gradients of each are judged by a reference in float32. Memory is what a step adds to parameters, gradients and inputs: the
peak of torch's allocator, and what lies outside it (symmetric memory, NCCL's and mk's workspace).
"""

import argparse
import datetime
import json
import os
import statistics

# Before torch and NCCL read them.
os.environ.update({"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"})

import torch  # noqa: E402
import torch._inductor.config  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as funcol  # noqa: E402
import torch.distributed._symmetric_memory as symm_mem  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import mk  # noqa: E402
import mk.nn  # noqa: E402

# Tokens of all ranks, hidden, ffn of all ranks.
ROWS = [(8192, 4096, 14336), (8192, 8192, 28672), (32768, 4096, 14336), (4096, 2048, 8192)]
# Relative error of a gradient, in the Frobenius norm: bfloat16 operands and results.
LIMIT = 1e-2
STEPS = 3  # of a round


def _all_gather(x):
    whole = x.new_empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.contiguous())
    return whole


def _reduce_scatter(x):
    part = x.new_empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
    dist.reduce_scatter_tensor(part, x.contiguous())
    return part


class Gather(torch.autograd.Function):
    """What eager code of tensor parallelism has: NCCL's collectives, each the other's backward."""

    @staticmethod
    def forward(ctx, x):
        return _all_gather(x)

    @staticmethod
    def backward(ctx, d):
        return _reduce_scatter(d)


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _reduce_scatter(x)

    @staticmethod
    def backward(ctx, d):
        return _all_gather(d)


class Block:
    """What a contestant has: parameters, and a function of the tokens of this rank."""

    def __init__(self, name, forward, parameters, gradients):
        self.name, self.forward, self.parameters = name, forward, parameters
        # From the parameters' gradients to those of gate, up and down, as torch.nn.Linear has them.
        self.gradients = gradients

    def step(self, x, dy):
        for tensor in [x, *self.parameters]:
            tensor.grad = None
        self.forward(x).backward(dy)


class Bench:
    def __init__(self, args):
        gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(gpu)
        dist.init_process_group("nccl", device_id=gpu, timeout=datetime.timedelta(seconds=300))
        self.args, self.rank, self.size, self.group = args, dist.get_rank(), dist.get_world_size(), dist.group.WORLD
        self.world, self.rows, self.wrong = mk.World.from_torch(), [], 0

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def random(self, *shape, seed, scale=1.0):
        generator = torch.Generator(device="cuda").manual_seed(1_000_000 * self.args.seed + 1000 * self.rank + seed)
        return (torch.randn(*shape, device="cuda", generator=generator) * scale).bfloat16()

    def slowest(self, value):
        tensor = torch.tensor(value, dtype=torch.float64, device="cuda")
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.tolist()

    # Contestants.

    def ours(self, gate, up, down):
        block = mk.nn.GatedMLP(gate.shape[1], gate.shape[0] * self.size, self.world, device="cuda")
        block.load(gate, up, down)
        of = lambda: (block.gate_up.grad[:, 0].t(), block.gate_up.grad[:, 1].t(), block.down.grad.t())
        return Block("mk", block, [block.gate_up, block.down], of)

    def torch(self, name, gate, up, down, compiled):
        gate_up, down = torch.nn.Parameter(torch.cat([gate, up])), torch.nn.Parameter(down.clone())

        # Functional collectives are what the compiler fuses; eager they cost the host more than NCCL's own calls.
        gather = (lambda x: funcol.all_gather_tensor_autograd(x, 0, self.group)) if compiled else Gather.apply
        scatter = (lambda x: funcol.reduce_scatter_tensor_autograd(x, "sum", 0, self.group)) if compiled else Scatter.apply

        def forward(x):
            g, u = F.linear(gather(x), gate_up).chunk(2, 1)
            return scatter(F.linear(F.silu(g) * u, down))

        of = lambda: (*gate_up.grad.chunk(2), down.grad)
        return Block(name, torch.compile(forward) if compiled else forward, [gate_up, down], of)

    def gemms(self, x, gate, up, down, dy):
        """The products of a step, gates and ups as one: nothing moves, and nothing else is computed."""
        rows = x.shape[0] * self.size
        whole, d_whole = x.repeat(self.size, 1), dy.repeat(self.size, 1)
        w = torch.cat([gate, up])
        both, h = torch.empty(rows, w.shape[0], device="cuda", dtype=x.dtype), self.random(rows, down.shape[1], seed=9)
        d_both = self.random(rows, w.shape[0], seed=10)
        y, dh, dx = torch.empty_like(whole), torch.empty_like(h), torch.empty_like(whole)
        d_down, d_w = torch.empty_like(down), torch.empty_like(w)

        def run():
            torch.mm(whole, w.t(), out=both)
            torch.mm(h, down.t(), out=y)
            torch.mm(d_whole, down, out=dh)
            torch.mm(d_whole.t(), h, out=d_down)
            torch.mm(d_both, w, out=dx)
            torch.mm(d_both.t(), whole, out=d_w)

        return run

    def reference(self, x, gate, up, down, dy):
        """Gradients of x, gate, up, down, in float32."""
        whole, d = _all_gather(x).float(), _all_gather(dy).float()
        gate, up, down = gate.float(), up.float(), down.float()
        g, u = whole @ gate.t(), whole @ up.t()
        s = torch.sigmoid(g)
        d_down = d.t() @ (g * s * u)
        dh = d @ down
        d_up = dh * g * s
        d_gate = dh * u * s * (1 + g * (1 - s))
        dx = d_gate @ gate + d_up @ up
        d_x = torch.empty_like(x, dtype=torch.float32)
        dist.reduce_scatter_tensor(d_x, dx)
        return d_x, d_gate.t() @ whole, d_up.t() @ whole, d_down

    # Measurements.

    def time(self, runs):
        """Milliseconds of each, the slowest rank's, of one of ``STEPS`` back to back: a list for each, by round."""
        times = [[] for _ in runs]
        for r in range(self.args.rounds):
            for j in [(i + r) % len(runs) for i in range(len(runs))]:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                dist.barrier()
                torch.cuda.synchronize()
                begin.record()
                for _ in range(STEPS):
                    runs[j]()
                end.record()
                torch.cuda.synchronize()
                times[j].append(self.slowest(begin.elapsed_time(end) / STEPS))
        return times

    def memory(self, run):
        """MiB that a step adds, in torch's allocator and outside of it, at its peak; the first call has been made."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def outside(self):
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return (total - free - torch.cuda.memory_reserved()) / 2**20

    def errors(self, block, x, truth):
        of = lambda got, want: ((got.float() - want).norm() / want.norm()).item()
        return self.slowest([of(got, want) for got, want in zip((x.grad, *block.gradients()), truth)])

    def profile(self, block, x, dy):
        from torch.profiler import ProfilerActivity, profile

        # A step behind others, as in training.
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            for _ in range(3):
                block.step(x, dy)
            torch.cuda.synchronize()
        kernels = [e for e in found.events() if e.device_type == torch.autograd.DeviceType.CUDA and e.device_time_total > 0]
        kernels.sort(key=lambda e: e.time_range.start)
        first, last = kernels[0].time_range.start, kernels[0].time_range.start
        for e in kernels:
            self.say(f"    at {e.time_range.start - first:9.1f}, after {e.time_range.start - last:8.1f}: {e.device_time_total:9.1f} us  {e.name[:90]}")
            last = max(last, e.time_range.end)
        return [(e.name, e.time_range.start - first, e.device_time_total) for e in kernels]

    def row(self, tokens, hidden, ffn):
        x = self.random(tokens // self.size, hidden, seed=1)
        dy = self.random(tokens // self.size, hidden, seed=2)
        gate, up = (self.random(ffn // self.size, hidden, seed=s, scale=hidden**-0.5) for s in (3, 4))
        down = self.random(hidden, ffn // self.size, seed=5, scale=ffn**-0.5)
        truth = self.reference(x, gate, up, down, dy)
        makers = [
            lambda: self.ours(gate, up, down),
            lambda: self.torch("torch, NCCL", gate, up, down, False),
            lambda: self.torch("torch.compile, async-TP", gate, up, down, True),
        ]
        blocks, runs, memory, errors, first = [], [], [], [], []
        for make in makers:
            outside, began = self.outside(), datetime.datetime.now()
            block, own = make(), x.clone().requires_grad_()
            run = lambda block=block, own=own: block.step(own, dy)
            run()
            torch.cuda.synchronize()
            first.append((datetime.datetime.now() - began).total_seconds())
            held = self.outside() - outside
            run()
            memory.append([self.memory(run), held])
            errors.append(self.errors(block, own, truth))
            blocks.append(block)
            runs.append(run)
        del truth
        runs.append(self.gemms(x, gate, up, down, dy))
        names = [block.name for block in blocks] + ["GEMMs alone"]
        for run in runs:
            run()
        times = self.time(runs)
        middle = dict(zip(names, map(statistics.median, times)))
        ours, peers = middle["mk"], [middle[name] for name in names[1:-1]]
        right = all(max(e) < LIMIT for e in errors)
        self.wrong += not right
        row = {"tokens": tokens, "hidden": hidden, "ffn": ffn, "ms": dict(zip(names, times)), "memory_mib": dict(zip(names, memory)),
               "errors": dict(zip(names, errors)), "first_s": dict(zip(names, first)), "right": right}
        times = ", ".join(f"{name} {ms:.3f}" for name, ms in middle.items())
        ratios = f"torch / mk {peers[0] / ours:.3f}, async-TP / mk {peers[1] / ours:.3f}, mk / GEMMs {ours / middle['GEMMs alone']:.3f}"
        peaks = ", ".join(f"{a:.0f} + {b:.0f}" for a, b in memory)
        self.say(f"{tokens} x {hidden} x {ffn} | ms {times} | {ratios} | MiB {peaks} | first s {', '.join(f'{s:.1f}' for s in first)} | "
                 f"error {max(errors[0]):.1e} (torch {max(errors[1]):.1e}) {'ok' if right else 'WRONG'}")
        if self.args.profile:
            row["kernels"] = self.profile(blocks[0], x.clone().requires_grad_(), dy)
        self.rows.append(row)


def main():
    parser = argparse.ArgumentParser(prog="benches/step", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", nargs="*", help="TOKENS,HIDDEN,FFN of all ranks")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="list the kernels of mk's step")
    parser.add_argument("--json", help="write all of it to this file")
    args = parser.parse_args()
    torch._inductor.config._micro_pipeline_tp = True
    bench = Bench(args)
    symm_mem.enable_symm_mem_for_group(bench.group.group_name)
    rows = [tuple(map(int, row.split(","))) for row in args.rows] if args.rows else ROWS
    for row in rows:
        bench.row(*row)
        torch.cuda.empty_cache()
    if args.json and bench.rank == 0:
        about = {"gpu": torch.cuda.get_device_name(), "ranks": bench.size, "torch": torch.__version__, "seed": args.seed, "rounds": args.rounds}
        with open(args.json, "w") as file:
            json.dump({**about, "rows": bench.rows}, file, indent=1)
    dist.destroy_process_group()
    raise SystemExit(bench.wrong)


if __name__ == "__main__":
    main()
