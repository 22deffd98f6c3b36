"""A pipeline as separate torch operations: what one would write without mk.

Products are ``torch.mm`` (cuBLAS), collectives NCCL's through ``torch.distributed``, elementwise operations torch's, one after the
other on the current stream. Memory of products and collectives is allocated once.
"""

from __future__ import annotations

import math

from ._errors import UnsupportedError
from ._mk import DTYPES

# What elementwise operations are, of torch, its functions and the value's dict.
_ELEMENTWISE = {
    "bias": lambda torch, value: lambda x, c: x + c,
    "gelu": lambda torch, value: torch.nn.functional.gelu,
    "silu": lambda torch, value: torch.nn.functional.silu,
    "relu": lambda torch, value: torch.relu,
    "swiglu": lambda torch, value: lambda x: torch.nn.functional.silu(x[:, 0]) * x[:, 1],
    "rmsnorm": lambda torch, value: lambda x, g=None: torch.nn.functional.rms_norm(x, x.shape[-1:], g, value["eps"]),
    "mul": lambda torch, value: lambda x, y: x * y,
    "add": lambda torch, value: lambda x, y: x + y,
    "scale": lambda torch, value: lambda x: x * value["factor"],
    # A copy even where nothing changes: what follows may write to it.
    "cast": lambda torch, value: lambda x: x.to(_dtype(torch, value), copy=True),
}
# As this file names them.
COLLECTIVES = {"all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"}


def _dtype(torch, value):
    return getattr(torch, DTYPES[value["dtype"]])


