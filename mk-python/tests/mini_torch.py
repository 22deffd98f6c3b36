"""As much of torch, with numbers, as the comparison of ``Function.explain`` needs: strided tensors of Python floats, and ranks as
threads. Dtypes are tags; nothing is rounded."""

import itertools
import math
import threading
import types

bfloat16, float16, float32, float64, int32 = "bfloat16", "float16", "float32", "float64", "int32"


class Tensor:
    def __init__(self, data, shape, dtype, strides=None, offset=0):
        self.data, self.shape, self.dtype, self.offset = data, tuple(shape), dtype, offset
        self.device = "cuda:0"
        dense = [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))]
        self.strides = tuple(dense if strides is None else strides)
        self._dense = self.strides == tuple(dense)

    def at(self):
        """Where each element is, in order."""
        ranges = [range(0, n * s, s) if s else [0] * n for n, s in zip(self.shape, self.strides)]
        return [self.offset + sum(index) for index in itertools.product(*ranges)]

    def values(self):
        return [self.data[i] for i in self.at()]

    tolist = values

    def numel(self):
        return math.prod(self.shape)

    def dim(self):
        return len(self.shape)

    # Views.

    def _view(self, shape, strides, offset=None):
        return Tensor(self.data, shape, self.dtype, strides, self.offset if offset is None else offset)

    def narrow(self, dim, start, length):
        assert 0 <= start and start + length <= self.shape[dim], (self.shape, dim, start, length)
        shape = [length if d == dim else n for d, n in enumerate(self.shape)]
        return self._view(shape, self.strides, self.offset + start * self.strides[dim])

    def movedim(self, source, to):
        order = [d for d in range(self.dim()) if d != source]
        order.insert(to, source)
        return self._view([self.shape[d] for d in order], [self.strides[d] for d in order])

    def t(self):
        assert self.dim() == 2
        return self.movedim(0, 1)

    def __getitem__(self, index):
        every, at = index
        assert every == slice(None)
        return self._view(
            (self.shape[0], *self.shape[2:]), (self.strides[0], *self.strides[2:]), self.offset + at * self.strides[1]
        )

    def view(self, *shape):
        shape = list(shape[0] if isinstance(shape[0], (tuple, list)) else shape)
        assert self._dense, "a view of what is not contiguous"
        if -1 in shape:
            shape[shape.index(-1)] = self.numel() // -math.prod(shape)
        assert math.prod(shape) == self.numel(), (shape, self.shape)
        return Tensor(self.data, shape, self.dtype, offset=self.offset)

    def reshape(self, *shape):
        return self.contiguous().view(*shape)

    def flatten(self, first):
        return self.reshape([*self.shape[:first], math.prod(self.shape[first:])])

    def contiguous(self):
        return self if self._dense else Tensor(self.values(), self.shape, self.dtype)

    # Elements.

    def clone(self):
        return Tensor(self.values(), self.shape, self.dtype)

    def fill_(self, value):
        for i in self.at():
            self.data[i] = value
        return self

    def copy_(self, other):
        assert self.shape == other.shape, (self.shape, other.shape)
        for i, value in zip(self.at(), other.values()):
            self.data[i] = value
        return self

    def map(self, f, dtype=None):
        return Tensor([f(x) for x in self.values()], self.shape, dtype or self.dtype)

    def zip(self, other, f):
        if not isinstance(other, Tensor):
            return self.map(lambda x: f(x, other))
        if other.dim() < self.dim():  # along the last dimensions
            missing = self.dim() - other.dim()
            other = other._view(self.shape, (0,) * missing + other.strides)
        assert self.shape == other.shape, (self.shape, other.shape)
        return Tensor([f(x, y) for x, y in zip(self.values(), other.values())], self.shape, self.dtype)

    def to(self, dtype, copy=False):
        return self.map(float, dtype)

    def float(self):
        return self.to(float32)

    def __add__(self, other):
        return self.zip(other, lambda x, y: x + y)

    def __sub__(self, other):
        return self.zip(other, lambda x, y: x - y)

    def __mul__(self, other):
        return self.zip(other, lambda x, y: x * y)

    __rmul__ = __mul__

    def __truediv__(self, other):
        return self.zip(other, lambda x, y: x / y)

    def square(self):
        return self.map(lambda x: x * x)

    def sqrt(self):
        return self.map(math.sqrt)

    def clamp(self, min):
        return self.map(lambda x: x if math.isnan(x) or x > min else min)

    def nan_to_num(self, nan):
        return self.map(lambda x: nan if math.isnan(x) else x)

    def sum(self, dims=None):
        if dims is None:
            return Tensor([sum(self.values())], (), self.dtype)
        keep = [d for d in range(self.dim()) if d not in dims]
        order = [*keep, *dims]
        turned = self._view([self.shape[d] for d in order], [self.strides[d] for d in order]).values()
        n = math.prod(self.shape[d] for d in dims)
        return Tensor([sum(turned[i : i + n]) for i in range(0, len(turned), n)], [self.shape[d] for d in keep], self.dtype)

    def mean(self):
        return self.sum() / self.numel()

    def amax(self):
        values = self.values()
        return Tensor([math.nan if any(map(math.isnan, values)) else max(values)], (), self.dtype)


