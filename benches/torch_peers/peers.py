"""What mk is compared with: cuBLAS and NCCL one after the other, and PyTorch's operators on symmetric memory."""

import os
import warnings
from contextlib import contextmanager

import contestant
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import torch.nn.functional as F
import triton
import triton.language as tl
from contestant import ALONE, PEER, Contestant

NATIVE = "TORCH_SYMM_MEM_ENABLE_NATIVE_ASYNC_TP"


class Group:
    """The process group by name, enabled for symmetric memory."""

    def __init__(self):
        self.name = dist.group.WORLD.group_name
        if hasattr(symm_mem, "enable_symm_mem_for_group"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                symm_mem.enable_symm_mem_for_group(self.name)
        # NVLink multicast is switched off for all; an operator that would use it must not be reached.
        kind = torch._C._autograd.DeviceType.CUDA
        self.multicast = torch._C._distributed_c10d._SymmetricMemory.has_multicast_support(kind, torch.cuda.current_device())

    def symmetric(self, *shape):
        """A symmetric bfloat16 tensor. Collective."""
        tensor = symm_mem.empty(*shape, dtype=torch.bfloat16, device="cuda")
        symm_mem.rendezvous(tensor, self.name)
        return tensor

    def gather_gemm(self, a, b):
        # Without the gathered operand it may take a multicast path.
        return torch.ops.symm_mem.fused_all_gather_matmul(a, [b], 0, self.name, return_A=self.multicast)[1][0]

    def gemm_scatter(self, a, b):
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, "sum", 0, self.name)


def contestants(row, inputs, group, gemms, result):
    """Pairs of a name and a function that makes the contestant; making is collective, and may raise.

    ``gemms`` are the best ways to multiply, one per product of the row; ``result`` makes a tensor for the result.
    """
    make = {
        "gemm": _gemm,
        "gather-gemm": _gather_gemm,
        "gemm-reduce_scatter": _gemm_scatter,
        "gemm-all_reduce": _gemm_reduce,
        "gather-gemm-reduce_scatter": _gather_gemm_scatter,
        "mlp-gelu": _mlp,
        "mlp-swiglu": _mlp,
    }[row.op]
    return make(row, inputs, group, gemms, result)


def _gemm(row, inputs, group, gemms, result):
    sets, gemm = inputs.sets, gemms[0]

    def compute():
        out = result()
        return Contestant("compute alone", ALONE, lambda i: gemm(*sets[i], out), [out], note=gemm.name)

    def plain():
        out = result()
        return Contestant("torch.mm", PEER, lambda i: torch.mm(*sets[i], out=out), [out])

    return [("compute alone", compute), ("torch.mm", plain)]


def _gather_gemm(row, inputs, group, gemms, result):
    sets, whole, gemm = inputs.sets, inputs.whole, gemms[0]

    def compute():
        out = result()
        return Contestant("compute alone", ALONE, lambda i: gemm(whole[i], sets[i][1], out), [out], note=gemm.name)

    def nccl():
        gathered = torch.empty_like(whole[0])
        return Contestant("NCCL alone", ALONE, lambda i: _gather(gathered, sets[i][0]))

    def unfused():
        gathered, out = torch.empty_like(whole[0]), result()

        def run(i):
            _gather(gathered, sets[i][0])
            return gemm(gathered, sets[i][1], out)

        return Contestant("NCCL, cuBLAS", PEER, run, [out])

    def async_tp():
        return Contestant("async-TP", PEER, lambda i: group.gather_gemm(*sets[i]))

    def native():
        if not 2048 < row.m <= 4096:
            raise NotImplementedError("PyTorch takes this path for more than 2048 and at most 4096 rows only")

        def run(i):
            with _environment(NATIVE, "1"):
                return group.gather_gemm(*sets[i])

        return Contestant("async-TP, native", PEER, run)

    return [("compute alone", compute), ("NCCL alone", nccl), ("NCCL, cuBLAS", unfused), ("async-TP", async_tp), ("async-TP, native", native)]


