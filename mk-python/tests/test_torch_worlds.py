"""Worlds of several processes, over gloo: what their ranks must agree upon; worlds that are copied, pickled and not there. Needs torch."""

import copy
import datetime
import os
import pickle
import subprocess
import sys
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

LINEAR = "gather(a) -> gemm(b)"
OTHER = "gather(a) -> gemm(b) -> relu"
RANKS = 3


def b16(*shape, **more):
    return torch.ones(*shape, dtype=torch.bfloat16, **more)


def disagreements(rank, world):
    """The last rank does something else: by name, what a rank does, what the last one is told, and what the others are."""
    last = rank == RANKS - 1
    f = lambda text=LINEAR, **options: mk.compile(text, world, **options)
    pick = lambda one, other: other if last else one
    a, b = b16(4, 16), b16(16, 8)
    differs = (mk.RendezvousError, "differs from rank")
    yield "rows", lambda: f()(pick(a, a[:2]), b), differs, differs, "in the sizes: `a_0 = "
    yield "columns", lambda: f()(a, pick(b, b16(16, 5))), differs, differs, "in the sizes"
    yield "texts", lambda: f(pick(LINEAR, OTHER))(a, b), differs, differs, "in the pipeline"
    yield "settings", lambda: f(settings=pick({"stages": 3}, "stages=2"))(a, b), differs, differs, "in the options"
    yield "gradients", lambda: f()(a.clone().requires_grad_(not last), b), differs, differs, "in the pipeline"

    def backward():
        x, w = a.clone().requires_grad_(), b.clone().requires_grad_(not last)
        f()(x, w).float().sum().backward()

    yield "backward", backward, differs, differs, "in the pipeline"
    failed = (mk.RendezvousError, f"rank {RANKS - 1} failed")
    mine = lambda words: (mk.ArgumentError, words)
    yield "a type", lambda: f()(a, pick(b, b.float())), failed, mine("`b` is f32"), "`b` is f32"
    recorded = lambda x: x.detach().clone().requires_grad_()
    yield "a type, recorded", lambda: f()(recorded(a), pick(b, b.float())), failed, mine("`b` is f32"), "`b` is f32"

    def by_the_dispatcher():
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False):
            f()(recorded(a), pick(b, b16(16, 0)))

    yield "no columns, by the dispatcher", by_the_dispatcher, failed, mine("`b_1` is 0"), "`b_1` is 0"
    yield "a list", lambda: f()(a, pick(b, [1.0])), failed, mine("`b` is a list"), "must be a torch.Tensor"
    yield "a tensor too few", lambda: f()(*pick([a, b], [a])), failed, mine("`b` is not given"), "`b` is not given"
    yield "strides", lambda: f()(pick(a, b16(4, 32)[:, ::2]), b), failed, mine("`a` is not contiguous"), "a.contiguous()"
    yield "an output", lambda: f()(a, b, out=b16(12, pick(8, 7))), failed, mine("`out` has shape [12, 7]"), "`out` has shape [12, 7]"
    yield "a part of given rows", lambda: f(shapes={"a": (10, 16)})(pick(a, a), b), failed, mine("`a` has shape [4, 16]"), "torch.chunk"
    yield "planning", lambda: f().bind(shapes={"a": (pick(12, 9), 16), "b": (16, 24)}), differs, differs, "in the sizes"
    layer = lambda: __import__("mk.nn").nn.ColumnParallelLinear(16, 8 * RANKS, world)
    yield "rows of a layer", lambda: layer()(pick(a, a[:2])), differs, differs, "in the sizes"
    yield "layers", lambda: mk.nn.RowParallelLinear(16 * RANKS, pick(8, 9), world)(a), differs, differs, "in the sizes"
    text = """fn f(x: bf16[R, K] @ shard(0), counts: i32[E] @ shard(0), w: bf16[E, K, N] @ shard(0)) { ragged(x, counts) -> grouped_gemm(w) }"""
    counts = torch.tensor(pick([5, 5], [5, -1]), dtype=torch.int32)
    yield "counts", lambda: f(text)(b16(256, 16), counts, b16(2, 16, 8)), failed, mine("group 1 has -1 rows"), "group 1 has -1 rows"


