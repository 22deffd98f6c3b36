"""What is compared: operations, their shapes, and what each of them costs at the least. Needs neither torch nor a GPU."""

import math
import random
import re
from dataclasses import dataclass

BYTES = 2  # of a bfloat16

PRODUCT = "gemm(a, b)"
LINEAR = "gather(a) -> gemm(b)"
SCATTER = "gemm(a, b) -> reduce_scatter"
REDUCE = "gemm(a, b) -> all_reduce"
BOTH = """pub fn both(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ partial) -> bf16[M, N] @ shard(0) {
    gather(a) -> gemm(b) -> reduce_scatter
}"""
MLP = """pub fn mlp(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[F, K] @ shard(0)) -> bf16[M, K] @ shard(0) {
    gather(x) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter
}"""
GATED = """pub fn gated(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2), v: bf16[F, K] @ shard(0)) -> bf16[M, K] @ shard(0) {
    gather(x) -> gemm(w) -> swiglu -> gemm(v) -> reduce_scatter
}"""
# The same chains in two kernels.
UP = "pub fn up(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1)) -> bf16[M, F] @ shard(1) { gather(x) -> gemm(w) -> gelu }"
GATED_UP = (
    "pub fn gated_up(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2)) -> bf16[M, F] @ shard(1) "
    "{ gather(x) -> gemm(w) -> swiglu }"
)
GATHER = "pub fn whole(a: bf16[M, K] @ shard(0)) -> bf16[M, K] @ replicate { gather(a) }"
PARTIAL = (
    "pub fn partial_sums(a: bf16[M, K] @ replicate, b: bf16[K, N] @ partial) -> bf16[M, N] @ shard(0) "
    "{ gemm(a, b) -> reduce_scatter }"
)


@dataclass(frozen=True)
class Kernel:
    """A kernel of ours: the pipeline, and the global shapes of its parameters."""

    pipeline: str
    shapes: dict


