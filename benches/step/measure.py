"""Times, memory and kernels of a step. A figure is that of the slowest rank."""

import statistics
import time

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

STEPS = 3  # of a round, back to back
FLUSH_BYTES = 256 << 20
# Cycles for which a GPU is kept busy while the host enqueues a round: 40 ms and more.
AHEAD = 80_000_000


def slowest(values):
    tensor = torch.tensor(values, dtype=torch.float64, device="cuda")
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


class Flush:
    def __init__(self):
        self._over = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def __call__(self):
        self._over.add_(1)


def times(runs, rounds):
    """Milliseconds of a step of each, by round: contestants take turns. Ranks meet on the device once the host has enqueued a round, as it runs
    ahead in training; ``host`` has what that takes."""
    found, meet = [[] for _ in runs], torch.zeros(1, device="cuda")
    for r in range(rounds):
        for j in [(i + r) % len(runs) for i in range(len(runs))]:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            torch.cuda._sleep(AHEAD)
            dist.all_reduce(meet)
            begin.record()
            for step in range(STEPS):
                runs[j](step)
            end.record()
            torch.cuda.synchronize()
            found[j].append(begin.elapsed_time(end) / STEPS)
    flat = slowest([ms for each in found for ms in each])
    return [flat[i * rounds : (i + 1) * rounds] for i in range(len(runs))]


def host(run, rounds=7):
    """Milliseconds that a call takes the host, whose queue is empty."""
    found = []
    for i in range(rounds):
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run(i)
        found.append(1e3 * (time.perf_counter() - begin))
        torch.cuda.synchronize()
    return slowest([statistics.median(found)])[0]


def memory(run):
    """MiB that a step needs at its peak in torch's allocator, beyond what lies there between steps."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(0)
    torch.cuda.synchronize()
    return slowest([(torch.cuda.max_memory_allocated() - before) / 2**20])[0]


def outside():
    """MiB in use outside torch's allocator: symmetric memory, NCCL's and mk's workspace, loaded code."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return (total - free - torch.cuda.memory_reserved()) / 2**20


def errors(found, truth):
    """Relative, in the Frobenius norm."""
    return slowest([((got.float() - want).norm() / want.norm()).item() for got, want in zip(found, truth)])


def kernels(step, x, dy):
    """``(name, us)`` of what runs in a forward and in a backward, in order."""
    for tensor in [x, *step.parameters]:
        tensor.grad = None
    lists, y = [], None

    def forward():
        nonlocal y
        y = step.forward(x)

    for part in (forward, lambda: y.backward(dy)):
        dist.barrier()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            part()
            torch.cuda.synchronize()
        ran = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA and e.device_time_total > 0]
        lists.append([(e.name, e.device_time_total) for e in sorted(ran, key=lambda e: e.time_range.start)])
    return lists
