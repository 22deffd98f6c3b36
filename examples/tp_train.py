"""Trains a tensor-parallel MLP: what communicates in its forward and backward passes is one kernel per GPU each.

    torchrun --nproc-per-node 4 examples/tp_train.py

`gelu(x W1) W2` learns to be another one. Activations are sharded by rows outside (sequence parallelism), W1 by columns, W2 by
rows. At every step the gradients are compared, tile by tile, with those by NCCL and cuBLAS; one that is wrong ends the
program with status 1. Then a step of each is timed, in turns.
"""

import argparse
import os
import statistics
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

import mk

KERNELS = {
    # The whole block, with all that the backward pass wants again.
    "forward": """
        fn forward(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), w2: bf16[F, K] @ shard(0))
            -> (bf16[M, K] @ shard(0), bf16[M, K], bf16[M, F] @ shard(1), bf16[M, F] @ shard(1)) {
            let whole = gather(x);
            let before = whole -> gemm(w1);
            let h = before -> gelu;
            (h -> gemm(w2) -> reduce_scatter, whole, before, h)
        }""",
    "down_backward": """
        fn down_backward(dy: bf16[M, N] @ shard(0), w: bf16[K, N] @ shard(0)) -> (bf16[M, K] @ shard(1), bf16[M, N]) {
            let whole = gather(dy);
            (whole -> gemm(w.t), whole)
        }""",
    "down_gradient": """
        fn down_gradient(h: bf16[M, K] @ shard(1), dy: bf16[M, N]) -> bf16[K, N] @ shard(0) {
            gemm(h.t, dy)
        }""",
    # The weight's gradient is computed while the other one's parts are on their way.
    "up_backward": """
        fn up_backward(dy: bf16[M, N] @ shard(1), w: bf16[K, N] @ shard(1), x: bf16[M, K])
            -> (bf16[M, K] @ shard(0), bf16[K, N] @ shard(1)) {
            (gemm(dy, w.t) -> reduce_scatter, gemm(x.t, dy))
        }""",
}
# Relative Frobenius differences that bfloat16 explains; a tile of garbage has 1.
WHOLE, TILE, BLOCK = 1.5e-2, 6e-2, 128


class Fused:
    """The operations by mk."""

    def __init__(self, world):
        for name, text in KERNELS.items():
            setattr(self, name, mk.compile(text, world))

    def functions(self):
        return [getattr(self, name) for name in KERNELS]


class Apart:
    """The same operations by NCCL and cuBLAS. Only `up_backward` can overlap the two without cutting them to pieces."""

    def __init__(self, ranks):
        self.ranks = ranks

    def gather(self, x):
        whole = x.new_empty(self.ranks * x.shape[0], x.shape[1])
        dist.all_gather_into_tensor(whole, x)
        return whole

    def scatter(self, part):
        y = part.new_empty(part.shape[0] // self.ranks, part.shape[1])
        return y, dist.reduce_scatter_tensor(y, part, async_op=True)

    def forward(self, x, w1, w2):
        whole = self.gather(x)
        before = whole @ w1
        h = F.gelu(before)
        y, scattered = self.scatter(h @ w2)
        scattered.wait()
        return y, whole, before, h

    def down_backward(self, dy, w):
        whole = self.gather(dy)
        return whole @ w.t(), whole

    def down_gradient(self, h, dy):
        return h.t() @ dy

    def up_backward(self, dy, w, x):
        dx, scattered = self.scatter(dy @ w.t())
        dw = x.t() @ dy
        scattered.wait()
        return dx, dw


class Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w1, w2, ops):
        y, *saved = ops.forward(x, w1, w2)
        ctx.save_for_backward(w1, w2, *saved)
        ctx.ops = ops
        return y

    @staticmethod
    def backward(ctx, dy):
        w1, w2, x, before, h = ctx.saved_tensors
        dh, dy = ctx.ops.down_backward(dy, w2)
        dw2 = ctx.ops.down_gradient(h, dy)
        dx, dw1 = ctx.ops.up_backward(torch.ops.aten.gelu_backward(dh, before), w1, x)
        return dx, dw1, dw2, None


class Mlp(torch.nn.Module):
    def __init__(self, ops, w1, w2):
        super().__init__()
        self.ops = ops
        self.w1, self.w2 = w1, w2

    def forward(self, x):
        return Block.apply(x, self.w1, self.w2, self.ops)

    def step(self, x, want):
        """The loss of this rank's rows, and the gradients of x and of both weights."""
        self.zero_grad()
        x = x.detach().requires_grad_()
        loss = F.mse_loss(self(x).float(), want)
        loss.backward()
        return loss.detach(), [x.grad, self.w1.grad, self.w2.grad]


