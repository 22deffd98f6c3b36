"""Random shapes of products, and what is computed of them. Needs neither torch nor a GPU."""

import math
import random
from dataclasses import dataclass

ROWS = 1, 16384
DEPTH = COLUMNS = 512, 16384
STEPS = 8, 64  # K and N are multiples of one of these, each as often


@dataclass(frozen=True)
class Shape:
    """``[m, k] @ [k, n]``."""

    m: int
    k: int
    n: int

    def __str__(self):
        return f"{self.m}x{self.k}x{self.n}"

    @property
    def flop(self):
        return 2 * self.m * self.k * self.n

    @property
    def bytes(self):
        """The fewest that go through memory, in bfloat16."""
        return 2 * (self.m * self.k + self.k * self.n + self.m * self.n)


def parse(text):
    """``64x4096x4096``. ValueError for others."""
    numbers = [int(n) for n in text.split("x")]
    if len(numbers) != 3 or min(numbers) < 1:
        raise ValueError(f"{text!r} is no shape: write MxKxN, for instance 64x4096x4096")
    return Shape(*numbers)


def draw(seed, count, rows=ROWS, odd=False):
    """``count`` shapes: rows log-uniform, and K and N log-uniform in multiples of 8 or 64; with ``odd``, of any number."""
    source = random.Random(seed)

    def number(least, most, step):
        value = math.exp(source.uniform(math.log(least), math.log(most)))
        return min(most, max(least, round(value / step) * step))

    def extent(bounds):
        return number(*bounds, 1 if odd else source.choice(STEPS))

    return [Shape(number(*rows, 1), extent(DEPTH), extent(COLUMNS)) for _ in range(count)]


@dataclass(frozen=True)
class Op:
    """A product, and what is done to each element of it: a pipeline, and the shapes of its parameters."""

    name: str
    pipeline: str
    parameters: str  # kinds: a [m, k], b [k, n], v [n], y [m, n], w [k, 2, n]

    def shapes(self, shape):
        m, k, n = shape.m, shape.k, shape.n
        known = {"a": (m, k), "b": (k, n), "v": (n,), "y": (m, n), "w": (k, 2, n)}
        return {name: known[name] for name in self.parameters}


def _op(name, parameters, chain, types):
    listed = ", ".join(f"{p}: bf16{types[p]} @ replicate" for p in parameters)
    return Op(name, f"pub fn {name}({listed}) -> bf16[M, N] @ replicate {{ {chain} }}", parameters)


_TYPES = {"a": "[M, K]", "b": "[K, N]", "v": "[N]", "y": "[M, N]", "w": "[K, 2, N]"}
OPS = {
    op.name: op
    for op in (
        _op("product", "ab", "gemm(a, b)", _TYPES),
        _op("bias_gelu", "abv", "gemm(a, b) -> bias(v) -> gelu", _TYPES),
        _op("add", "aby", "gemm(a, b) -> add(y)", _TYPES),
        _op("mul", "aby", "gemm(a, b) -> mul(y)", _TYPES),
        _op("swiglu", "aw", "gemm(a, w) -> swiglu", _TYPES),
    )
}
