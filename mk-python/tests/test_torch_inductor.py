"""``mk.inductor``: unmodified models under ``torch.compile``, over gloo; recorded graphs of large ones, without memory. Needs torch."""

import datetime
import io
import os
import re
import tempfile
import unittest
from contextlib import redirect_stderr
from unittest import mock

import mk

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    HAS_TORCH = hasattr(torch, "library") and hasattr(torch, "compile")
except ImportError:
    HAS_TORCH = False

if HAS_TORCH:
    import inductor_models as models
    import mk.inductor


def patterns(found, graph):
    return sorted(r.pattern for r in found.rows if r.taken and r.graph == graph)


def close(case, name, got, want, limit=1.5e-2):
    error = ((got.double() - want.double()).norm() / want.double().norm()).item()
    case.assertLess(error, limit, name)


def step(model, x):
    """What a step makes: the result, and all gradients."""
    for t in (x, *model.parameters()):
        t.grad = None
    y = model(x)
    y.float().square().sum().backward()
    return {"y": y.detach(), "x": x.grad, **{n: p.grad for n, p in getattr(model, "_orig_mod", model).named_parameters()}}


def compare(case, model, compiled, x):
    got = step(compiled, x)
    for name, want in step(model, x).items():
        close(case, name, got[name], want)


SUM, GATHER = "gemm -> reduce_scatter", "gather -> gemm"
ADDED = "gemm -> add -> reduce_scatter"
CHAIN = "gather -> gemm -> {} -> gemm -> reduce_scatter"


