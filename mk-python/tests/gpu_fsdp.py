"""A layer whose weights ranks share, and its step (forward and gradients), beside torch's FSDP2, by the same weights: ``torchrun --nproc-per-node 2
mk-python/tests/gpu_fsdp.py``. With ``--cpu``, small and over gloo, by torch's operations in the place of kernels. Needs torch.

Gradients are compared, then both are timed by turns: per step the slowest rank's time, and of all steps the median.
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import mk

LAYER = """fn layer(x: bf16[M, K] @ shard(0, dp), w1: bf16[F, K] @ shard(0, dp), w2: bf16[K, F] @ shard(0, dp)) {
    let u = gather(w1, dp);
    let v = gather(w2, dp);
    x -> gemm(u.t) -> silu -> gemm(v.t)
}"""
# Tokens of all ranks, and the two widths.
SHAPES = [(8192, 4096, 14336), (16384, 4096, 14336), (8192, 2048, 8192), (16384, 8192, 8192)]
SMALL = [(64, 32, 48)]
ROUNDS = 30


class Layer(torch.nn.Module):
    """The same in torch."""

    def __init__(self, k, f, device):
        super().__init__()
        self.up = torch.nn.Linear(k, f, bias=False, dtype=torch.bfloat16, device=device)
        self.down = torch.nn.Linear(f, k, bias=False, dtype=torch.bfloat16, device=device)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.up(x)))


def drawn(seed, *shape, device):
    g = torch.Generator(device=device).manual_seed(seed)
    return (torch.randn(*shape, generator=g, device=device) / shape[-1] ** 0.5).bfloat16()


def error(found, wanted):
    return ((found.float() - wanted.float()).norm() / wanted.float().norm()).item()


def whole(x):
    """What all ranks say, the worst."""
    x = torch.tensor(x, dtype=torch.float64)
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, x)
    return torch.stack(every).max(0).values


def times(calls, cpu):
    """Milliseconds of each call, by turns."""
    import time

    all_times = [[] for _ in calls]
    for i in range(ROUNDS + 5):
        for call, own in zip(calls, all_times):
            dist.barrier()
            if cpu:
                begin = time.perf_counter()
                call(i)
                own.append(1e3 * (time.perf_counter() - begin))
                continue
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            torch.cuda.synchronize()
            events[0].record()
            call(i)
            events[1].record()
            torch.cuda.synchronize()
            own.append(events[0].elapsed_time(events[1]))
    return [whole(own[5:]).median().item() for own in all_times]


def row(mesh, world, tokens, k, f, device):
    rank, ranks, cpu = dist.get_rank(), dist.get_world_size(), device.type == "cpu"
    model = Layer(k, f, device)
    weights = [drawn(seed, *shape, device=device) for seed, shape in ((1, (f, k)), (2, (k, f)))]
    with torch.no_grad():
        for linear, w in zip((model.up, model.down), weights):
            linear.weight.copy_(w)
    # Of two units, the second is gathered while the first is multiplied, as users wrap layers.
    for linear in (model.up, model.down):
        fully_shard(linear, mesh=mesh)
    fully_shard(model, mesh=mesh)
    xs = [drawn(10 + i, tokens, k, device=device).chunk(ranks)[rank].contiguous().requires_grad_() for i in range(3)]
    ds = [drawn(20 + i, tokens, k, device=device).chunk(ranks)[rank].contiguous() for i in range(3)]
    own = [w.chunk(ranks)[rank].clone().requires_grad_() for w in weights]
    layer = mk.compile(LAYER, world)

    def theirs(i):
        x, d = xs[i % 3], ds[i % 3]
        x.grad = None
        for p in model.parameters():
            p.grad = None
        y = model(x)
        y.backward(d)
        return y, x.grad, *(linear.weight.grad.to_local() * ranks for linear in (model.up, model.down))

    def ours(i):
        x, d = xs[i % 3], ds[i % 3]
        for t in (x, *own):
            t.grad = None
        y = layer(x, *own)
        y.backward(d)
        return y, x.grad, *(w.grad for w in own)

    worst = []
    for i in range(3):
        wanted = [t.detach().clone() for t in theirs(i)]
        found = [t.detach().clone() for t in ours(i)]
        worst.append([error(a, b) for a, b in zip(found, wanted)])
    apart = whole(worst).max(0).values.tolist()
    assert max(apart) < 1e-2, f"results, gradients of rows, and of both weights are apart by {apart}"
    mk_ms, fsdp_ms = times((ours, theirs), cpu)
    if not cpu:
        layer.synchronize()
    if rank == 0:
        said = f"{tokens:>6} x {k:>5} x {f:>5}  mk {mk_ms:8.3f} ms  FSDP2 {fsdp_ms:8.3f} ms  FSDP2 / mk {fsdp_ms / mk_ms:5.2f}"
        print(f"{said}  apart by {max(apart):.1e}", flush=True)
    layer.close()


def main():
    cpu = "--cpu" in sys.argv[1:]
    if not cpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cpu") if cpu else torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("gloo" if cpu else "cpu:gloo,cuda:nccl", timeout=datetime.timedelta(seconds=120))
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))
    world = mk.World.reference(mesh) if cpu else mk.World.from_torch(group=mesh)
    if dist.get_rank() == 0:
        print(f"step of a layer, {dist.get_world_size()} ranks: tokens x K x F, forward and gradients", flush=True)
    for shape in SMALL if cpu else SHAPES:
        row(mesh, world, *shape, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