def tensor(numbers, dtype=float64, device=None):
    return Tensor(list(numbers), (len(numbers),), dtype)


def empty(shape, dtype=float32, device=None):
    shape = (shape,) if isinstance(shape, int) else shape
    return Tensor([math.nan] * math.prod(shape), shape, dtype)


def zeros(shape, dtype=float32, device=None):
    return empty(shape, dtype).fill_(0.0)


def stack(tensors):
    return Tensor([x for t in tensors for x in t.values()], (len(tensors), *tensors[0].shape), tensors[0].dtype)


def maximum(x, y):
    y = y if y.shape == x.shape else y._view(x.shape, (0,) * x.dim())
    return x.zip(y, lambda x, y: math.nan if math.isnan(x) or math.isnan(y) else max(x, y))


def mm(a, b, out):
    (m, k), (depth, n) = a.shape, b.shape
    assert k == depth and out.shape == (m, n) and a.dtype == b.dtype == out.dtype, (a.shape, b.shape, out.shape)
    left, right = a.values(), b.values()
    product = [sum(left[i * k + p] * right[p * n + j] for p in range(k)) for i in range(m) for j in range(n)]
    return out.copy_(Tensor(product, (m, n), out.dtype))


def relu(x):
    return x.map(lambda v: max(v, 0.0))


def _pad(t, widths):
    left, right, top, bottom = widths
    assert left == top == 0
    out = zeros((t.shape[0] + bottom, t.shape[1] + right), t.dtype)
    out.narrow(0, 0, t.shape[0]).narrow(1, 0, t.shape[1]).copy_(t)
    return out


nn = types.SimpleNamespace(
    functional=types.SimpleNamespace(
        gelu=lambda x: x.map(lambda v: v * 0.5 * (1.0 + math.erf(v / math.sqrt(2.0)))),
        silu=lambda x: x.map(lambda v: v / (1.0 + math.exp(-v))),
        pad=_pad,
    )
)


class Ranks:
    """torch.distributed for ranks that are threads; each has a ``view``."""

    def __init__(self, size):
        self.size, self._slots, self._barrier = size, [None] * size, threading.Barrier(size, timeout=30)

    def run(self, work):
        """What ``work(rank, dist)`` returns on each rank; raises what one raised."""
        results, errors = [None] * self.size, []

        def one(rank):
            try:
                results[rank] = work(rank, self.view(rank))
            except Exception as error:
                errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)] or errors
        if first:
            raise first[0]
        return results

    def view(self, rank):
        def exchange(mine):
            self._slots[rank] = mine
            self._barrier.wait()
            all_of_them = list(self._slots)
            self._barrier.wait()
            return all_of_them

        def contiguous(*tensors):
            assert all(t._dense for t in tensors), "NCCL takes contiguous tensors"

        def all_gather_into_tensor(out, mine):
            contiguous(out, mine)
            parts = exchange(mine.values())
            assert len({len(p) for p in parts}) == 1 and out.numel() == sum(map(len, parts)), "equal parts"
            out.copy_(Tensor(sum(parts, []), out.shape, out.dtype))

        def reduce_scatter_tensor(out, mine):
            contiguous(out, mine)
            contributions = exchange(mine.values())
            assert len({len(s) for s in contributions}) == 1 and self.size * out.numel() == mine.numel(), "equal parts"
            n = out.numel()
            out.copy_(Tensor([sum(s[rank * n + i] for s in contributions) for i in range(n)], out.shape, out.dtype))

        def all_reduce(mine, op=sum):
            contiguous(mine)
            mine.copy_(Tensor([op(v) for v in zip(*exchange(mine.values()))], mine.shape, mine.dtype))

        return types.SimpleNamespace(
            all_gather_into_tensor=all_gather_into_tensor,
            reduce_scatter_tensor=reduce_scatter_tensor,
            all_reduce=all_reduce,
            ReduceOp=types.SimpleNamespace(MAX=max),
        )
