"""Times of contestants, interleaved round by round, each launch judged.

Before a launch its result is filled with NaN and the caches are overwritten; then all ranks meet on the device, after a
delay in which the host enqueues the launch. A launch that was not enqueued entirely by then is dropped on all ranks and
made up for. A round's time is the slowest rank's, from events on its stream.
"""

import math
import statistics
import time

import torch
import torch.distributed as dist

FLUSH_BYTES = 256 << 20
WARM = 3
DELAY_US = 60


class Timer:
    def __init__(self, alignment):
        self.alignment = alignment
        self._over = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self._count = 0

    def flush(self):
        """Overwrites more than the caches hold."""
        self._count += 1
        self._over.fill_(self._count)

    def measure(self, contestants, judges, rounds):
        """A ``Result`` for each contestant, in order. Collective; ``judges`` are those of the sets of inputs."""
        results = [_Samples() for _ in contestants]
        pending, at = list(range(len(contestants))), 0
        for attempt in range(3):
            wanted = rounds + (WARM if attempt == 0 else 0)
            for r in range(wanted):
                turn = [pending[(j + r) % len(pending)] for j in range(len(pending))]
                self._round(contestants, judges, results, turn, at, warm=attempt == 0 and r < WARM)
                at += 1
            slowest = [s.reduce() for s in results]
            pending = [j for j in pending if len(slowest[j].ms) < rounds]
            if not pending:
                break
        return slowest

    def _round(self, contestants, judges, results, turn, at, warm):
        i, launches = at % len(judges), []
        for j in turn:
            one, samples = contestants[j], results[j]
            for tensor in one.poison:
                tensor.fill_(math.nan)
            self.flush()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.alignment.begin(samples.delay_us)
            start.record()
            begin = time.perf_counter()
            y = one.run(i)
            host_us = 1e6 * (time.perf_counter() - begin)
            end.record()
            late = start.query()
            if y is not None:
                samples.judge(judges[i].errors(y))
            launches.append((j, start, end, late, host_us))
        self.alignment.check()
        torch.cuda.synchronize()
        for j, start, end, late, host_us in launches:
            if contestants[j].after:
                contestants[j].after()
            results[j].add(math.inf if late else start.elapsed_time(end), host_us, warm)


class _Samples:
    """What one rank saw of one contestant."""

    def __init__(self):
        self.delay_us = 4 * DELAY_US
        self._ms, self._host_us, self._worst = [], [], None

    def add(self, ms, host_us, warm):
        if warm:
            self.delay_us = DELAY_US + 2 * host_us
            return
        if math.isinf(ms):
            self.delay_us = min(2 * self.delay_us, 5000)
        self._ms.append(ms)
        self._host_us.append(host_us)

    def judge(self, errors):
        self._worst = errors if self._worst is None else torch.maximum(self._worst, errors)

    def reduce(self):
        """Maxima over the ranks, launch by launch. Collective."""
        judged = self._worst is not None
        worst = self._worst.tolist() if judged else [0.0, 0.0]
        host = statistics.median(self._host_us)
        numbers = torch.tensor([*self._ms, host, *worst], dtype=torch.float64, device="cuda")
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
        *ms, host, whole, tile = numbers.tolist()
        return Result([t for t in ms if math.isfinite(t)], len(ms), host, (whole, tile) if judged else None)


class Result:
    """Times in ms of the launches that count, how many there were, host time in us, and the worst errors."""

    def __init__(self, ms, launches, host_us, errors):
        self.ms, self.launches, self.host_us, self.errors = ms, launches, host_us, errors

    def json(self):
        """As it is in the file; raises ValueError where no launch counts."""
        if not self.ms:
            raise ValueError("the host was late for every launch")
        out = {"ms": statistics.median(self.ms), "least_ms": min(self.ms), "most_ms": max(self.ms)}
        out |= {"launches": len(self.ms), "dropped": self.launches - len(self.ms), "host_us": self.host_us}
        return out | ({"error": self.errors[0], "tile_error": self.errors[1]} if self.errors else {})
