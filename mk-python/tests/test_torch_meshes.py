"""Pipelines over the axes of a two-dimensional DeviceMesh, over gloo, beside torch on global tensors. Needs torch."""

import datetime
import os
import tempfile
import unittest

import mk

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    HAS_TORCH = hasattr(torch, "library") and hasattr(torch, "compile")
except ImportError:
    HAS_TORCH = False

BOTH = """fn both(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(1, tp) @ shard(0, dp)) {
    gather(a, tp) -> gemm(b) -> reduce_scatter(dp)
}"""
# Tokens over `dp`, weights in parts over `tp`.
MLP = """fn mlp(x: bf16[M, K] @ shard(0, dp), w1: bf16[K, F] @ shard(1, tp), c: bf16[F] @ shard(0, tp), w2: bf16[F, K] @ shard(0, tp)) {
    x -> gemm(w1) -> bias(c) -> gelu -> gemm(w2) -> all_reduce(tp)
}"""
# Weights in parts over both: gathered over `dp` before they are multiplied.
FSDP = """fn fsdp(x: bf16[M, K] @ shard(0, dp), w1: bf16[K, F] @ shard(0, dp) @ shard(1, tp), w2: bf16[F, K] @ shard(0, tp) @ shard(1, dp)) {
    let u = gather(w1, dp);
    let v = gather(w2, dp);
    x -> gemm(u) -> silu -> gemm(v) -> all_reduce(tp)
}"""
# Tokens over both: each rank along `tp` has some of the rows of its place along `dp`.
BOTH_SHARE = """fn sp(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), g: bf16[K], w1: bf16[K, F] @ shard(1, tp), w2: bf16[F, K] @ shard(0, tp)) {
    x -> rmsnorm(g, eps = 1e-5) -> gather(tp) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter(tp)
}"""
# Parts of the sequence are exchanged for heads, and back.
ULYSSES = """fn ulysses(q: bf16[B, S, H, 64] @ shard(1), k: bf16[B, S, G, 64] @ shard(1), v: bf16[B, S, G, 64] @ shard(1)) {
    let x = all_to_all(k, split = 2, concat = 1);
    let y = all_to_all(v, split = 2, concat = 1);
    all_to_all(q, split = 2, concat = 1) -> attention(x, y, causal) -> all_to_all(split = 1, concat = 2)
}"""
# Heads over `tp`, a ring over `dp`: ranks of both share the sequence.
BOTH_EXCHANGE = """fn f(q: bf16[B, S, H, 64] @ shard(1, dp) @ shard(1, tp), k: bf16[B, S, G, 64] @ shard(1, dp) @ shard(1, tp), v: bf16[B, S, G, 64] @ shard(1, dp) @ shard(1, tp)) {
    let h = all_to_all(q, tp, split = 2, concat = 1);
    let x = all_to_all(k, tp, split = 2, concat = 1);
    let y = all_to_all(v, tp, split = 2, concat = 1);
    ring(x, y, dp) -> attention(h, causal) -> all_to_all(tp, split = 1, concat = 2)
}"""
# A ring over `dp` of heads that ranks along `tp` have.
RING = """fn f(q: bf16[B, S, H, 64] @ zigzag(1, dp) @ shard(2, tp), k: bf16[B, S, G, 64] @ zigzag(1, dp) @ shard(2, tp), v: bf16[B, S, G, 64] @ zigzag(1, dp) @ shard(2, tp)) {
    ring(k, v, dp) -> attention(q, causal)
}"""
# Experts over `dp`, their matrices over `tp`.
EXPERTS = """fn experts(x: bf16[T, H] @ shard(0, dp), ids: i32[T, K] @ shard(0, dp), gate: f32[T, K] @ shard(0, dp),
        w1: bf16[E, H, 2, I] @ shard(0, dp) @ shard(3, tp), w2: bf16[E, I, H] @ shard(0, dp) @ shard(1, tp)) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate) -> SUM(tp)
}"""
# Over one axis: along the other, ranks have tensors of their own.
ROWS = "gather(a, tp) -> gemm(b)"
MESHES = [{"dp": 2, "tp": 2}, {"tp": 2, "dp": 2}]


def drawn(*shape):
    """The same on every rank."""
    return (torch.randn(*shape) / 4).bfloat16()


class Mesh:
    """What a rank has of global tensors."""

    def __init__(self, mesh):
        self.mesh, self.world = mesh, mk.World.reference(mesh)

    def part(self, x, **cuts):
        for axis, dim in cuts.items():
            x = x.chunk(self.mesh[axis].size(), dim)[self.mesh.get_local_rank(axis)]
        return x.contiguous()

    def leaf(self, x, **cuts):
        return self.part(x, **cuts).clone().requires_grad_()


