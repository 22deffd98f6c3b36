"""GEMMs by cublasLt, with the algorithm that is measured to be the fastest of those it proposes.

``C = A @ B``, all row-major bfloat16 and accumulated in fp32; A or B may lie transposed. cublasLt is column-major: it is asked for
``C^T = B^T @ A^T``, which is the same memory.
"""

import ctypes as c

import torch

_BF16, _FP32, _COMPUTE_32F = 14, 0, 68  # cudaDataType_t, cublasComputeType_t
_TRANSPOSE_A, _TRANSPOSE_B, _OP_T = 3, 4, 1  # cublasLtMatmulDescAttributes_t, cublasOperation_t
_WORKSPACE_LIMIT = 1  # cublasLtMatmulPreferenceAttributes_t
WORKSPACE_BYTES = 64 << 20
PROPOSALS = 8


class CublasError(RuntimeError):
    """A call of cublasLt that failed, by name and status."""


class _Algo(c.Structure):
    _fields_ = [("data", c.c_uint64 * 8)]


class _Proposal(c.Structure):
    _fields_ = [
        ("algo", _Algo),
        ("workspace", c.c_size_t),
        ("state", c.c_int),
        ("waves", c.c_float),
        ("reserved", c.c_int * 4),
    ]


class Library:
    """libcublasLt, as torch has loaded it, and a workspace on the current GPU."""

    def __init__(self):
        self._lib = c.CDLL(_loaded("libcublasLt.so"))
        self._handle = c.c_void_p()
        self("cublasLtCreate", c.byref(self._handle))
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self._lib.cublasLtGetVersion.restype = c.c_size_t
        self.version = int(self._lib.cublasLtGetVersion())

    def __call__(self, name, *args):
        status = getattr(self._lib, name)(*args)
        if status != 0:
            raise CublasError(f"{name} returned status {status}")

    def proposals(self, m, k, n, turned=(False, False)):
        """What cublasLt proposes for a product of ``[m, k]`` and ``[k, n]``, best guess first. Operands that are ``turned`` lie as ``[k, m]``
        and ``[n, k]``."""
        what, left, right, out, limit = (c.c_void_p() for _ in range(5))
        self("cublasLtMatmulDescCreate", c.byref(what), _COMPUTE_32F, _FP32)
        a_turned, b_turned = turned
        for attribute, is_turned in (_TRANSPOSE_A, b_turned), (_TRANSPOSE_B, a_turned):
            if is_turned:
                self("cublasLtMatmulDescSetAttribute", what, attribute, c.byref(c.c_int32(_OP_T)), c.c_size_t(4))
        flip = lambda is_turned, *shape: shape[::-1] if is_turned else shape
        for layout, (rows, columns) in (left, flip(b_turned, n, k)), (right, flip(a_turned, k, m)), (out, (n, m)):
            sizes = c.c_uint64(rows), c.c_uint64(columns), c.c_int64(rows)
            self("cublasLtMatrixLayoutCreate", c.byref(layout), _BF16, *sizes)
        self("cublasLtMatmulPreferenceCreate", c.byref(limit))
        most = c.c_uint64(WORKSPACE_BYTES)
        self("cublasLtMatmulPreferenceSetAttribute", limit, _WORKSPACE_LIMIT, c.byref(most), c.c_size_t(8))
        found, n_found = (_Proposal * PROPOSALS)(), c.c_int()
        self(
            "cublasLtMatmulAlgoGetHeuristic",
            *(self._handle, what, left, right, out, out, limit),
            *(PROPOSALS, found, c.byref(n_found)),
        )
        self("cublasLtMatmulPreferenceDestroy", limit)
        return [
            Product(self, (what, left, right, out), proposal, f"cublasLt, proposal {i}")
            for i, proposal in enumerate(found[: n_found.value])
            if proposal.state == 0
        ]


class Product:
    """One way to multiply, for one shape."""

    def __init__(self, lib, layouts, proposal, name):
        self.name, self._lib, self._layouts, self._proposal = name, lib, layouts, proposal
        self._one, self._zero = c.c_float(1.0), c.c_float(0.0)

    def __call__(self, a, b, out):
        what, left, right, result = self._layouts
        target = c.c_void_p(out.data_ptr())
        self._lib(
            "cublasLtMatmul",
            *(self._lib._handle, what, c.byref(self._one)),
            *(c.c_void_p(b.data_ptr()), left, c.c_void_p(a.data_ptr()), right, c.byref(self._zero)),
            *(target, result, target, result, c.byref(self._proposal.algo)),
            *(c.c_void_p(self._lib.workspace.data_ptr()), c.c_size_t(WORKSPACE_BYTES)),
            c.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        return out


class TorchProduct:
    """What ``torch.mm`` takes: cuBLAS and its own choice."""

    name = "torch.mm"

    def __init__(self, turned):
        self._turned = turned

    def __call__(self, a, b, out):
        a, b = (t.t() if is_turned else t for t, is_turned in zip((a, b), self._turned))
        return torch.mm(a, b, out=out)


def best(lib, shape, pairs, out, slowest, flush, rounds=5, turned=(False, False)):
    """The fastest way to multiply on the slowest rank, and all times in ms by name.

    ``pairs`` are inputs to rotate over, as they lie, ``slowest`` takes a list of numbers to their maxima over ranks, ``flush`` clears
    the caches. All ranks measure at the same time, and choose the same.
    """
    ways = [TorchProduct(turned)] + lib.proposals(*shape, turned)
    times = [[] for _ in ways]
    for i in range(rounds + 1):
        events = []
        for way in ways:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush()
            start.record()
            way(*pairs[i % len(pairs)], out)
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        if i > 0:  # the first warms up
            for mine, (start, end) in zip(times, events):
                mine.append(start.elapsed_time(end))
    medians = slowest([sorted(t)[len(t) // 2] for t in times])
    chosen = min(range(len(ways)), key=lambda i: medians[i])
    return ways[chosen], {way.name: ms for way, ms in zip(ways, medians)}


def _loaded(name):
    """The path of a library that this process has loaded already; else the name, for the loader to find."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if name in line}
    return min(paths) if paths else f"{name}.13"
