"""What users see of the module before they call anything: names, signatures and stubs; files, the environment, who is missing. Without torch."""

import ast
import contextlib
import copy
import inspect
import os
import pathlib
import pydoc
import re
import subprocess
import sys
import tempfile
import threading
import unittest

import fake_torch

torch = fake_torch.install()

import mk  # noqa: E402
from mk._rendezvous import meet  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
LINEAR = "gather(a) -> gemm(b)"
SHAPES = {"a": (512, 256), "b": (256, 1024)}


@contextlib.contextmanager
def environment(name, value):
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


class Names(unittest.TestCase):
    MEMBERS = ("backward", "bind", "bind_async", "check", "close", "explain", "infer", "parameters", "plans", "saves", "synchronize", "why")

    def test_documented_members_are_there(self):
        f = mk.compile(LINEAR, mk.World.offline(2))
        text = pydoc.plain(pydoc.render_doc(mk.Function))
        document = (ROOT / "docs/python.md").read_text()
        for name in self.MEMBERS:
            self.assertIn(name, dir(f))
            self.assertIn(name, dir(mk.Function))
            self.assertIn(name, text)
            self.assertTrue(inspect.getdoc(getattr(mk.Function, name)), name)
            self.assertTrue(hasattr(f, name), name)
        for name in set(re.findall(r"\b(?:f|linear|moe|mlp)\.(\w+)", document)) - {"t", "weight"}:  # a torch.nn.Linear
            self.assertIn(name, self.MEMBERS)
        self.assertEqual([n for n in dir(mk.Function) if not n.startswith("_")], sorted(self.MEMBERS))

    def test_signatures_name_every_option(self):
        names = list(inspect.signature(mk.compile).parameters)
        self.assertEqual(names[:2], ["pipeline", "world"])
        self.assertNotIn("options", names)
        native = list(inspect.signature(mk._mk.compile).parameters)
        self.assertEqual(set(native) - set(names), set())
        for name in names:
            self.assertIn(name, inspect.getdoc(mk.compile))
        # Defaults that are written are the same function.
        world = mk.World.offline(2)
        defaults = {n: p.default for n, p in inspect.signature(mk.compile).parameters.items() if p.default is not p.empty}
        f = mk.compile(LINEAR, world)
        self.assertIs(mk.compile(LINEAR, world, **defaults), f)
        # On one rank nothing is gathered, unless settings are given.
        alone = mk.compile(LINEAR, mk.World.offline(1), **defaults).bind(shapes=SHAPES)
        self.assertEqual(alone.kernels, ["gemm"])
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'fusion'"):
            mk.compile(LINEAR, world, fusion="auto")

    def test_stubs_are_what_there_is(self):
        tree = ast.parse((pathlib.Path(mk.__file__).parent / "_function.pyi").read_text())
        stub = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        methods = {m.name for m in stub["Function"].body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")}
        self.assertEqual(methods, set(self.MEMBERS))
        pairs = [(stub["compile"], mk.compile), (stub["recover"], mk.recover)]
        pairs += [(m, getattr(mk.Function, m.name)) for m in stub["Function"].body if isinstance(m, ast.FunctionDef)]
        for node, item in pairs:
            if isinstance(item, property):
                self.assertEqual([d.id for d in node.decorator_list], ["property"], node.name)
                continue
            a = node.args
            names = [x.arg for x in [*a.args, *filter(None, [a.vararg]), *a.kwonlyargs, *filter(None, [a.kwarg])]]
            self.assertEqual(names, list(inspect.signature(item).parameters), node.name)
            defaults = [ast.literal_eval(d) for d in [*a.defaults, *a.kw_defaults] if d is not None]
            real = [p.default for p in inspect.signature(item).parameters.values() if p.default is not p.empty]
            self.assertEqual(defaults, real, node.name)
        native = ast.parse((pathlib.Path(mk.__file__).parent / "_mk.pyi").read_text())
        world = next(n for n in native.body if isinstance(n, ast.ClassDef) and n.name == "World")
        for method in world.body:
            if isinstance(method, ast.FunctionDef) and "staticmethod" in [d.id for d in method.decorator_list]:
                self.assertEqual(method.returns.id, "World", method.name)
        self.assertIsInstance(mk.World.reference(), mk.World)

    def test_what_never_changes_is_copied_as_itself(self):
        world = mk.World.offline(3, rank=1)
        f = mk.compile(LINEAR, world)
        for one in (world, f, f.bind(shapes=SHAPES), mk.SETTINGS[0]):
            self.assertIs(copy.deepcopy({"kept": one})["kept"], one)
            self.assertIs(copy.copy(one), one)
        self.assertEqual(repr(mk.World.reference()), "<mk.World of 1 rank: [0] here, on CPU tensors>")


class Files(unittest.TestCase):
    TEXT = """// A linear layer.
// M = 512, K = 256
// N = 1024
fn linear(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) { gather(x) -> gemm(w) }
"""

    def test_sizes_at_the_head_of_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "linear.mk"
            path.write_text(self.TEXT)
            for given in (str(path), path, self.TEXT):
                self.assertEqual(mk.plan(given, ranks=2).shapes, {"x": (512, 256), "w": (256, 1024)})
            self.assertEqual(mk.plan(path, ranks=2, dims={"M": 64}).shapes["x"], (64, 256))
            self.assertEqual(mk.plan(path, ranks=2, shapes={"x": (64, 128)}).shapes, {"x": (64, 128), "w": (128, 1024)})
            # Sizes of functions are their tensors'.
            f = mk.compile(path, mk.World.offline(2))
            self.assertIs(f, mk.compile(self.TEXT, f._world))
            self.assertEqual(f.parameters, ["x", "w"])
            path.write_text(self.TEXT.replace("K = 256", "K = two"))
            with self.assertRaisesRegex(mk.PipelineError, re.escape(str(path))):
                mk.plan(path, ranks=2)
            path.write_text(self.TEXT.replace("gemm", "gemn"))
            with self.assertRaisesRegex(mk.PipelineError, "did you mean `gemm`"):
                mk.plan(str(path), ranks=2)

    def test_examples_have_their_sizes(self):
        examples = sorted((ROOT / "examples").glob("*.mk"))
        self.assertTrue(examples)
        for path in examples[:2]:
            self.assertEqual(mk.plan(path, ranks=2).ranks, 2)

    def test_what_is_no_text_and_no_file(self):
        for given, error, words in (
            ("none.mk", mk.ArgumentError, "none.mk cannot be read: No such file"),
            (pathlib.Path("none"), mk.ArgumentError, "none cannot be read"),
            ("layers/linear.txt", mk.ArgumentError, "`layers/linear.txt` is no pipeline"),
            (None, TypeError, "pipeline is a NoneType, and must be a str or a path"),
            (3, TypeError, "pipeline is a int"),
        ):
            for call in (lambda: mk.plan(given, ranks=2), lambda: mk.compile(given, mk.World.offline(2))):
                with self.assertRaisesRegex(error, words):
                    call()

    def test_sizes_are_blamed_on_what_gave_them(self):
        for options, words in (
            ({"shapes": {"a": (2**31, 64), "b": (64, 64)}}, r"`a_0` is 2147483648 by the given shape of `a`, \[2147483648, 64\], outside"),
            ({"dims": {"a_0": 2**31}, "shapes": {"b": (64, 64)}}, "`a_0` is 2147483648 by its given size"),
        ):
            with self.assertRaisesRegex(mk.ArgumentError, words) as caught:
                mk.plan(LINEAR, ranks=2, **options)
            self.assertNotIn("--", str(caught.exception))
        text = "fn f<M: dyn <= 64>(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) { gather(a) -> gemm(b) }"
        f = mk.compile(text, mk.World.offline(2))
        with self.assertRaisesRegex(mk.ArgumentError, r"`M` is 66 by dimension 0 of `a`, 2 times that of \[33, 16\], above its upper bound 64"):
            f.infer((33, 16), (16, 8)) if hasattr(torch, "library") else f._native._infer([[33, 16], [16, 8]])
        with self.assertRaises(mk.ArgumentError) as caught:
            mk.plan(LINEAR, ranks=2, shapes={"a": (512, 256)})
        self.assertEqual(str(caught.exception), '`b_1` has no value\n  help: add `shapes={"b": (<number>, <number>)}`')

    def test_projects_install_from_a_fresh_clone(self):
        here, root = ((ROOT / name).read_text() for name in ("mk-python/pyproject.toml", "pyproject.toml"))
        ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split()]
        for text in (here, root):
            # What only the command that makes wheels puts there.
            self.assertNotRegex(text, r"(?m)^data\b")
            for folder in ignored:
                self.assertNotIn(f'"{folder}', text)
        entry = lambda text, name: re.search(rf"(?m)^{name} = (.*)$", text)[1]
        for name in ("requires", "build-backend", "name", "description", "requires-python", "license", "module-name", "strip"):
            self.assertEqual(entry(here, name), entry(root, name), name)
        for path in ("python-source", "manifest-path", "readme"):
            self.assertTrue((ROOT / entry(root, path).strip('"')).exists(), path)
        self.assertTrue((ROOT / "mk-python" / entry(here, "python-source").strip('"')).exists())