def close(case, what, found, wanted):
    """Within the rounding of bfloat16 to the largest."""
    found, wanted = found.float(), wanted.float()
    case.assertEqual(found.shape, wanted.shape, what)
    error = (found - wanted).abs().max() / wanted.abs().max()
    case.assertLess(error.item(), 0.01, what)


def forward(case, on):
    torch.manual_seed(1)
    a, b = drawn(24, 32), drawn(32, 40)
    f = mk.compile(BOTH, on.world)
    mine = on.part(a, tp=0, dp=1), on.part(b, tp=1, dp=0)
    close(case, "both", f(*mine), on.part(a.float() @ b.float(), dp=0, tp=1))
    case.assertEqual(f.infer(*[t.shape for t in mine]), [((12, 20), torch.bfloat16)])
    out = torch.empty(12, 20, dtype=torch.bfloat16)
    case.assertIs(f(*mine, out=out), out)
    close(case, "into", out, on.part(a.float() @ b.float(), dp=0, tp=1))
    # Groups along `dp` have rows of their own, and weights of their own.
    torch.manual_seed(2 + on.mesh.get_local_rank("dp"))
    a, b = drawn(24, 32), drawn(32, 40)
    close(case, "rows", mk.compile(ROWS, on.world)(on.part(a, tp=0), b), a.float() @ b.float())


def dense(kind, x, w1, w2, c):
    act = torch.nn.functional.gelu if kind is MLP else torch.nn.functional.silu
    u = x @ w1 if c is None else x @ w1 + c
    return act(u) @ w2


def gradients(case, on):
    for kind, cuts in [(MLP, [{"tp": 1}, {"tp": 0}]), (FSDP, [{"dp": 0, "tp": 1}, {"tp": 0, "dp": 1}])]:
        for save in ("all", "least") if kind is FSDP else ("all",):
            torch.manual_seed(3)
            x, w1, w2, d = drawn(16, 24), drawn(24, 32), drawn(32, 24), drawn(16, 24)
            c = drawn(32) if kind is MLP else None
            theirs = [t.float().requires_grad_() for t in (x, w1, w2) + ((c,) if kind is MLP else ())]
            wanted = dense(kind, *theirs[:3], theirs[3] if kind is MLP else None)
            wanted.backward(d.float())
            mine = [on.leaf(x, dp=0), on.leaf(w1, **cuts[0]), on.leaf(w2, **cuts[1])]
            f = mk.compile(kind, on.world, save=save)
            args = [mine[0], mine[1], mine[2]]
            if kind is MLP:
                mine.append(on.leaf(c, tp=0))
                args = [mine[0], mine[1], mine[3], mine[2]]
            y = f(*args)
            close(case, "forward", y, on.part(wanted.detach(), dp=0))
            y.backward(on.part(d, dp=0))
            for own, whole, at in zip(mine, theirs, [{"dp": 0}, *cuts, {"tp": 0}]):
                # Summed over `dp`, where each rank has the gradients of its tokens.
                close(case, f"{save} {at}", own.grad, on.part(whole.grad, **at))
    # Rows of three dimensions are those of two.
    torch.manual_seed(4)
    x, w1, c, w2 = drawn(8, 3, 24), drawn(24, 32), drawn(32), drawn(32, 24)
    y = mk.compile(MLP, on.world)(on.leaf(x, dp=0), on.leaf(w1, tp=1), on.leaf(c, tp=0), on.leaf(w2, tp=0))
    close(case, "batches", y.detach(), on.part(dense(MLP, x.float(), w1.float(), w2.float(), c.float()), dp=0))


