"""What each choice of saved tensors costs: bytes, and predicted time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import _mk
from ._errors import UnsupportedError
from ._evaluate import dtype
from ._runner import Backward, Runner

# What backward computes again: gathered inputs, activations.
CHOICES = {"all": (False, False), "shard": (True, False), "pre": (False, True), "least": (True, True)}


@dataclass(frozen=True)
class Saving:
    """A value of ``save``, on this rank. ``saved_bytes``: what forward keeps for backward, beside parameters and results. ``peak_bytes``: the most
    that a forward and backward need in torch's allocator beside parameters and the gradient of the results; gradients that the backward
    returns are in it. ``predicted_ms``: all kernels of both, one after the other; None where the cost model knows not all of them.
    """

    save: str
    saved_bytes: int
    peak_bytes: int
    predicted_ms: float | None


class Savings(list):
    """``str()`` is a table."""

    def __str__(self):
        lines = ["save      saved MiB   peak MiB   predicted ms"]
        for s in self:
            time = "-" if s.predicted_ms is None else f"{s.predicted_ms:.3f}"
            lines.append(f"{s.save:<8} {s.saved_bytes / 2**20:>10.1f} {s.peak_bytes / 2**20:>10.1f} {time:>14}")
        return "\n".join(lines) + "\n"


def savings(torch, function, shapes, gpu):
    """A ``Saving`` of each choice whose texts differ, for the local ``shapes`` of the parameters."""
    found, seen = Savings(), set()
    for save, (gather_again, activate_again) in CHOICES.items():
        if function.backward is None:
            raise UnsupportedError(function.why or "there is no backward: no parameter has a gradient")
        derived = function._derive(None, gather_again, activate_again) if function.why is None else function._of_some(
            lambda wanted: function._derive(wanted, gather_again, activate_again))
        texts = derived["forward"], derived["backward"]
        if texts not in seen:
            seen.add(texts)
            found.append(_of(torch, save, function, derived, shapes, gpu))
    return found


def _of(torch, save, function, derived, shapes, gpu):
    world, options = function._world, function._options
    forward = _Memory(torch, Runner(derived["forward"], world, options), shapes)
    given = {k: v for k, v in options.items() if k not in ("shapes", "dims", "settings")}
    back = Backward(derived, "", world, {**given, "dims": forward.runner.given or None})
    results = [i for _, i in forward.runner.program["results"]]
    own = results[: len(function._results)]
    inputs, saved = [], set()
    for at, ((kind, i), value) in enumerate(zip(back.inputs, back.runner.parameters)):
        if kind == "saved":
            saved.add(results[i])
            inputs.append(forward.shape(results[i]))
        else:
            inputs.append(forward.shape(results[i]) if kind == "gradient" else tuple(shapes[i]) if kind != "ones" else None)
    saved -= set(own)
    kept = sum(map(forward.bytes, saved))
    # Results stay with the caller, and what was saved is let go behind the kernel that reads it last.
    peak = forward.run(free=())
    held = sum(map(forward.bytes, {*own, *saved}))
    backward = _Memory(torch, back.runner, _shaped(back, inputs))
    dying = [at for at, (kind, i) in enumerate(back.inputs) if kind == "saved" and results[i] in saved]
    mains = {i for p, i in back.added}
    in_place = {back.runner.program["results"][i][1] for i in mains}
    peak = max(peak, held + backward.run(free=dying, in_place=in_place))
    times = [forward.predicted_ms(gpu), backward.predicted_ms(gpu)]
    return Saving(save, kept, peak, None if None in times else sum(times))


def _shaped(back, shapes):
    """With the shapes of ones, which follow from the others' sizes."""
    runner, sizes = back.runner, dict(back.runner.given)
    for value, shape in zip(runner.parameters, shapes):
        if shape is not None:
            for i, (dim, n) in enumerate(zip(value["dims"], shape)):
                if isinstance(dim, str):
                    sizes.setdefault(dim, n * runner.parts(value, i))
    return [runner.local(value, sizes) if shape is None else shape for value, shape in zip(runner.parameters, shapes)]


class _Memory:
    """A runner's kernels in order, by sizes alone."""

    def __init__(self, torch, runner, shapes):
        self.torch, self.runner = torch, runner
        self.sizes = runner.sizes(shapes)
        self.steps = runner.steps(self.sizes)

    def shape(self, i):
        return tuple(self.runner.local(self.runner.values[i], self.sizes))

    def bytes(self, i):
        return math.prod(self.shape(i)) * dtype(self.torch, self.runner.values[i]).itemsize

    def run(self, free, in_place=()):
        """The most bytes at a time beside the inputs, of which those ``free`` are let go; results ``in_place`` have memory already."""
        live = peak = 0
        mine = set(free)
        for step, program, _, last in self.steps:
            if program is not None and program["values"][-1]["op"] == "view":
                # The same memory, under another name.
                if step["inputs"][0] in last and step["inputs"][0] in mine:
                    mine.update(step["results"])
                continue
            made = [i for i in step["results"] if i not in in_place]
            live += sum(map(self.bytes, made))
            mine.update(made)
            peak = max(peak, live)
            live -= sum(self.bytes(i) for i in last if i in mine)
        return peak

    def predicted_ms(self, gpu):
        total = 0.0
        for step, program, native, _ in self.steps:
            if native is None and program["values"][-1]["op"] == "view":
                continue
            if native is None:
                return None
            shapes, dims = self.runner.extents(step, self.sizes)
            us = _mk._predict(step["text"], ranks=self.runner.on, shapes=shapes, dims=dims, gpu=gpu)[0]
            if us is None:
                return None
            total += us
        return total / 1e3