def on_ranks(rank, path):
    case = unittest.TestCase()
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=RANKS, timeout=limit)
    try:
        world = mk.World.reference()
        case.assertEqual((world.size, world.ranks, world.rank), (RANKS, [rank], rank))
        case.assertIsInstance(world, mk.World)
        for name, call, theirs, own, words in disagreements(rank, world):
            error, said = own if rank == RANKS - 1 else theirs
            try:
                call()
                case.fail(f"{name}: no exception")
            except mk.Error as found:
                case.assertIs(type(found), error, f"{name}: {found}")
                case.assertIn(said, str(found), name)
                case.assertIn(words, str(found), name)
            # Nothing is left in the group.
            a, b = torch.full((4, 16), float(rank)).bfloat16(), b16(16, 8)
            y = mk.compile(LINEAR, world)(a, b)
            case.assertEqual(y[:, 0].tolist(), [16.0 * (i // 4) for i in range(12)], name)
        batches(case, rank, world)
    finally:
        dist.destroy_process_group()


def batches(case, rank, world):
    """Rows of two dimensions whose first one looks like batches: said once, for each function."""
    f = mk.compile(LINEAR, world, share=False)
    with case.assertLogs("mk", "WARNING") as caught:
        for _ in range(2):
            f(b16(2, 4, 16), b16(16, 8))
    case.assertEqual(len(caught.output), 1)
    case.assertIn("ranks share the first dimension", caught.output[0])
    with case.assertNoLogs("mk", "WARNING"):
        mk.compile(LINEAR, world, share=False)(b16(4, 2, 16), b16(16, 8))


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class SeveralRanks(unittest.TestCase):
    def test_what_ranks_must_agree_upon(self):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(on_ranks, (os.path.join(folder, "store"),), nprocs=RANKS)


MODEL = """
import copy, sys
import torch, mk, mk.nn

class Model(torch.nn.Module):
    def __init__(self, world):
        super().__init__()
        self.world = world
        self.layer = mk.nn.ColumnParallelLinear(16, 8, world)
        self.own = mk.compile("gather(x) -> gemm(w)", world, shapes={"x": (4, 16)})

    def forward(self, x):
        return self.layer(x), self.own(x, self.layer.weight.t())

world = mk.World.reference()
x = torch.arange(64).view(4, 16).bfloat16()
"""


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Copies(unittest.TestCase):
    def run_apart(self, text):
        done = subprocess.run([sys.executable, "-c", MODEL + text], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_model_in_a_new_process(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model")
            first = self.run_apart(f"model = Model(world); torch.save(model, {path!r}); print(model(x))")
            # Nothing was compiled there.
            again = self.run_apart(f"model = torch.load({path!r}, weights_only=False); print(model(x)); assert model.world is world")
            self.assertEqual(first, again)
            other = self.run_apart(f"""
del world
try:
    torch.load({path!r}, weights_only=False)
except mk.DeviceError as error:
    print(error)
""")
            self.assertIn("this process has made no such world", other)

    def test_copies_of_a_model(self):
        self.run_apart("""
model = Model(world)
ema = copy.deepcopy(model)
assert ema.world is world and ema.own is model.own and ema.layer.weight is not model.layer.weight
assert all(torch.equal(a, b) for a, b in zip(ema(x), model(x)))
from torch.optim.swa_utils import AveragedModel
AveragedModel(model).update_parameters(model)
""")

    def test_copies_of_worlds(self):
        for world in (mk.World.reference(), mk.World.reference(), mk.World.offline(2), mk.World.offline(2, rank=1)):
            for same in (copy.copy(world), copy.deepcopy(world), pickle.loads(pickle.dumps(world))):
                self.assertIs(same, world)
        del world, same
        one, two = mk.World.offline(5), mk.World.offline(5)
        kept = pickle.dumps(two)
        del two
        with self.assertRaisesRegex(mk.DeviceError, "number 2, and this process has made no such world"):
            pickle.loads(kept)
        self.assertIs(pickle.loads(pickle.dumps(one)), one)


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class NoGpu(unittest.TestCase):
    def test_a_world_of_gpus_names_the_one_without(self):
        if torch.cuda.is_available():
            return
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
            try:
                with self.assertRaisesRegex(mk.DeviceError, r"mk.World.reference\(\)"):
                    mk.World.from_torch()
            finally:
                dist.destroy_process_group()
        with self.assertRaisesRegex(mk.DeviceError, r"mk.World.reference\(\)"):
            mk.World.local(1)


if __name__ == "__main__":
    unittest.main()
