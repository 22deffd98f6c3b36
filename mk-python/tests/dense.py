"""Pipelines in plain Python, on global tensors: what a simulated plan is compared with. Sums over ranks are summed from the start."""

import math
import random


class Dense:
    """Random inputs of a plan, and what each rank shall hold of its results."""

    def __init__(self, plan, seed=0):
        self.plan, self.values = plan, plan.program["values"]
        rng = random.Random(seed)
        self.wholes = []
        self.inputs = [{} for _ in range(plan.ranks)]
        for value in self.values:
            if value["op"] == "parameter":
                self.wholes.append(self.parameter(value, rng))
            else:
                self.wholes.append(self.compute(value))

    def parameter(self, value, rng):
        """A global tensor, of which the ranks hold parts, or copies, or contributions."""
        n = math.prod(value["shape"])
        # Of four bits: exact in bfloat16.
        draw = lambda: [rng.randrange(-8, 9) / 8 for _ in range(n)]
        contributions = [draw() for _ in range(self.plan.ranks if value["placement"][0] == "partial" else 1)]
        for rank, held in enumerate(self.inputs):
            held[value["name"]] = self.part(value, contributions[rank % len(contributions)], rank)
        return [sum(column) for column in zip(*contributions)]

    def part(self, value, whole, rank):
        """What a rank holds, cut as torch.chunk does."""
        kind, dim = value["placement"]
        if kind != "shard":
            return whole
        shape = value["shape"]
        each = -(-shape[dim] // self.plan.ranks)
        inner = math.prod(shape[dim + 1 :])
        rows = range(math.prod(shape[:dim]))
        first, last = min(rank * each, shape[dim]) * inner, min((rank + 1) * each, shape[dim]) * inner
        width = shape[dim] * inner
        return [x for row in rows for x in whole[row * width + first : row * width + last]]

    def compute(self, value):
        op = value["op"]
        a, *others = [self.wholes[i] for i in value["inputs"]]
        if op in ("gather", "reduce_scatter", "all_reduce", "cast"):
            return a
        if op == "gemm":
            return self.gemm(value, a, others[0])
        if op in ("add", "mul"):
            return [x + y if op == "add" else x * y for x, y in zip(a, others[0])]
        if op == "bias":
            return [x + others[0][i % len(others[0])] for i, x in enumerate(a)]
        if op == "scale":
            return [x * value["factor"] for x in a]
        if op == "swiglu":
            width = value["shape"][-1]
            rows = range(0, len(a), 2 * width)
            return [silu(a[row + i]) * a[row + width + i] for row in rows for i in range(width)]
        return [{"gelu": gelu, "silu": silu, "relu": lambda x: max(x, 0.0)}[op](x) for x in a]

    def gemm(self, value, a, b):
        def rows(i, values, transposed):
            first, *rest = self.values[value["inputs"][i]]["shape"]
            width = math.prod(rest)
            if transposed:
                return [values[c::width] for c in range(width)]
            return [values[row * width : (row + 1) * width] for row in range(first)]

        left = rows(0, a, value["a_transposed"])
        right = rows(1, b, not value["b_transposed"])
        return [sum(x * y for x, y in zip(row, column)) for row in left for column in right]

    def errors(self, **options):
        """The relative error of each rank that holds a part of a result, the worst of its results."""
        results = self.plan.simulate(self.inputs, **options)
        errors = []
        for rank, held in enumerate(results):
            worst = []
            for name, place in self.plan.program["results"]:
                want, got = self.part(self.values[place], self.wholes[place], rank), held[name]
                assert len(want) == len(got), (name, len(want), len(got))
                if want:
                    error = math.sqrt(sum((x - y) ** 2 for x, y in zip(got, want)))
                    worst.append(error / math.sqrt(sum(y * y for y in want)))
            if worst:
                errors.append(max(worst))
        return errors


def silu(x):
    return x / (1 + math.exp(-x))


def gelu(x):
    return x * 0.5 * math.erfc(-x / math.sqrt(2))