def main():
    parser = argparse.ArgumentParser(description="a tensor-parallel MLP learns: mk beside NCCL and cuBLAS")
    parser.add_argument("--tokens", type=int, default=8192, help="rows of x over all ranks [8192]")
    parser.add_argument("--hidden", type=int, default=4096, help="columns of x [4096]")
    parser.add_argument("--ffn", type=int, default=14336, help="columns of the first weight over all ranks [14336]")
    parser.add_argument("--steps", type=int, default=20, help="steps that are compared [20]")
    args = parser.parse_args()

    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(gpu)
    dist.init_process_group("nccl", device_id=gpu)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if args.tokens % ranks or args.ffn % ranks:
        sys.exit(f"--tokens and --ffn must be multiples of the {ranks} ranks")
    say = print if rank == 0 else lambda *_: None
    say(f"{torch.cuda.get_device_name()} x {ranks}, {args.tokens} tokens, hidden {args.hidden}, ffn {args.ffn}, bf16")

    g = torch.Generator(device="cuda").manual_seed(rank)
    make = lambda m, n, scale: (torch.randn(m, n, generator=g, device="cuda") * scale).bfloat16()
    weights = lambda: [
        torch.nn.Parameter(make(args.hidden, args.ffn // ranks, args.hidden**-0.5)),
        torch.nn.Parameter(make(args.ffn // ranks, args.hidden, args.ffn**-0.5)),
    ]
    fused, apart, shared = Fused(mk.World.from_torch()), Apart(ranks), weights()
    models = {"mk": Mlp(fused, *shared), "NCCL + cuBLAS": Mlp(apart, *shared)}
    teacher, optimizer = Mlp(apart, *weights()), torch.optim.Adam(shared, lr=1e-4)

    def fail(what):
        say(f"FAIL: {what}")
        dist.destroy_process_group()
        sys.exit(1)

    losses = []
    for step in range(args.steps):
        x = make(args.tokens // ranks, args.hidden, 1.0)
        with torch.no_grad():
            want = teacher(x).float()
        _, theirs = models["NCCL + cuBLAS"].step(x, want)
        loss, ours = models["mk"].step(x, want)
        errors = [difference(a, b) for a, b in zip(ours, theirs)]
        losses.append(mean(loss))
        if step % 5 == 0 or step == args.steps - 1:
            differ = ", ".join(f"d{name} {whole:.1e}" for name, (whole, _) in zip(["x", "W1", "W2"], errors))
            say(f"step {step:3}: loss {losses[-1]:.5f}; gradients differ by {differ}")
        if not all(whole < WHOLE and tile < TILE for whole, tile in errors):
            fail(f"gradients of x, W1, W2 differ at step {step} by (over the whole, over a tile) {errors}")
        optimizer.step()
    for f in fused.functions():
        f.check()
    if not losses[-1] < losses[0]:
        fail("nothing was learnt")

    times = interleaved({name: lambda m=m: m.step(x, want) for name, m in models.items()})
    for name, ms in times.items():
        say(f"{name:14} {ms:8.3f} ms a step, forward and backward")
    say(f"NCCL + cuBLAS / mk = {times['NCCL + cuBLAS'] / times['mk']:.2f}")
    say("PASS")
    dist.barrier()
    for f in fused.functions():
        f.close()
    dist.destroy_process_group()


def mean(loss):
    loss = loss.clone()
    dist.all_reduce(loss)
    return (loss / dist.get_world_size()).item()


def difference(a, b):
    """The relative difference of two gradients, over the whole and over the worst block of 128 by 128, on the worst rank."""
    a, b = a.float(), b.float()
    pad = (0, -a.shape[1] % BLOCK, 0, -a.shape[0] % BLOCK)

    def tiles(t):
        t = F.pad(t, pad)
        return t.view(t.shape[0] // BLOCK, BLOCK, -1, BLOCK).sum((1, 3))

    wrong, size = (a - b).square(), b.square()
    whole, tile = (wrong.sum() / size.sum()).sqrt(), (tiles(wrong) / tiles(size)).sqrt().max()
    errors = torch.stack([whole, tile]).nan_to_num(nan=float("inf"))
    dist.all_reduce(errors, dist.ReduceOp.MAX)
    return errors.tolist()


def interleaved(steps, calls=4, samples=11):
    """Median over samples of the slowest rank's time of one step, in ms. The GPU is kept busy before, so that the host is ahead."""
    times = {name: [] for name in steps}
    for sample in range(samples + 2):
        for name, step in steps.items():
            torch.cuda.synchronize()
            dist.barrier()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(10_000_000)
            start.record()
            for _ in range(calls):
                step()
            end.record()
            torch.cuda.synchronize()
            slowest = torch.tensor([start.elapsed_time(end) / calls], device="cuda")
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if sample >= 2:  # the first ones warm up
                times[name].append(slowest.item())
    return {name: statistics.median(all) for name, all in times.items()}


if __name__ == "__main__":
    main()
