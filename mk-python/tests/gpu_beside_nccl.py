"""Steps beside NCCL collectives of the same ranks on another stream: ``torchrun --nproc-per-node 2 mk-python/tests/gpu_beside_nccl.py``.

With SMs kept free no step stalls, gradients keep their bits, all of NCCL's sums are right, and both together take no longer than one after the
other; the three are timed in turns, since a GPU that computes for seconds lowers its clock. Without, launches that ranks make in opposite orders may stall: mk ends them with an error that says what to do, and NCCL goes on. The last line
says whether they did.
"""

import argparse
import datetime
import os
import time

import torch
import torch.distributed as dist

import mk
import mk.nn

# Of a step's time, beyond the sum of both alone.
LOST = 0.05
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def random(*shape, seed, scale=1.0):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return (torch.randn(*shape, generator=g, device="cuda") * scale).bfloat16()


def make(world, tokens, hidden, ffn, **options):
    layer = mk.nn.GatedMLP(hidden, ffn, world, device="cuda", **options)
    with torch.no_grad():
        for i, p in enumerate(layer.parameters()):
            p.copy_(random(*p.shape, seed=10 * RANK + i, scale=0.02))
    x = random(tokens // SIZE, hidden, seed=100 + RANK).requires_grad_()
    dy = random(tokens // SIZE, hidden, seed=200 + RANK)
    return layer, x, dy


def gradients(layer, x, dy):
    return torch.autograd.grad(layer(x), [x, *layer.parameters()], dy)


def milliseconds(works, steps, rounds):
    """Of a step of each, on the slowest rank: they take turns of so many steps, and medians of so many turns count."""
    took = torch.empty(rounds, len(works), device="cuda")
    for turn in range(-1, rounds):
        for i, work in enumerate(works):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(steps):
                work()
            torch.cuda.synchronize()
            if turn >= 0:
                took[turn, i] = (time.perf_counter() - begin) / steps * 1e3
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.median(dim=0).values.tolist()


def beside(world, group, c):
    kept, free = (make(world, c.tokens, c.hidden, c.ffn, reserve_sms=n) for n in ("nccl", 0))
    want, side = gradients(*kept), torch.cuda.Stream()
    buffer = torch.empty(c.mib << 18, dtype=torch.float32, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    def reduce(fill):
        with torch.cuda.stream(side):
            buffer.fill_(fill)
            dist.all_reduce(buffer, group=group)
            wrong.add_((buffer[:: 1 << 12] != fill * SIZE).sum())

    differ = torch.zeros((), dtype=torch.int64, device="cuda")
    n = 0

    def both(compare=False):
        nonlocal n
        n += 1
        # Half of the ranks enqueue theirs first.
        if RANK % 2:
            reduce(n % 7 + 1.0)
        got = gradients(*kept)
        for one, first in zip(got, want) if compare else ():
            differ.add_((one != first).sum())
        if not RANK % 2:
            reduce(n % 7 + 1.0)

    turns = [lambda: gradients(*free), lambda: gradients(*kept), lambda: reduce(3.0), both]
    whole, alone, nccl, together = milliseconds(turns, 40, c.steps // 40)
    # Comparing takes longer than NCCL does: not while it is timed.
    for step in range(c.steps):
        both(step % 10 == 0)
    torch.cuda.synchronize()
    assert differ.item() == 0, f"rank {RANK}: {differ.item()} numbers of gradients moved"
    assert wrong.item() == 0, f"rank {RANK}: {wrong.item()} of NCCL's sums are wrong"
    lost = together - max(alone, nccl)
    if RANK == 0:
        print(f"a step on all SMs {whole:.3f} ms, with SMs kept free {alone:.3f}, NCCL alone {nccl:.3f}; {c.steps} steps beside NCCL {together:.3f} ms each: "
              f"{together / max(alone, nccl):.2f} of the longer, {lost:.3f} ms lost", flush=True)
    assert lost <= min(alone, nccl) + LOST * alone, f"{lost:.3f} ms lost: both together take longer than one after the other"


def on_all_sms(world, group, c):
    """Ranks enqueue in opposite orders, and nothing is kept free. Returns whether that stalled, and was ended."""
    layer, x, dy = make(world, c.tokens, c.hidden, c.ffn, reserve_sms=0, entry_limit_s=3.0)
    want, side = gradients(layer, x, dy), torch.cuda.Stream()
    buffer = torch.ones(1 << 28, dtype=torch.float32, device="cuda")
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    begin, error = time.monotonic(), None
    try:
        for step in range(40):
            if RANK % 2:
                with torch.cuda.stream(side):
                    dist.all_reduce(buffer, group=group)
            got = gradients(layer, x, dy)
            if not RANK % 2:
                with torch.cuda.stream(side):
                    dist.all_reduce(buffer, group=group)
        layer.function.synchronize()
    except mk.Error as e:
        error = e
    torch.cuda.synchronize()
    took = time.monotonic() - begin
    assert took < 30.0, f"rank {RANK}: {took:.1f} s"
    if error is None:
        assert all(torch.equal(a, b) for a, b in zip(got, want))
    errors = [None] * SIZE
    dist.all_gather_object(errors, str(error) if error else None)
    if RANK == 0:
        print(f"nothing kept free, opposite orders: {took:.1f} s; " + ("all steps ran" if not any(errors) else next(filter(None, errors))), flush=True)
    assert not any(errors) or any("reserve_sms" in e for e in errors if e), errors
    return any(errors)


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("tokens", 8192), ("hidden", 4096), ("ffn", 14336), ("steps", 1000), ("mib", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    c = parser.parse_args()
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(gpu)
    dist.init_process_group("nccl", device_id=gpu, timeout=datetime.timedelta(seconds=60))
    world, group = mk.World.from_torch(), dist.new_group(list(range(SIZE)))
    beside(world, group, c)
    stalled = on_all_sms(world, group, c)
    if RANK == 0:
        print("ok; reserve_sms=0 " + ("stalled, and ended with its message" if stalled else "did NOT stall: its message was not seen"), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