def rows_of_both(case, on):
    """Rows that both axes share, beside torch on all of them."""
    rows = {"dp": 0, "tp": 0}
    for save in ("all", "least"):
        torch.manual_seed(6)
        x, g, w1, w2, d = drawn(16, 24), drawn(24), drawn(24, 32), drawn(32, 24), drawn(16, 24)
        theirs = [t.float().requires_grad_() for t in (x, g, w1, w2)]
        norm = torch.nn.functional.rms_norm(theirs[0], (24,), theirs[1], 1e-5)
        wanted = torch.nn.functional.gelu(norm @ theirs[2]) @ theirs[3]
        wanted.backward(d.float())
        cuts = [rows, {}, {"tp": 1}, {"tp": 0}]
        mine = [on.leaf(t, **cut) for t, cut in zip((x, g, w1, w2), cuts)]
        f = mk.compile(BOTH_SHARE, on.world, save=save)
        y = f(*mine)
        close(case, "forward", y, on.part(wanted.detach(), **rows))
        y.backward(on.part(d, **rows))
        for own, whole, cut in zip(mine, theirs, cuts):
            close(case, f"{save} {cut}", own.grad, on.part(whole.grad, **cut))
    case.assertEqual(f.infer((4, 24), (24,), (24, 16), (16, 24)), [((4, 24), torch.bfloat16)])
    # Batches: the first dimension is shared; a part of a part, as torch.chunk has it, of sizes that are said.
    y = f(on.part(drawn(8, 3, 24), **rows), *(t.detach() for t in mine[1:]))
    case.assertEqual(y.shape, (2, 3, 24))
    odd = mk.compile("fn f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp)) { gather(x, tp) -> gather(dp) }", on.world, shapes={"x": (11, 8)})
    x = drawn(11, 8)
    case.assertTrue(torch.equal(odd(on.part(x, **rows)), x))


def refused(case, on):
    """What does not fit is refused on every rank, with what to do."""
    a, b = drawn(12, 16), drawn(16, 20)

    def fails(error, words, call):
        with case.assertRaises(error) as caught:
            call()
        for word in words:
            case.assertIn(word, str(caught.exception))

    shown = ",".join(f"{name}={n}" for name, n in on.world.mesh.items())
    for text, axis in [("gather(a) -> gemm(b)", "world"), (BOTH.replace("dp", "pp"), "pp")]:
        fails(mk.ArgumentError, [f"over the axis `{axis}`", shown, "help:"], lambda: mk.compile(text, on.world))
    fails(mk.ArgumentError, ["axes `tp`, `dp`", "torch DeviceMesh"], lambda: mk.compile(BOTH, mk.World.reference()))
    f = mk.compile(BOTH, on.world, shapes={"a": (24, 32), "b": (32, 40)})
    fails(mk.ArgumentError, ["`a` has shape [12, 15]", "[24, 32] @ shard(0, tp) @ shard(1, dp)", "tp=2,dp=2"], lambda: f(a[:, :15].contiguous(), b))
    rows = mk.compile(BOTH, on.world)
    some = a[: 6 + 6 * (dist.get_rank() < 3)].contiguous()
    fails(mk.RendezvousError, ["differs from rank"], lambda: rows(some, b))
    fails(mk.UnsupportedError, ["Plan.explain()"], lambda: rows.explain(a, b))


def exchanges(case, mesh):
    """Attention by heads of sequences that ranks share, with gradients."""
    rank = mesh.get_local_rank("tp")
    torch.manual_seed(7)
    q, k, v, d = (torch.randn(2, n, heads, 64).bfloat16() for n, heads in ((10, 4), (10, 2), (10, 2), (10, 4)))
    theirs = [t.float().transpose(1, 2).requires_grad_() for t in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=True, enable_gqa=True)
    wanted.backward(d.float().transpose(1, 2))
    part = lambda x: x.chunk(2, 1)[rank].contiguous()
    mine = [part(t).clone().requires_grad_() for t in (q, k, v)]
    y = mk.compile(ULYSSES, mk.World.reference(mesh["tp"]))(*mine)
    close(case, "ulysses", y, part(wanted.detach().transpose(1, 2)))
    y.backward(part(d))
    for own, whole in zip(mine, theirs):
        close(case, "gradients by heads", own.grad, part(whole.grad.transpose(1, 2)))


def attends(case, on):
    """Attention whose sequence ranks along one axis share, and its heads those along the other; or both its sequence."""
    turned = lambda x: torch.cat([x.chunk(4, 1)[i] for i in (0, 3, 1, 2)], 1)
    for text, cuts, order in [(BOTH_EXCHANGE, {"dp": 1, "tp": 1}, lambda x: x), (RING, {"dp": 1, "tp": 2}, turned)]:
        torch.manual_seed(8)
        q, k, v, d = (torch.randn(2, 12, heads, 64).bfloat16() for heads in (4, 2, 2, 4))
        theirs = [t.float().transpose(1, 2).requires_grad_() for t in (q, k, v)]
        wanted = torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=True, enable_gqa=True)
        wanted.backward(d.float().transpose(1, 2))
        mine = [on.leaf(order(t), **cuts) for t in (q, k, v)]
        y = mk.compile(text, on.world)(*mine)
        close(case, "heads and parts", y, on.part(order(wanted.detach().transpose(1, 2)), **cuts))
        y.backward(on.part(order(d), **cuts))
        for own, whole in zip(mine, theirs):
            close(case, "their gradients", own.grad, on.part(order(whole.grad.transpose(1, 2)), **cuts))


