"""Times of contestants, launch by launch in turn, each result compared.

Before a launch its memory is filled with NaN and the caches are overwritten; then the ranks meet in an all-reduce of one number, so
that they begin within some microseconds of each other, which is in everybody's time. The host enqueues all of it while the GPU
still overwrites caches; a launch that was not enqueued entirely by then is dropped on all ranks and made up for. A launch's time
is the slowest rank's, from events on its stream.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, field
from typing import Any, Callable

from ._errors import Error

FLUSH_BYTES = 256 << 20
# What it takes to overwrite so much, at least.
_FLUSH_US = 40.0
_WARM = 3
_PASSES = 3
_LEAST_DELAY_US, _MOST_DELAY_US = 200.0, 10_000.0


@dataclass
class Contestant:
    """``run(mark)`` enqueues, calls ``mark()`` after each of ``steps`` steps, and returns results; ``poison`` is filled with NaN before it."""

    name: str
    run: Callable[[Callable[[], None]], list]
    poison: list
    steps: int = 0
    delay_us: float = _LEAST_DELAY_US
    ms: list = field(default_factory=list)
    step_ms: list = field(default_factory=list)
    host_us: list = field(default_factory=list)
    worst: Any = None


@dataclass
class Times:
    """Times in ms of the launches that count, how many were dropped, the host's time in us, the median of each step in ms, and the
    worst relative differences over the whole and over a tile."""

    ms: list
    dropped: int
    host_us: float
    steps: list
    difference: float
    tile_difference: float

    @property
    def middle(self):
        """The median."""
        return statistics.median(self.ms)


class Meter:
    """Launches on a GPU, the same on all ranks of ``dist`` if it is given; ``check()`` is called when the GPU is done with a round."""

    def __init__(self, torch, dist, device, check):
        self._torch, self._dist, self._device, self._check = torch, dist, device, check
        self._over = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=device)
        self._token = torch.zeros(1, dtype=torch.float32, device=device)

    def measure(self, contestants, judge, rounds):
        """``Times`` of each, of ``rounds`` launches. ``judge(results)`` gives two relative differences on the device. Collective."""
        for r in range(_WARM):
            self._round(_turned(contestants, r), judge, keep=False)
        done, pending = {}, contestants
        for _ in range(_PASSES):
            for r in range(rounds):
                self._round(_turned(pending, r), judge)
            done |= {one.name: self._slowest(one) for one in pending}
            pending = [one for one in contestants if len(done[one.name].ms) < rounds]
            if not pending:
                break
        for name, times in done.items():
            if not times.ms:
                raise Error(
                    f"{name}: the host was late for each of {times.dropped} launches, so that no time is the GPU's alone\n"
                    "  help: see what else this machine's cores are doing"
                )
        return [done[one.name] for one in contestants]

    def _round(self, turn, judge, keep=True):
        launches = [(one, *self._launch(one, judge)) for one in turn]
        self._torch.cuda.synchronize()
        self._check()
        for one, events, late, host_us in launches:
            if not keep:
                # Calls after the first are short.
                one.delay_us = min(max(_LEAST_DELAY_US, 2 * host_us), _MOST_DELAY_US)
                continue
            if late:
                one.delay_us = min(2 * one.delay_us, _MOST_DELAY_US)
            one.ms.append(math.inf if late else events[0].elapsed_time(events[-1]))
            one.step_ms.append([math.inf if late else a.elapsed_time(b) for a, b in zip(events, events[1:])])
            one.host_us.append(host_us)

    def _launch(self, one, judge):
        for tensor in one.poison:
            tensor.fill_(math.nan)
        for i in range(math.ceil(one.delay_us / _FLUSH_US)):
            self._over.fill_(i)
        if self._dist:
            self._dist.all_reduce(self._token)
        events = [self._torch.cuda.Event(enable_timing=True) for _ in range(1 + max(1, one.steps))]
        rest = iter(events[1:])
        mark = (lambda: next(rest).record()) if one.steps else (lambda: None)
        events[0].record()
        begin = time.perf_counter()
        results = one.run(mark)
        host_us = 1e6 * (time.perf_counter() - begin)
        if not one.steps:
            events[-1].record()
        late = events[0].query()
        errors = judge(results)
        one.worst = errors if one.worst is None else self._torch.maximum(one.worst, errors)
        return events, late, host_us

    def _slowest(self, one):
        """Maxima over the ranks, launch by launch. Collective."""
        numbers = [*one.ms, *(ms for steps in one.step_ms for ms in steps), statistics.median(one.host_us), *one.worst.tolist()]
        if self._dist:
            tensor = self._torch.tensor(numbers, dtype=self._torch.float64, device=self._device)
            self._dist.all_reduce(tensor, self._dist.ReduceOp.MAX)
            numbers = tensor.tolist()
        *numbers, host_us, difference, tile_difference = numbers
        n = len(one.ms)
        there = [ms for ms in numbers[:n] if math.isfinite(ms)]
        by_launch = [numbers[at : at + one.steps] for at in range(n, len(numbers), max(1, one.steps))] if one.steps else []
        by_step = zip(*(steps for steps in by_launch if all(map(math.isfinite, steps))))
        return Times(there, n - len(there), host_us, [statistics.median(step) for step in by_step], difference, tile_difference)


def _turned(turn, by):
    """The same in another order, so that nobody always follows the same one."""
    return [turn[(j + by) % len(turn)] for j in range(len(turn))]


class Judge:
    """Compares results with ``references``, tensors of the same shapes: relative Frobenius differences over the whole and of the worst
    tile of 128 x 128, two numbers on the device, infinite where there is a NaN. Nothing waits."""

    BLOCK = 128
    # Tiles that hold next to nothing are compared with what a tile holds on average.
    _LEAST = 1e-2

    def __init__(self, torch, references):
        self._torch, self._references = torch, [reference.clone() for reference in references]

    def __call__(self, results):
        torch, worst = self._torch, None
        for result, reference in zip(results, self._references):
            if result.shape != reference.shape:
                raise Error(f"a result has shape {list(result.shape)}, and torch's has {list(reference.shape)}")
            if reference.numel() == 0:
                continue
            wrong, there = self._tiles((result.float() - reference.float()).square()), self._tiles(reference.float().square())
            least = (self._LEAST * there.mean()).clamp(min=1e-30)
            whole = wrong.sum() / there.sum().clamp(min=1e-30)
            both = torch.stack([whole, (wrong / torch.maximum(there, least)).amax()]).sqrt()
            both = both.nan_to_num(nan=math.inf)
            worst = both if worst is None else torch.maximum(worst, both)
        return torch.zeros(2, dtype=torch.float32, device=results[0].device) if worst is None else worst

    def _tiles(self, t):
        """The sum over each tile."""
        t = t.reshape(-1, t.shape[-1]) if t.dim() != 2 else t
        rows, columns = t.shape
        if rows % self.BLOCK or columns % self.BLOCK:
            t = self._torch.nn.functional.pad(t, (0, -columns % self.BLOCK, 0, -rows % self.BLOCK))
        return t.view(t.shape[0] // self.BLOCK, self.BLOCK, -1, self.BLOCK).sum((1, 3))