class Environment(unittest.TestCase):
    def test_channels_of_nccl(self):
        world = mk.World.offline(4)
        ctas = lambda: sum(mk.compile(LINEAR, world, reserve_sms="nccl", share=False).bind(shapes=SHAPES).roles.values())
        for value, n in ((None, 24), ("", 24), ("8", 8), (" 16 ", 16)):
            with environment("NCCL_MAX_NCHANNELS", value):
                self.assertEqual(ctas(), 132 - n, repr(value))
        for value in ("abc", "-3", "0", "1.5", str(2**40)):
            with environment("NCCL_MAX_NCHANNELS", value):
                with self.assertRaisesRegex(mk.ArgumentError, f"NCCL_MAX_NCHANNELS is `{value}`: a number from 1 on is needed"):
                    ctas()

    def test_no_other_reader_of_the_environment(self):
        """Variables are read by the native library; what is passed on to a process is not read."""
        for path in pathlib.Path(mk.__file__).parent.glob("*.py"):
            for line in path.read_text().splitlines():
                if "environ" in line and "import" not in line:
                    self.assertTrue(path.name == "_tune.py", f"{path.name}: {line}")

    def test_a_launcher_that_sets_nothing(self):
        for given, words in (
            ({"MK_RANK": "0", "MK_WORLD_SIZE": "2"}, "MK_LOCAL_WORLD_SIZE is not set: a value is needed; no launcher sets it"),
            ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "SLURM_STEP_TASKS_PER_NODE is not set: a value is needed; srun sets it"),
        ):
            text = "import mk\ntry:\n    mk.World.from_env()\nexcept mk.RendezvousError as e:\n    print(e)"
            kept = {k: v for k, v in os.environ.items() if k.startswith(("PATH", "PYTHON", "LD_", "HOME"))}
            done = subprocess.run([sys.executable, "-c", text], env={**kept, **given}, capture_output=True, text=True)
            self.assertIn(words, done.stdout, done.stderr)