def _gemm_scatter(row, inputs, group, gemms, result):
    sets, gemm = inputs.sets, gemms[0]

    def part():
        return torch.empty(row.m, row.n, dtype=torch.bfloat16, device="cuda")

    def compute():
        sums = part()
        return Contestant("compute alone", ALONE, lambda i: _nothing(gemm(*sets[i], sums)), note=gemm.name)

    def nccl():
        sums, out = gemm(*sets[0], part()), result()
        return Contestant("NCCL alone", ALONE, lambda i: _nothing(dist.reduce_scatter_tensor(out, sums)))

    def unfused():
        sums, out = part(), result()

        def run(i):
            dist.reduce_scatter_tensor(out, gemm(*sets[i], sums))
            return out

        return Contestant("cuBLAS, NCCL", PEER, run, [out])

    def async_tp():
        return Contestant("async-TP", PEER, lambda i: group.gemm_scatter(*sets[i]))

    return [("compute alone", compute), ("NCCL alone", nccl), ("cuBLAS, NCCL", unfused), ("async-TP", async_tp)]


def _gemm_reduce(row, inputs, group, gemms, result):
    sets, gemm = inputs.sets, gemms[0]

    def compute():
        sums = result()
        return Contestant("compute alone", ALONE, lambda i: _nothing(gemm(*sets[i], sums)), note=gemm.name)

    def nccl():
        sums = torch.randn(row.m, row.n, device="cuda").bfloat16()
        fresh = sums.clone()

        def run(i):
            dist.all_reduce(sums)

        def after():
            sums.copy_(fresh)  # sums of sums would grow without end

        return Contestant("NCCL alone", ALONE, run, after=after)

    def unfused():
        out = result()

        def run(i):
            dist.all_reduce(gemm(*sets[i], out))
            return out

        return Contestant("cuBLAS, NCCL", PEER, run, [out])

    def two_shot():
        out = group.symmetric(row.m, row.n)

        def run(i):
            gemm(*sets[i], out)
            return torch.ops.symm_mem.two_shot_all_reduce_(out, "sum", group.name)

        return Contestant("cuBLAS, two-shot", PEER, run, [out])

    def one_shot():
        if row.m > 512:
            raise NotImplementedError("for at most 512 rows: every rank reads all contributions")
        sums, out = group.symmetric(row.m, row.n), result()

        def run(i):
            gemm(*sets[i], sums)
            return torch.ops.symm_mem.one_shot_all_reduce_out(sums, "sum", group.name, out)

        return Contestant("cuBLAS, one-shot", PEER, run, [out])

    def async_tp():
        out = result()

        def run(i):
            return _gather(out, group.gemm_scatter(*sets[i]), keep=True)

        return Contestant("async-TP, NCCL gather", PEER, run, [out])

    return [
        ("compute alone", compute),
        ("NCCL alone", nccl),
        ("cuBLAS, NCCL", unfused),
        ("cuBLAS, two-shot", two_shot),
        ("cuBLAS, one-shot", one_shot),
        ("async-TP, NCCL gather", async_tp),
    ]


