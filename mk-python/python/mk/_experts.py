"""Rows of experts as torch operations, on what this rank holds: tokens to the ranks of their experts, products, and back as weighted sums."""

from __future__ import annotations

from ._errors import ArgumentError

# Rows of an expert begin at a multiple of this.
BLOCK = 128


def room(tokens, slots, experts, ranks):
    """Rows of all ranks that no routing exceeds."""
    own = -(-experts // ranks)
    rows = tokens * min(slots, own)
    return (rows + (BLOCK - 1) * min(own, rows)) // BLOCK * BLOCK * ranks


def experts(values, value):
    """How many experts there are for the rows that a value dispatches: a size, or the name of one."""
    ids = value["inputs"][1]
    for product in values:
        if product["op"] == "grouped_gemm" and product["inputs"][2] == ids:
            return values[product["inputs"][1]]["dims"][0]
        if product["op"] == "grouped_wgrad" and product["inputs"][2] == ids:
            return product["dims"][0]
    return None


def axis(program):
    """The axis of a pipeline's mesh whose ranks share experts: the first, where nothing says which."""
    for value in program["values"]:
        at = {"grouped_gemm": 2, "grouped_wgrad": 2, "dispatch": 1}.get(value["op"])
        if at is not None:
            placements = program["values"][value["inputs"][at]]["placements"]
            return next((axis for axis, p in placements.items() if tuple(p) == ("shard", 0)), program["axes"][0])
    return program["axes"][0]


def _uint8(x):
    import torch

    return torch.uint8


def _int32():
    import torch

    return torch.int32


class Experts:
    """What a pipeline of experts does on one rank of a reference world. ``whole(value)`` is a global shape."""

    def __init__(self, world, values, whole):
        self._world, self._values, self._whole = world, values, whole
        # By the value that says whose rows there are: first row of each of this rank's experts, and how many; and of routed ones, of which tokens.
        self._spans, self._tokens, self._lost = {}, {}, {}

    def check(self, tensors):
        """That rows of groups which the caller counts are there: before any rank does anything."""
        for value in self._values:
            if value["op"] not in ("grouped_gemm", "grouped_wgrad") or value["inputs"][2] >= len(tensors) or tensors[value["inputs"][2]].dim() == 2:
                continue
            counts, rows = tensors[value["inputs"][2]].tolist(), self._whole(self._values[value["inputs"][0]])[0] // self._world.size
            for group, n in enumerate(counts):
                if n < 0:
                    raise ArgumentError(f"group {group} has {n} rows\n  help: give each group 0 rows or more")
            self._packed(counts, rows)

    def run(self, value, operands):
        return {"dispatch": self._dispatch, "grouped_gemm": self._product, "grouped_wgrad": self._wgrad, "combine": self._combine,
                "combine_grad": self._combine_grad, "weigh": self._weigh, "weigh_grad": self._weigh_grad, "dropped": self._dropped, "bias": self._bias}[value["op"]](value, *operands)

    def _own(self, number):
        [own] = self._world.places(number, "shard")
        return own

    def _packed(self, counts, capacity):
        spans, at = [], 0
        for n in counts:
            spans.append((at, n))
            at += -(-n // BLOCK) * BLOCK
        if at > capacity:
            raise ArgumentError(f"the rows of groups take {at // BLOCK} blocks, and the capacity is {capacity // BLOCK}\n  help: raise the capacity")
        return spans

    def _dispatch(self, value, x, ids, weights=None):
        at_ids = value["inputs"][1]
        if value.get("factors"):
            # Of tokens that went before: [K / 128, tokens].
            return self._dispatched(at_ids, x.t().contiguous(), self._whole(value)[1] // self._world.size).t().contiguous()
        tokens, capacity = self._whole(self._values[at_ids])[0], self._whole(value)[0] // self._world.size
        if weights is None:
            self._route(at_ids, ids, capacity, value["drops"])
            return self._dispatched(at_ids, x, capacity)
        x = self._world.whole_rows(x, tokens)
        weights = self._world.whole_rows(weights.float(), tokens)
        self._route(at_ids, ids, capacity, value["drops"])
        rows = x.new_zeros(capacity, x.shape[1])
        for (first, n), found in zip(self._spans[at_ids], self._tokens[at_ids]):
            rows[first : first + n] = x[found[:, 0]].float() * weights[found[:, 0], found[:, 1], None]
        return rows

    def _dropped(self, value, rows, ids):
        return ids.new_tensor([self._lost[value["inputs"][1]]], dtype=_int32())

    def _dispatched(self, at_ids, x, capacity):
        """Rows of this rank's experts, of tokens of all ranks. Eight bits travel as bytes."""
        dtype, x = x.dtype, x.view(_uint8(x)) if x.dtype.itemsize == 1 else x
        x = self._world.whole_rows(x, self._whole(self._values[at_ids])[0])
        rows = x.new_zeros(capacity, x.shape[1])
        for (first, n), found in zip(self._spans[at_ids], self._tokens[at_ids]):
            rows[first : first + n] = x[found[:, 0]]
        return rows.view(dtype)

    def _route(self, at_ids, ids, capacity, drops):
        """Where this rank's experts have their rows, of ``capacity``, and of which tokens."""
        every = self._world.whole_rows(ids, self._whole(self._values[at_ids])[0])
        number = self._number(at_ids)
        # -1 is no expert.
        wrong = ((every < -1) | (every >= number)).nonzero()
        if len(wrong):
            t, j = wrong[0].tolist()
            raise ArgumentError(f"token {t} goes to expert {every[t, j].item()}, and there are {number}: name one of 0 to {number - 1}, or -1 for none")
        ordered = every.sort(1).values
        twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).nonzero()
        if len(twice):
            t, j = twice[0].tolist()
            raise ArgumentError(f"token {t} goes to expert {ordered[t, j].item()} twice")
        # Tokens of each expert, and by which slot.
        lists = [(every == e).nonzero() for e in range(number)]
        if drops:
            # Each expert keeps its share of the blocks, the first tokens of it.
            share = capacity // BLOCK // -(-number // self._world.size) * BLOCK
            [mine] = self._world.places(every.shape[0], "shard")
            self._lost[at_ids] = sum(int(((f[share:, 0] >= mine.start) & (f[share:, 0] < mine.stop)).sum()) for f in lists)
            lists = [found[:share] for found in lists]
        # Every rank knows of every other that has too many rows.
        for r in range(self._world.size):
            [own] = self._world.places(number, "shard", r)
            self._packed([len(lists[e]) for e in own], capacity)
        lists = [lists[e] for e in self._own(number)]
        self._spans[at_ids], self._tokens[at_ids] = self._packed([len(found) for found in lists], capacity), lists

    def _number(self, ids):
        product = next(v for v in self._values if v["op"] in ("grouped_gemm", "grouped_wgrad") and v["inputs"][2] == ids)
        return self._whole(self._values[product["inputs"][1]] if product["op"] == "grouped_gemm" else product)[0]

    def _rows(self, value, counts, capacity):
        """Where experts have their rows, which the caller counts, or tokens name that another kernel dispatched."""
        at = value["inputs"][2]
        if at not in self._spans and counts.dim() == 2:
            self._route(at, counts, capacity, value["drops"])
        elif at not in self._spans:
            self._spans[at] = self._packed(counts.tolist(), capacity)
        return self._spans[at]

    def _product(self, value, x, w, counts):
        spans = self._rows(value, counts, x.shape[0])
        # Those of a matrix's dimensions that rows do not have are columns of the result.
        behind = w.dim() + 1 - x.dim()
        out = x.new_zeros(x.shape[0], *(w.shape[1:behind] if value["transposed"] else w.shape[2:]))
        for (first, n), matrix in zip(spans, w):
            matrix = matrix.flatten(behind - 1).flatten(0, behind - 2).t() if value["transposed"] else matrix.flatten(1)
            out[first : first + n] = (x[first : first + n].flatten(1) @ matrix).view(n, *out.shape[1:])
        return out

    def _bias(self, value, x, vectors):
        at, made = value["inputs"][0], x.clone()
        while self._values[at]["op"] != "grouped_gemm":
            at = self._values[at]["inputs"][0]
        for (first, n), vector in zip(self._spans[self._values[at]["inputs"][2]], vectors):
            made[first : first + n] += vector
        return made

    def _wgrad(self, value, x, dy, counts):
        spans = self._rows(value, counts, x.shape[0])
        out = x.new_zeros(len(spans), x.shape[1], *dy.shape[1:])
        for (first, n), matrix in zip(spans, out):
            matrix.copy_((x[first : first + n].t() @ dy[first : first + n].flatten(1)).view(matrix.shape))
        return out

    def _combine_grad(self, value, y, ids, dy):
        at = value["inputs"][1]
        tokens = self._whole(self._values[at])[0]
        dy = self._world.whole_rows(dy, tokens).float()
        out = dy.new_zeros(tokens, ids.shape[1])
        for (first, n), found in zip(self._spans[at], self._tokens[at]):
            out[found[:, 0], found[:, 1]] = (y[first : first + n].float() * dy[found[:, 0]]).sum(1)
        out = self._world.sum(out)
        [own] = self._world.places(tokens, "shard")
        return out[own.start : own.stop]

    def _weigh(self, value, rows, ids, weights):
        at = value["inputs"][1]
        weights = self._world.whole_rows(weights.float(), self._whole(self._values[at])[0])
        spans, out = self._of_route(value, ids, rows), rows.new_zeros(rows.shape)
        for (first, n), found in zip(spans, self._tokens[at]):
            out[first : first + n] = rows[first : first + n].float() * weights[found[:, 0], found[:, 1], None]
        return out

    def _weigh_grad(self, value, d, ids, y):
        at = value["inputs"][1]
        tokens = self._whole(self._values[at])[0]
        out = d.new_zeros(tokens, ids.shape[1]).float()
        for (first, n), found in zip(self._of_route(value, ids, d), self._tokens[at]):
            out[found[:, 0], found[:, 1]] = (d[first : first + n].float() * y[first : first + n].float()).sum(1)
        out = self._world.sum(out)
        [own] = self._world.places(tokens, "shard")
        return out[own.start : own.stop]

    def _of_route(self, value, ids, rows):
        """Where experts have rows that another kernel may have dispatched."""
        at = value["inputs"][1]
        if at not in self._spans:
            self._route(at, ids, rows.shape[0], value["drops"])
        return self._spans[at]

    def _combine(self, value, y, ids, weights):
        at = value["inputs"][1]
        tokens = self._whole(self._values[at])[0]
        weights = self._world.whole_rows(weights.float(), tokens)
        out = y.new_zeros(tokens, y.shape[1]).float()
        for (first, n), found in zip(self._spans[at], self._tokens[at]):
            # A token goes to an expert once.
            out[found[:, 0]] += y[first : first + n].float() * weights[found[:, 0], found[:, 1], None]
        out = self._world.sum(out)
        [own] = self._world.places(tokens, "shard")
        return out[own.start : own.stop].to(y.dtype)