@dataclass(frozen=True)
class Row:
    """One shape of an operation. ``m`` rows over all ranks; ``k`` and ``n`` are those of each rank's product, but for
    the two chains with an activation, where ``k`` is the width of x and ``n`` that of the hidden value over all ranks."""

    op: str
    m: int
    k: int
    n: int

    @property
    def key(self):
        return f"{self.op} {self.m}x{self.k}x{self.n}"

    def products(self, world):
        """``(M, K, N)`` of the products that a rank computes, in order."""
        if self.op == "mlp-gelu":
            return [(self.m, self.k, self.n // world), (self.m, self.n // world, self.k)]
        if self.op == "mlp-swiglu":
            return [(self.m, self.k, 2 * self.n // world), (self.m, self.n // world, self.k)]
        return [(self.m, self.k, self.n)]

    def flop(self, world):
        """Floating-point operations of a rank's products."""
        return sum(2 * m * k * n for m, k, n in self.products(world))

    def link_bytes(self, world):
        """The fewest bytes that a rank must send, which is also what it must receive."""
        others = world - 1
        gathered = self.m * self.k * BYTES * others // world
        width = self.k if self.op.startswith("mlp") else self.n
        scattered = self.m * width * BYTES * others // world
        return {
            "gather-gemm": gathered,
            "gemm-reduce_scatter": scattered,
            "gemm-all_reduce": 2 * scattered,
        }.get(self.op, gathered + scattered)

    def kernel(self, world):
        """The whole operation as one kernel."""
        m, k, n = self.m, self.k, self.n
        columns = Kernel(SCATTER if self.op == "gemm-reduce_scatter" else REDUCE, {"a": (m, k * world), "b": (k * world, n)})
        return {
            "gemm": Kernel(PRODUCT, {"a": (m, k), "b": (k, n)}),
            "gather-gemm": Kernel(LINEAR, {"a": (m, k), "b": (k, n * world)}),
            "gemm-reduce_scatter": columns,
            "gemm-all_reduce": columns,
            "gather-gemm-reduce_scatter": Kernel(BOTH, {"a": (m, k), "b": (k, n)}),
            "mlp-gelu": Kernel(MLP, {"x": (m, k), "w": (k, n), "v": (n, k)}),
            "mlp-swiglu": Kernel(GATED, {"x": (m, k), "w": (k, 2, n), "v": (n, k)}),
        }[self.op]

    def separate(self, world):
        """The same in several kernels of ours, in order; none where there is nothing to take apart."""
        m, k, n = self.m, self.k, self.n
        down = Kernel(SCATTER, {"a": (m, n), "b": (n, k)})
        return {
            "gather-gemm-reduce_scatter": [Kernel(GATHER, {"a": (m, k)}), Kernel(PARTIAL, {"a": (m, k), "b": (k, n)})],
            "mlp-gelu": [Kernel(UP, {"x": (m, k), "w": (k, n)}), down],
            "mlp-swiglu": [Kernel(GATED_UP, {"x": (m, k), "w": (k, 2, n)}), down],
        }.get(self.op, [])


TITLES = {
    "gemm": "`gemm`",
    "gather-gemm": "`gather -> gemm`",
    "gemm-reduce_scatter": "`gemm -> reduce_scatter`",
    "gemm-all_reduce": "`gemm -> all_reduce`",
    "gather-gemm-reduce_scatter": "`gather -> gemm -> reduce_scatter`",
    "mlp-gelu": "`gather -> gemm -> gelu -> gemm -> reduce_scatter`",
    "mlp-swiglu": "`gather -> gemm -> swiglu -> gemm -> reduce_scatter`",
}

# What the three numbers of a row are.
COLUMNS = {"mlp-gelu": "M × K × F, all ranks", "mlp-swiglu": "M × K × F, all ranks"}
PER_RANK = "M × K × N per rank"

SHAPES = {
    "gather-gemm": [
        (4096, 4096, 1024),
        (8192, 8192, 2048),
        (16384, 16384, 4096),
        (32768, 32768, 8192),
        (8192, 8192, 2560),
        (8192, 8192, 14336),
        (2048, 8192, 2560),
    ],
    "gemm-reduce_scatter": [
        (4096, 1024, 4096),
        (8192, 2048, 8192),
        (16384, 4096, 16384),
        (32768, 8192, 32768),
        (8192, 7168, 8192),
        (2048, 7168, 8192),
    ],
    "gemm-all_reduce": [
        (4096, 1024, 4096),
        (8192, 2048, 8192),
        (16384, 4096, 16384),
        (512, 7168, 8192),
        (64, 7168, 8192),
    ],
    "gather-gemm-reduce_scatter": [(4096, 4096, 4096), (8192, 4096, 8192)],
    "mlp-gelu": [(2048, 4096, 16384), (8192, 4096, 16384), (8192, 8192, 28672)],
    "mlp-swiglu": [(2048, 4096, 14336), (8192, 4096, 14336), (8192, 8192, 28672)],
}

# A rank's products of the operations with one of them, alone: what a fused kernel can be at best. Of one rank only.
SINGLE = ("gather-gemm", "gemm-reduce_scatter", "gemm-all_reduce")
SHAPES["gemm"] = list(dict.fromkeys([(8192, 8192, 8192), *(shape for op in SINGLE for shape in SHAPES[op])]))

ROWS = [Row(op, *shape) for op, shapes in SHAPES.items() for shape in shapes]

# A look at every peer of every operation, small: it does not count.
QUICK = {
    "gemm 4096x4096x1024",
    "gemm 64x7168x8192",
    "gather-gemm 4096x4096x1024",
    "gather-gemm 2048x8192x2560",
    "gemm-reduce_scatter 4096x1024x4096",
    "gemm-all_reduce 4096x1024x4096",
    "gemm-all_reduce 64x7168x8192",
    "gather-gemm-reduce_scatter 4096x4096x4096",
    "mlp-gelu 2048x4096x16384",
    "mlp-swiglu 2048x4096x14336",
}


def select(ops=None, pattern=None, quick=False, world=4):
    """Rows of some operations (all: None) whose key has the pattern; one rank has the product alone. ValueError if there are none."""
    known = [op for op in SHAPES if (op == "gemm") == (world == 1)]
    unknown = set(ops or ()) - set(known)
    if unknown:
        raise ValueError(f"no such operation on {world} ranks: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    wanted = [r for r in ROWS if r.op in (ops or known) and (not pattern or re.search(pattern, r.key))]
    if quick:
        wanted = [r for r in wanted if r.key in QUICK]
    if not wanted:
        raise ValueError("no row is selected")
    return wanted


def draw(seed, count, ops=None):
    """``count`` shapes of each of these operations of one product (all three: None) that nobody tuned to: numbers log-uniform, all rows
    64 to 16384 and a rank's K and N 512 to 8192, in multiples of 64."""
    unknown = set(ops or ()) - set(SINGLE)
    if unknown:
        raise ValueError(f"no random shapes of {', '.join(sorted(unknown))}; there are {', '.join(SINGLE)}")
    source = random.Random(seed)

    def number(least, most):
        return round(math.exp(source.uniform(math.log(least), math.log(most))) / 64) * 64

    return [Row(op, number(64, 16384), number(512, 8192), number(512, 8192)) for op in ops or SINGLE for _ in range(count)]


def tune_lines(rows, world):
    """What ``mk tune --list`` takes: each kernel of ours in these rows, once."""
    kernels = [k for row in rows for k in [row.kernel(world), *row.separate(world)]]
    lines = []
    for kernel in kernels:
        shapes = [f"--shape {name}={'x'.join(map(str, shape))}" for name, shape in kernel.shapes.items()]
        line = " ".join([f"'{' '.join(kernel.pipeline.split())}'", *shapes, f"--ranks {world}"])
        if line not in lines:
            lines.append(line)
    return lines