def _gather_gemm_scatter(row, inputs, group, gemms, result):
    sets, whole, gemm = inputs.sets, inputs.whole, gemms[0]

    def part():
        return torch.empty(row.m, row.n, dtype=torch.bfloat16, device="cuda")

    def compute():
        sums = part()
        return Contestant("compute alone", ALONE, lambda i: _nothing(gemm(whole[i], sets[i][1], sums)), note=gemm.name)

    def nccl():
        gathered, sums, out = torch.empty_like(whole[0]), gemm(whole[0], sets[0][1], part()), result()

        def run(i):
            _gather(gathered, sets[i][0])
            dist.reduce_scatter_tensor(out, sums)

        return Contestant("NCCL alone", ALONE, run)

    def unfused():
        gathered, sums, out = torch.empty_like(whole[0]), part(), result()

        def run(i):
            _gather(gathered, sets[i][0])
            dist.reduce_scatter_tensor(out, gemm(gathered, sets[i][1], sums))
            return out

        return Contestant("cuBLAS, NCCL", PEER, run, [out])

    def first_half():
        out = result()

        def run(i):
            dist.reduce_scatter_tensor(out, group.gather_gemm(*sets[i]))
            return out

        return Contestant("async-TP gather, NCCL", PEER, run, [out])

    def second_half():
        gathered = torch.empty_like(whole[0])

        def run(i):
            return group.gemm_scatter(_gather(gathered, sets[i][0], keep=True), sets[i][1])

        return Contestant("NCCL, async-TP reduce", PEER, run)

    return [
        ("compute alone", compute),
        ("NCCL alone", nccl),
        ("cuBLAS, NCCL", unfused),
        ("async-TP gather, NCCL", first_half),
        ("NCCL, async-TP reduce", second_half),
    ]


def _mlp(row, inputs, group, gemms, result):
    sets, whole = [(x, w.flatten(1), v) for x, w, v in inputs.sets], inputs.whole
    up, down = gemms
    hidden = sets[0][2].shape[0]
    act = gated if row.op == "mlp-swiglu" else (lambda h, out: F.gelu(h))

    def space():
        wide = whole[0].new_empty(row.m, sets[0][1].shape[1])
        return wide, whole[0].new_empty(row.m, hidden), whole[0].new_empty(row.m, row.k)

    def compute():
        wide, narrow, sums = space()
        narrow.normal_()

        def run(i):
            up(whole[i], sets[i][1], wide)
            down(narrow, sets[i][2], sums)

        return Contestant("compute alone", ALONE, run, note=f"both products: {up.name}; {down.name}")

    def nccl():
        gathered, sums, out = torch.empty_like(whole[0]), torch.randn_like(whole[0]), result()

        def run(i):
            _gather(gathered, sets[i][0])
            dist.reduce_scatter_tensor(out, sums)

        return Contestant("NCCL alone", ALONE, run)

    def unfused():
        gathered, (wide, narrow, sums), out = torch.empty_like(whole[0]), space(), result()

        def run(i):
            _gather(gathered, sets[i][0])
            h = act(up(gathered, sets[i][1], wide), narrow)
            dist.reduce_scatter_tensor(out, down(h, sets[i][2], sums))
            return out

        return Contestant("cuBLAS, NCCL", PEER, run, [out])

    def async_tp():
        _, narrow, _ = space()

        def run(i):
            h = act(group.gather_gemm(sets[i][0], sets[i][1]), narrow)
            return group.gemm_scatter(h, sets[i][2])

        return Contestant("async-TP", PEER, run)

    return [("compute alone", compute), ("NCCL alone", nccl), ("cuBLAS, NCCL", unfused), ("async-TP", async_tp)]


def _gather(out, shard, keep=False):
    """NCCL's all-gather; ``keep`` to go on with the result, which is otherwise not judged."""
    dist.all_gather_into_tensor(out, shard)
    return out if keep else None


def _nothing(_):
    """Not the row's result: not judged."""


@contextmanager
def _environment(name, value):
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


@triton.jit
def _gated(wide, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    gate = tl.load(wide + row * 2 * columns + at, mask=inside).to(tl.float32)
    up = tl.load(wide + row * 2 * columns + columns + at, mask=inside).to(tl.float32)
    tl.store(out + row * columns + at, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=inside)


def gated(wide, out):
    """``silu(gate) * up`` in one kernel: ``[M, 2F]`` to ``[M, F]``, gates first."""
    rows, columns = out.shape
    _gated[(rows, triton.cdiv(columns, 1024))](wide, out, columns, BLOCK=1024)
    return out