def llama(case, ranks, world, dim):
    """Forward and backward of a block are pipelines; other batches are no new graphs."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = models.Llama(dist.group.WORLD, ranks, dim=dim)
    found = mk.inductor.enable(world, report=False, gpu="h200")
    graphs = []
    compiled = torch.compile(model, fullgraph=True, backend=models.backend(graphs), dynamic=True)
    for batch, tokens in ((2, 16), (2, 24), (2, 40)):
        rows = tokens // ranks
        x = torch.randn((rows, batch, 64) if dim == 0 else (batch, rows, 64)).bfloat16()
        if dim:
            torch._dynamo.maybe_mark_dynamic(x, 1)
            torch._dynamo.mark_static(x, 0)
        compare(case, model, compiled, x.requires_grad_())
        case.assertEqual(len(graphs), 2, f"{batch} x {tokens} made another graph")
    case.assertEqual(patterns(found, "1"), sorted([CHAIN.format("swiglu"), "gather -> 3 gemm", SUM]), str(found))
    case.assertEqual(patterns(found, "2"), sorted([GATHER, GATHER, ADDED, ADDED]), str(found))
    for gm in graphs:
        left = [n for n in gm.graph.nodes if "_c10d_functional" in str(n.target)]
        case.assertEqual(left, [], "collectives are left")
    mk.inductor.disable()


def mlps(case, ranks, world):
    for name, act in (("gelu", torch.nn.functional.gelu), ("gelu_tanh", lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
                      ("silu", torch.nn.functional.silu), ("relu", torch.relu)):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = models.MLP(dist.group.WORLD, ranks, act)
        found = mk.inductor.enable({dist.group.WORLD.group_name: world}, report=False)
        x = torch.randn(16 // ranks, 2, 64).bfloat16().requires_grad_()
        compare(case, model, torch.compile(model, fullgraph=True, backend=models.backend()), x)
        case.assertEqual(patterns(found, "1"), [CHAIN.format(name)], str(found))
        case.assertIn("-> bias(c0)", found.rows[0].text)
    torch._dynamo.reset()
    model = models.MLP(dist.group.WORLD, ranks, torch.relu, whole=True)
    found = mk.inductor.enable(lambda group: world, report=False)
    with torch.no_grad():
        x = torch.randn(16, 64).bfloat16()
        close(case, "whole", torch.compile(model, backend=models.backend())(x), model(x))
    case.assertEqual(patterns(found, "1"), ["gemm -> all_reduce"], str(found))


def misses(case, ranks, world):
    """Strict ones are errors that say why; others compute as they did, and tables say why."""
    group, rows = dist.group.WORLD, 16 // ranks
    x = torch.randn(rows, 2, 64)

    def compiled(model, x, **options):
        torch._dynamo.reset()
        found = mk.inductor.enable(options.pop("world", world), report=False, **options)
        y = torch.compile(model, backend=models.backend())(x)
        return found, y

    wide = models.MLP(group, ranks, torch.relu).float()
    found, y = compiled(wide, x)
    torch.testing.assert_close(y, wide(x))
    case.assertFalse(any(r.taken for r in found.rows))
    case.assertIn("operands are float32, and products take bfloat16 or float16", str(found))
    with case.assertRaisesRegex(Exception, "strict: not every collective .*\n.*\n.*operands are float32"):
        compiled(wide, x, strict=True)
    model, x = models.MLP(group, ranks, torch.relu), x.bfloat16()
    found, y = compiled(models.Alone(group), x, strict=True)
    case.assertEqual([(r.pattern, r.why) for r in found.rows], [("gather", "no product beside it")])
    found, y = compiled(model, x, world=lambda group: None, strict=False)
    case.assertIn("its group has no world", str(found))
    torch.testing.assert_close(y, model(x))
    # A machine on which one kernel is slower.
    with mock.patch.object(mk.inductor, "_predicted", lambda *_: (10.0, 11.0)):
        found, y = compiled(model, x)
        case.assertEqual({(r.taken, r.why) for r in found.rows}, {(False, "predicted to be slower")})
        torch.testing.assert_close(y, model(x))
        with case.assertRaisesRegex(Exception, "10.0 +11.0  no: predicted to be slower"):
            compiled(model, x, strict=True)
    found, y = compiled(model, x, strict=True)
    case.assertTrue(all(r.taken for r in found.rows))
    # Compiled graphs of a cache, whose pipelines no pass of this process wrote.
    text = found.rows[0].text.replace("fn mlp", "fn of_a_cache")
    weights = [model.up.weight, model.up.bias, model.down.weight]
    with torch.no_grad():
        again, *_ = torch.ops.mk.pipeline([x.flatten(0, 1), *weights], mk._worlds.name(world), text)
    close(case, "cached", again.view_as(y), y)
    case.assertEqual((found.rows[-1].graph, found.rows[-1].pattern), ("cached", "of_a_cache"))


def by_inductor(case, ranks, world):
    """Inductor itself, with its C++."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = models.MLP(dist.group.WORLD, ranks, torch.nn.functional.gelu)
    found = mk.inductor.enable(world, strict=True, report=True)
    x = torch.randn(16 // ranks, 2, 64).bfloat16().requires_grad_()
    said = io.StringIO()
    with redirect_stderr(said):
        compare(case, model, torch.compile(model, fullgraph=True), x)
    case.assertEqual(len(found.rows), 3, str(found))
    if dist.get_rank() == 0:
        case.assertRegex(said.getvalue(), r"gather -> gemm -> gelu -> gemm -> reduce_scatter +32x64x96x64 on \d +[\d.]+ +[\d.]+  yes")


def on_ranks(rank, ranks, path):
    case = unittest.TestCase()
    torch.set_num_threads(1)
    # A graph that an earlier run, or another rank, has compiled goes through no pass.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(os.path.dirname(path), f"cache{rank}")
    limit = datetime.timedelta(seconds=300)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks, timeout=limit)
    try:
        world = mk.World.reference()
        llama(case, ranks, world, 0)
        if ranks == 2:
            llama(case, ranks, world, 1)
            mlps(case, ranks, world)
            misses(case, ranks, world)
            by_inductor(case, ranks, world)
    finally:
        mk.inductor.disable()
        dist.destroy_process_group()


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Live(unittest.TestCase):
    def ranks(self, n):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(on_ranks, (n, os.path.join(folder, "store")), nprocs=n)

    def test_one_rank(self):
        self.ranks(1)

    def test_two_ranks(self):
        self.ranks(2)

    def test_four_ranks(self):
        self.ranks(4)


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Recorded(unittest.TestCase):
    """Graphs of a block of Llama-3-8B's size on 8 ranks: nothing is computed, nothing is moved."""

    def setUp(self):
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
        self.world = mk.World.offline(8)

    def tearDown(self):
        mk.inductor.disable()
        dist.destroy_process_group()

    def record(self, **options):
        from torch._subclasses.fake_tensor import FakeTensorMode

        torch._dynamo.reset()
        found = mk.inductor.enable(self.world, report=False, **options)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = models.Llama(dist.group.WORLD, 8, h=4096, f=14336, head=128)
            x = torch.randn(1024, 1, 4096).bfloat16().requires_grad_()
            compiled = torch.compile(model, fullgraph=True, backend=models.backend())
            compiled(x).float().square().sum().backward()
        return found

    def test_by_the_cost_model(self):
        """What is taken is predicted to be faster on the GPU, and what is not, is not."""
        for gpu in ("h100", "h200"):
            found = self.record(gpu=gpu)
            self.assertGreater(len(found.rows), 5)
            for row in found.rows:
                self.assertIsNotNone(row.before_us, row)
                self.assertEqual(row.taken, row.after_us is not None and row.after_us < row.before_us, row)
                if not row.taken:
                    self.assertEqual(row.why, "predicted to be slower")
            self.assertTrue(any(r.taken for r in found.rows))
            self.assertIn("8192x4096", str(found))

    def test_a_table_of_figures_that_is_not_there(self):
        with self.assertRaisesRegex(mk.ArgumentError, "there are no figures of `h900`"):
            mk.inductor.enable(self.world, gpu="h900")
        with self.assertRaisesRegex(TypeError, "world_of is a int"):
            mk.inductor.enable(3)

    def test_caches_tell_passes_apart(self):
        one = mk.inductor.enable(self.world, gpu="h100")
        first = one.uuid()
        self.assertEqual(first, mk.inductor.enable(self.world, gpu="h100").uuid())
        self.assertNotEqual(first, mk.inductor.enable(self.world, gpu="h200").uuid())
        self.assertNotEqual(first, mk.inductor.enable(self.world, gpu="h100", strict=True).uuid())
        other = mk.World.offline(8, rank=3)
        self.assertNotEqual(first, mk.inductor.enable(other, gpu="h100").uuid())

    def test_a_pass_that_was_there_stays(self):
        from torch._inductor import config

        seen = []

        class Other(mk.inductor.CustomGraphPass):
            def __call__(self, graph):
                seen.append(len(graph.nodes))

            def uuid(self):
                return b"other"

        other = Other()
        with config.patch(post_grad_custom_pre_pass=other):
            self.record()
            self.assertEqual(len(seen), 2)
            mk.inductor.disable()
            self.assertIs(config.post_grad_custom_pre_pass, other)


if __name__ == "__main__":
    unittest.main()
