"""Whole attention blocks as one pipeline, which is cut at its views, over gloo and step by step, beside torch. Needs torch."""

import datetime
import os
import tempfile
import unittest

import mk

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    HAS_TORCH = hasattr(torch, "library") and hasattr(torch, "compile")
except ImportError:
    HAS_TORCH = False

# Heads in parts, as tensor parallelism has them; rows of two sequences.
HEADS = """fn block(
    x: bf16[M, C] @ shard(0), t: f32[M, 64], wq: bf16[C, Q] @ shard(1), wk: bf16[C, K] @ shard(1), wv: bf16[C, K] @ shard(1),
    wo: bf16[Q, C] @ shard(0),
) {
    let a = gather(x);
    let q = a -> gemm(wq) -> rope(t) -> view(2, S, H, 64);
    let k = a -> gemm(wk) -> rope(t) -> view(2, S, G, 64);
    let v = a -> gemm(wv) -> view(2, S, G, 64);
    attention(q, k, v, causal) -> view(M, Q) -> gemm(wo) -> reduce_scatter -> add(x)
}"""
# One sequence in parts, as context parallelism has it.
SEQUENCE = """fn block(
    x: bf16[M, C] @ shard(0), t: f32[M, 64] @ shard(0), wq: bf16[C, Q], wk: bf16[C, K], wv: bf16[C, K], wo: bf16[Q, C],
) {
    let q = gemm(x, wq) -> rope(t) -> view(1, S, H, 64);
    let k = gemm(x, wk) -> rope(t) -> view(1, S, G, 64);
    let v = gemm(x, wv) -> view(1, S, G, 64);
    ring(k, v) -> attention(q, causal) -> view(M, Q) -> gemm(wo) -> add(x)
}"""
NAMES = ("x", "wq", "wk", "wv", "wo")


def drawn(*shape):
    """The same on every rank."""
    return (torch.randn(*shape) / shape[0] ** 0.5).bfloat16()


def angles(rows, sequence):
    turned = torch.arange(rows)[:, None] % sequence / 10000 ** (torch.arange(32) / 32)
    return torch.cat([turned.cos(), turned.sin()], 1).float()


def turn(x, t):
    """Rotary positions of ``[M, H * 64]``, in float64."""
    first, second = x.view(len(x), -1, 2, 32).unbind(2)
    cos, sin = (part[:, None].double() for part in t.chunk(2, 1))
    return torch.stack([first * cos - second * sin, second * cos + first * sin], 2).view(x.shape)


def wanted(x, t, wq, wk, wv, wo, sequences):
    heads = lambda x: x.view(sequences, -1, x.shape[1] // 64, 64).transpose(1, 2)
    q, k, v = turn(x @ wq, t), turn(x @ wk, t), x @ wv
    o = sdpa(heads(q), heads(k), heads(v), is_causal=True, enable_gqa=True)
    return o.transpose(1, 2).reshape(len(x), -1) @ wo + x


def close(case, what, found, want, limit=2e-2):
    found, want = found.double(), want.double()
    case.assertEqual(found.shape, want.shape, what)
    case.assertLess(((found - want).norm() / want.norm()).item(), limit, what)


def blocks(case, rank, ranks):
    world = mk.World.reference()
    part = lambda x, dim: x.chunk(ranks, dim)[rank].contiguous()
    for text, sequences, cuts in ((HEADS, 2, {"x": 0, "wq": 1, "wk": 1, "wv": 1, "wo": 0}), (SEQUENCE, 1, {"x": 0})):
        torch.manual_seed(3)
        rows = 48 * sequences
        given = [drawn(rows, 96), drawn(96, 256), drawn(96, 128), drawn(96, 128), drawn(256, 96)]
        t, d = angles(rows, 48), drawn(rows, 96)
        whole = [x.double().requires_grad_() for x in given]
        want = wanted(whole[0], t, *whole[1:], sequences)
        gradients = torch.autograd.grad(want, whole, d.double())
        mine = [part(x, cuts[name]) if name in cuts else x for name, x in zip(NAMES, given)]
        mine = [x.clone().requires_grad_() for x in mine]
        table = t if text == HEADS else part(t, 0)
        for save in ("all", "least"):
            f = mk.compile(text, world, save=save)
            y = f(mine[0], table, *mine[1:])
            close(case, f"{sequences} sequences", y, part(want, 0))
            found = torch.autograd.grad(y, mine, part(d, 0))
            for name, g, want_g in zip(NAMES, found, gradients):
                close(case, f"{sequences} sequences, d_{name}", g, part(want_g, cuts[name]) if name in cuts else want_g, 4e-2)


def child(rank, ranks, directory):
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=120)
    )
    blocks(unittest.TestCase(), rank, ranks)
    dist.destroy_process_group()


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Blocks(unittest.TestCase):
    def test_two_ranks(self):
        with tempfile.TemporaryDirectory() as directory:
            os.environ["OMP_NUM_THREADS"] = "1"
            mp.spawn(child, (2, directory), nprocs=2)

    def test_step_by_step(self):
        """As on a GPU: kernels in turn, each by itself, and views between them."""
        world = mk.World.reference()
        torch.manual_seed(4)
        given = [drawn(96, 96), angles(96, 48), drawn(96, 256), drawn(96, 128), drawn(96, 128), drawn(256, 96)]
        runner = mk._runner.Runner(HEADS, world, {})
        sizes = runner.sizes([x.shape for x in given])
        self.assertEqual({name: sizes[name] for name in "SHG"}, {"S": 48, "H": 4, "G": 2})
        steps, views = [], 0
        for step, program, native, last in runner.steps(sizes):
            views += native is None
            made = None if native is None else mk.compile(step["text"], world)
            steps.append([step, program, made, last])
        self.assertEqual(views, 4)
        y = runner._steps_of(torch, steps, sizes, list(given), {})[0]
        whole = [x.double() for x in given]
        close(self, "steps", y, wanted(*whole, 2))

    def test_views_alone(self):
        """Results share no memory with what is given, nor with each other."""
        world = mk.World.reference()
        x = drawn(6, 128)
        y, z = mk.compile("fn f(x: bf16[M, K]) { let y = x -> view(2, S, H, 64); (y, y -> view(M, K)) }", world)(x)
        self.assertEqual((y.shape, z.shape), ((2, 3, 2, 64), x.shape))
        self.assertTrue(torch.equal(y.flatten(), x.flatten()) and torch.equal(z, x))
        self.assertEqual(len({t.data_ptr() for t in (x, y, z)}), 3)
        with self.assertRaisesRegex(mk.ArgumentError, "`M` = 6 as `B` = 4 times `S` = 2"):
            mk.compile("fn f(x: bf16[M, K]) { x -> view(B, S, 2, 64) }", world, dims={"B": 4, "S": 2})(x)


if __name__ == "__main__":
    unittest.main()