class Missing(unittest.TestCase):
    """Ranks that wait for one that does not come all name that one."""

    def together(self, store, ranks, size, limit):
        got = {}

        def run(rank):
            try:
                got[rank] = meet(store, "mk/all", rank, size, limit)
            except mk.RendezvousError as error:
                got[rank] = str(error)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return got

    def test_a_rank_that_does_not_come_is_named(self):
        for size in (3, 4, 8):
            for absent in range(size):
                ranks = [r for r in range(size) if r != absent]
                for before in ("nothing", "a world", "a world in vain", "the absent one alone")[: 4 if size < 8 else 2]:
                    with self.subTest(size=size, absent=absent, before=before):
                        store = fake_torch.Store()
                        if before == "a world":
                            self.assertEqual(len(set(self.together(store, range(size), size, 30.0).values())), 1)
                        elif before == "a world in vain":
                            other = (absent + 1) % size
                            self.together(store, [r for r in range(size) if r != other], size, 0.1)
                        elif before == "the absent one alone":
                            self.together(store, [absent], size, 0.02)
                        for rank, text in self.together(store, ranks, size, 0.25).items():
                            self.assertTrue(text.endswith(f"missing: rank {absent}"), f"rank {rank}: {text}")

    def test_several_that_do_not_come(self):
        for text in self.together(fake_torch.Store(), [1, 2, 4], 6, 0.2).values():
            self.assertTrue(text.endswith("missing: ranks 0, 3, 5"), text)


class NoGpu(unittest.TestCase):
    def test_torch_without_a_gpu(self):
        dist = torch.distributed
        before = dist.is_initialized, torch.cuda.current_device

        def gone():
            dist.is_initialized, torch.cuda.current_device = before
            del dist.get_rank, dist.get_world_size

        def current_device():
            raise RuntimeError("Found no NVIDIA driver on your system")

        self.addCleanup(gone)
        dist.is_initialized, torch.cuda.current_device = lambda: True, current_device
        dist.get_rank, dist.get_world_size = lambda group=None: 0, lambda group=None: 1
        with self.assertRaisesRegex(mk.DeviceError, "no NVIDIA driver") as caught:
            mk.World.from_torch(fake_torch.Store())
        self.assertIn("mk.World.reference()", str(caught.exception))
        self.assertIsInstance(caught.exception.__cause__, RuntimeError)

    def test_no_driver(self):
        try:
            mk.World.local(1)
        except mk.DeviceError as error:
            if "no CUDA driver" in str(error):
                self.assertIn("mk.World.reference()", str(error))
                self.assertIn("mk.plan(..).simulate(..)", str(error))


if __name__ == "__main__":
    unittest.main()