def experts(case, on):
    """Tokens to their experts and back, and gradients of them and of the matrices, beside torch on all of both."""
    for how, out in (("all_reduce", {"dp": 0}), ("reduce_scatter", {"dp": 0, "tp": 0})):
        torch.manual_seed(9)
        x, w1, w2, d = drawn(16, 24), drawn(6, 24, 2, 16), drawn(6, 16, 24), drawn(16, 24)
        gate, ids = torch.rand(16, 6).topk(2)
        theirs = [t.float().requires_grad_() for t in (x, w1, w2, gate.clone())]
        wanted = 0
        for e in range(6):
            rows = torch.nn.functional.silu(theirs[0] @ theirs[1][e, :, 0]) * (theirs[0] @ theirs[1][e, :, 1])
            wanted = wanted + (theirs[3] * (ids == e)).sum(1, keepdim=True) * (rows @ theirs[2][e])
        wanted.backward(d.float())
        cuts = [{"dp": 0}, {"dp": 0, "tp": 3}, {"dp": 0, "tp": 1}, {"dp": 0}]
        mine = [on.leaf(t, **cut) for t, cut in zip((x, w1, w2, gate), cuts)]
        f = mk.compile(EXPERTS.replace("SUM", how), on.world)
        y = f(mine[0], on.part(ids.int(), dp=0), mine[3], *mine[1:3])
        close(case, f"experts, {how}", y, on.part(wanted.detach(), **out))
        y.backward(on.part(d, **out))
        for own, whole, cut in zip(mine, theirs, cuts):
            close(case, f"experts, {how}, {cut}", own.grad, on.part(whole.grad, **cut))


def two_worlds(case, mesh):
    """Both axes as worlds of their own, at once."""
    along = {axis: mk.World.reference(mesh[axis]) for axis in ("tp", "dp")}
    torch.manual_seed(5)
    x, w, d = drawn(16, 24), drawn(24, 32), drawn(16, 32)
    part = Mesh(mesh).part
    gathered = mk.compile("gather(x) -> gemm(w)", along["tp"])
    summed = mk.compile("fn f(x: bf16[T, M] @ shard(0), d: bf16[T, N] @ shard(0)) { gemm(x.t, d) -> reduce_scatter }", along["dp"])
    for _ in range(2):
        close(case, "along tp", gathered(part(x, tp=0), part(w, tp=1)), x.float() @ part(w, tp=1).float())
        close(case, "along dp", summed(part(x, dp=0), part(d, dp=0)), part(x.float().t() @ d.float(), dp=0))


def on_ranks(rank, path):
    case = unittest.TestCase()
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4, timeout=limit)
    try:
        for axes in MESHES:
            mesh = dist.init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
            on = Mesh(mesh)
            case.assertEqual((on.world.size, on.world.ranks, on.world.mesh), (4, [rank], axes))
            forward(case, on)
            gradients(case, on)
            rows_of_both(case, on)
            attends(case, on)
            experts(case, on)
            refused(case, on)
            two_worlds(case, mesh)
            exchanges(case, mesh)
        unnamed = dist.init_device_mesh("cpu", (2, 2))
        with case.assertRaisesRegex(mk.ArgumentError, "2 dimensions without names"):
            mk.World.reference(unnamed)
        turned = dist.DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("dp", "tp"))
        with case.assertRaisesRegex(mk.ArgumentError, r"in the order \[0, 2, 1, 3\]"):
            mk.World.reference(turned)
        # A mesh of some axes of another one, and one of ranks along an axis.
        cube = dist.init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        forward(case, Mesh(cube["dp", "tp"]))
        a, b = drawn(8, 16), drawn(16, 8)
        sub = mk.World.reference(cube["tp"])
        case.assertEqual((sub.size, sub.mesh), (2, {}))
        close(case, "along tp", mk.compile("gather(a) -> gemm(b)", sub)(a.chunk(2)[cube.get_local_rank("tp")].contiguous(), b), a.float() @ b.float())
    finally:
        dist.destroy_process_group()


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Meshes(unittest.TestCase):
    def test_two_axes_of_two_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(on_ranks, (os.path.join(folder, "store"),), nprocs=4)


if __name__ == "__main__":
    unittest.main()
