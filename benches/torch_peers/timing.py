"""Times of contestants, interleaved round by round, each launch judged.

Before a launch its result is filled with NaN and the caches are overwritten; then all ranks meet on the device, after a
delay in which the host enqueues the launch. A launch that was not enqueued entirely by then is dropped on all ranks and
made up for. A round's time is the slowest rank's, from events on its stream.

Rows with a short launch are timed again into an idle queue: enqueued only once all ranks have met, so that host time shows. And
calls of theirs are timed on the host in a loop, sequentially, as in a training step that does nothing else.
"""

import math
import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

FLUSH_BYTES = 256 << 20
WARM = 3
DELAY_US = 60
LOOP = 8  # calls of which the host's time is taken, but of the first; the queue has room for them
LOOPS = 2
IDLE_BELOW_MS = 2.0  # where everybody takes longer, host time is not worth a second measurement


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
        samples = [_Samples() for _ in contestants]
        everybody = pending = list(range(len(contestants)))
        for r in range(WARM):
            self._round(contestants, judges, samples, _turned(everybody, r), r, keep=False)
        for _ in range(3):
            self._rounds(contestants, judges, samples, pending, rounds)
            slowest = [s.reduce() for s in samples]
            pending = [j for j in everybody if len(slowest[j].ms) < rounds]
            if not pending:
                break
        if min(result.middle for result in slowest) < IDLE_BELOW_MS:
            self._rounds(contestants, judges, samples, everybody, rounds, idle=True)
            self._loops(contestants, samples)
            slowest = [s.reduce() for s in samples]
        return slowest

    def _rounds(self, contestants, judges, samples, turn, rounds, idle=False):
        for r in range(rounds):
            self._round(contestants, judges, samples, _turned(turn, r), r, idle=idle)

    def _loops(self, contestants, samples):
        for r in range(LOOPS):
            for j in _turned(list(range(len(contestants))), r):
                torch.cuda.synchronize()
                dist.barrier()
                torch.cuda.synchronize()
                for i in range(LOOP):
                    begin = time.perf_counter()
                    contestants[j].run(0)
                    if i > 0:
                        samples[j].loop_us.append(1e6 * (time.perf_counter() - begin))
        torch.cuda.synchronize()
        for one in contestants:
            if one.after:
                one.after()

    def _round(self, contestants, judges, samples, turn, at, keep=True, idle=False):
        i, launches = at % len(judges), []
        for j in turn:
            one, mine = contestants[j], samples[j]
            for tensor in one.poison:
                tensor.fill_(math.nan)
            self.flush()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.alignment.begin(0 if idle else mine.delay_us)
            start.record()
            while idle and not start.query():
                pass
            begin = time.perf_counter()
            y = one.run(i)
            host_us = 1e6 * (time.perf_counter() - begin)
            end.record()
            late = not idle and start.query()
            if y is not None:
                mine.judge(judges[i].errors(y))
            launches.append((j, start, end, late, host_us))
        self.alignment.check()
        torch.cuda.synchronize()
        for j, start, end, late, host_us in launches:
            if contestants[j].after:
                contestants[j].after()
            samples[j].add(math.inf if late else start.elapsed_time(end), host_us, keep, idle)


def _turned(turn, by):
    """The same in another order, so that nobody always follows the same one."""
    return [turn[(j + by) % len(turn)] for j in range(len(turn))]


class _Samples:
    """What one rank saw of one contestant."""

    def __init__(self):
        self.delay_us = 4 * DELAY_US
        self._ms, self._idle_ms, self._host_us, self._worst = [], [], [], None
        self.loop_us = []

    def add(self, ms, host_us, keep, idle):
        if idle:
            self._idle_ms.append(ms)
        elif keep:
            if math.isinf(ms):
                self.delay_us = min(2 * self.delay_us, 5000)
            self._ms.append(ms)
            self._host_us.append(host_us)
        else:
            self.delay_us = DELAY_US + 2 * host_us

    def judge(self, errors):
        self._worst = errors if self._worst is None else torch.maximum(self._worst, errors)

    def reduce(self):
        """Maxima over the ranks, launch by launch. Collective."""
        judged = self._worst is not None
        worst = self._worst.tolist() if judged else [0.0, 0.0]
        host = statistics.median(self._host_us)
        loop = statistics.median(self.loop_us) if self.loop_us else 0.0
        numbers = torch.tensor([*self._ms, *self._idle_ms, host, loop, *worst], dtype=torch.float64, device="cuda")
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
        *ms, host, loop, whole, tile = numbers.tolist()
        ms, idle = ms[: len(self._ms)], ms[len(self._ms) :]
        there = [t for t in ms if math.isfinite(t)]
        return Result(there, len(ms) - len(there), idle, host, loop, (whole, tile) if judged else None)


@dataclass
class Result:
    """Times in ms of the launches that count and how many do not, of launches into an idle queue, the host's time in us, and that in
    a loop (0 where there was none), and the worst errors over the whole and over a tile."""

    ms: list
    dropped: int
    idle_ms: list
    host_us: float
    loop_us: float
    errors: tuple | None

    @property
    def middle(self):
        """The median, infinite where no launch counts."""
        return statistics.median(self.ms) if self.ms else math.inf

    def json(self):
        """As it is in the file; there must be a launch that counts."""
        out = {"ms": self.middle, "least_ms": min(self.ms), "most_ms": max(self.ms)}
        out |= {"launches": len(self.ms), "dropped": self.dropped, "host_us": self.host_us}
        if self.idle_ms:
            out["idle_ms"] = statistics.median(self.idle_ms)
        if self.loop_us:
            out["loop_us"] = self.loop_us
        if self.errors:
            out |= {"error": self.errors[0], "tile_error": self.errors[1]}
        return out