class Peer:
    """``run()`` computes the pipeline from ``tensors`` on the current stream and returns its results.

    ``program`` is ``Plan.program``, ``dist`` is torch.distributed, of which the default process group has ``size`` ranks; a world of
    one does not use it. ``names`` are the operations of torch, ``buffers`` what is written anew each time, ``notes``
    what one should know. Raises UnsupportedError for what torch cannot do.
    """

    def __init__(self, torch, dist, program, tensors, rank, size):
        self._torch, self._dist, self._rank, self._size = torch, dist, rank, size
        self._values, self._results = program["values"], [value for _, value in program["results"]]
        self._device = tensors[0].device
        self._tensors = list(tensors)
        self.buffers, self.names, self.notes = [], [], []
        self._steps = []
        for at, value in enumerate(self._values):
            if value["op"] != "parameter":
                self._steps.append((at, value["inputs"], self._step(at, value)))

    def run(self, mark=None):
        """Calls ``mark()`` after each operation, if it is given."""
        values = dict(enumerate(self._tensors))
        for at, inputs, step in self._steps:
            values[at] = step(*(values[i] for i in inputs))
            if mark:
                mark()
        return [values[i] for i in self._results]

    def empty_results(self):
        """New memory for results like those of ``run``."""
        values = [self._values[i] for i in self._results]
        return [self._torch.empty(self._local(v), dtype=_dtype(self._torch, v), device=self._device) for v in values]

    def _local(self, value):
        """The shape of what this rank has of a value, cut as torch.chunk does."""
        shape, (kind, dim) = list(value["shape"]), value["placement"]
        if kind == "shard":
            each = -(-shape[dim] // self._size)
            shape[dim] = max(0, min(each, shape[dim] - self._rank * each))
        return tuple(shape)

    def _buffer(self, value, shape):
        buffer = self._torch.empty(shape, dtype=_dtype(self._torch, value), device=self._device)
        self.buffers.append(buffer)
        return buffer

    def _step(self, at, value):
        op = value["op"]
        make = {"gather": self._gather, "gemm": self._gemm, "reduce_scatter": self._scatter, "all_reduce": self._all_reduce}
        if op in make:
            return make[op](at, value)
        if op == "dequantize":
            return lambda x, scales: (x, scales)
        if op not in _ELEMENTWISE:
            raise UnsupportedError(f"there is no torch operation to compare `{op}` with: Plan.explain() explains without one")
        self.names.append(op)
        return _ELEMENTWISE[op](self._torch, value)

    def _gemm(self, at, value):
        a, b = (self._values[i] for i in value["inputs"])
        if any(x["op"] == "dequantize" or x["dtype"] in ("e4m3", "e5m2") for x in (a, b)):
            return self._scaled(value, [x["op"] == "dequantize" for x in (a, b)])
        if a["dtype"] == "f32" or b["dtype"] == "f32":
            raise UnsupportedError("products of f32 factors are not compared: tensor cores multiply bf16 and f16")
        shape, mm = self._local(value), self._torch.mm
        # Two dimensions of columns are one to cuBLAS.
        out = self._buffer(value, (shape[0], math.prod(shape[1:])))
        a_turned, b_turned = value["a_transposed"], value["b_transposed"]
        self.names.append("mm")

        def step(a, b):
            mm(a.t() if a_turned else a, b.t() if b_turned else b.flatten(1), out=out)
            return out.view(shape)

        return step

    def _scaled(self, value, scaled):
        """A GEMM of eight bits: with the factors of rows, of blocks, or of whole tensors where neither operand has any."""
        self.names.append("_scaled_mm")
        torch, out_dtype = self._torch, self._torch.bfloat16

        def step(*operands):
            pairs = [x if known else (x, None) for x, known in zip(operands, scaled)]
            ones = lambda x: torch.ones(len(x) if any(scaled) else (), device=x.device)
            (x, sx), (w, sw) = [(x, ones(x) if s is None else s) for x, s in pairs]
            if any(s is not None and s.ndim == 2 for _, s in pairs):
                if not all(s is not None and s.ndim == 2 for _, s in pairs):
                    raise UnsupportedError("torch multiplies no rows by blocks")
                padded = torch.nn.functional.pad(sw, (0, -sw.shape[1] % 4))
                return torch._scaled_mm(x, w.t(), scale_a=sx.t(), scale_b=padded.t(), out_dtype=out_dtype, use_fast_accum=False)
            factors = {"scale_a": sx[:, None], "scale_b": sw[None, :]} if any(scaled) else {"scale_a": sx, "scale_b": sw}
            return torch._scaled_mm(x, w.t(), **factors, out_dtype=out_dtype, use_fast_accum=False)

        return step

    def _gather(self, at, value):
        if self._size == 1:
            return self._nothing("all_gather_into_tensor")
        gather, (each, rows, total) = self._dist.all_gather_into_tensor, self._cut("all_gather_into_tensor", value)
        whole = self._buffer(value, (each * self._size, *value["shape"][1:]))
        if each * self._size == total:

            def step(x):
                gather(whole, x)
                return whole

            return step
        mine = self._buffer(value, (each, *value["shape"][1:]))

        def padded(x):
            mine.narrow(0, 0, rows).copy_(x)
            gather(whole, mine)
            return whole.narrow(0, 0, total)

        return padded

    def _scatter(self, at, value):
        if self._size == 1:
            return self._nothing("reduce_scatter_tensor")
        scatter, (each, rows, total) = self._dist.reduce_scatter_tensor, self._cut("reduce_scatter_tensor", value)
        mine = self._buffer(value, (each, *value["shape"][1:]))
        if each * self._size == total:

            def step(x):
                scatter(mine, x)
                return mine

            return step
        whole = self._buffer(value, (each * self._size, *value["shape"][1:]))

        def padded(x):
            whole.narrow(0, 0, total).copy_(x)
            scatter(mine, whole)
            return mine.narrow(0, 0, rows)

        return padded

    def _all_reduce(self, at, value):
        if self._size == 1:
            return self._nothing("all_reduce")
        self.names.append("all_reduce")
        (source,), reduce = value["inputs"], self._dist.all_reduce
        readers = sum(other["inputs"].count(source) for other in self._values) + self._results.count(source)
        if self._values[source]["op"] != "parameter" and readers == 1:
            # Nobody else reads the contribution.
            def in_place(x):
                reduce(x)
                return x

            return in_place
        self.notes.append("all_reduce works on a copy, because its contribution is read elsewhere; the copy counts")
        total = self._buffer(value, self._local(value))

        def step(x):
            total.copy_(x)
            reduce(total)
            return total

        return step

    def _cut(self, name, value):
        """Of rows that are gathered or scattered: the most that a rank has, what this one has, and all."""
        if value["dim"]:
            raise UnsupportedError(f"`{value['op']}` of dimension {value['dim']} is not compared: {name} takes rows")
        total = value["shape"][0]
        each = -(-total // self._size)
        if each * self._size != total:
            self.notes.append(f"{name} needs equal parts: uneven ones are padded, which takes a copy; it counts")
        self.names.append(name)
        return each, max(0, min(each, total - self._rank * each)), total

    def _nothing(self, name):
        self.names.append(f"{name} (nothing to do)")
        return lambda x: x
