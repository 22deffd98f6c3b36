"""Arguments that do not fit, in worlds of every kind: the same exception with the same words. Needs torch."""

import unittest

import mk

try:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    HAS_TORCH = hasattr(torch, "library") and hasattr(torch, "compile")
except ImportError:
    HAS_TORCH = False

LINEAR = "gather(a) -> gemm(b)"
# `a` is read by something other than a product, too.
ADDED = "fn f(a: bf16[M, K], b: bf16[K, K]) { gemm(a, b) -> add(a) }"
SUM = "fn f(a: bf16[M, K], b: bf16[K, N], c: f32[M, N]) { gemm(a, b) -> cast(f32) -> add(c) }"


# Where tensors are; gpu_local.py walks the same cases there.
DEVICE = "cpu"


def b16(*shape, **more):
    return torch.zeros(*shape, dtype=torch.bfloat16, device=DEVICE, **more)


def good():
    return [b16(8, 16), b16(16, 24)]


def odd(rows, columns):
    """A contiguous part of another tensor, whose address is no multiple of 16 bytes."""
    return b16(rows * columns + 8)[1 : 1 + rows * columns].view(rows, columns)


# What is wrong: the pipeline, the call, and words of the message. A call is given the function.
def cases():
    a, b = good()
    yield "a list", LINEAR, lambda f: f([[1.0]], b), "`a` is a list, and must be a torch.Tensor"
    yield "None", LINEAR, lambda f: f(a, None), "`b` is a NoneType, and must be a torch.Tensor"
    yield "an array", LINEAR, lambda f: f(memoryview(b"1234"), b), "`a` is a memoryview"
    yield "a number", LINEAR, lambda f: f(a, 1.0), "`b` is a float"
    yield "too few", LINEAR, lambda f: f(a), "`b` is not given"
    yield "none at all", LINEAR, lambda f: f(), "`a` is not given"
    yield "too many", LINEAR, lambda f: f(a, b, b), "more arguments than tensors"
    yield "an unknown name", LINEAR, lambda f: f(a, b, z=b), "there is no tensor `z`"
    yield "a name in the place of another", LINEAR, lambda f: f(a, z=b), "`b` is not given"
    yield "one given twice", LINEAR, lambda f: f(a, b, a=a), "`a` is given twice"
    yield "f32", LINEAR, lambda f: f(a.float(), b), "`a` is f32, and the pipeline says bf16"
    yield "f16", LINEAR, lambda f: f(a, b.half()), "`b` is f16, and the pipeline says bf16"
    yield "f64", LINEAR, lambda f: f(a, b.double()), "`b` is torch.float64"
    yield "integers", LINEAR, lambda f: f(a, b.int()), "`b` is i32"
    yield "another depth", LINEAR, lambda f: f(b16(8, 15), b), "`a_1` is 15 by dimension 1 of `a`"
    yield "one dimension", LINEAR, lambda f: f(a, b16(16)), "`b` has 2 dimensions"
    yield "no rows", LINEAR, lambda f: f(b16(0, 16), b), "`a_0` is 0"
    yield "no depth", LINEAR, lambda f: f(b16(8, 0), b16(0, 24)), "`a_1` is 0"
    yield "no columns", LINEAR, lambda f: f(a, b16(16, 0)), "`b_1` is 0"
    yield "every other column", LINEAR, lambda f: f(b16(8, 32)[:, ::2], b), "`a` is not contiguous"
    yield "a part of wider rows", LINEAR, lambda f: f(a, b16(16, 48)[:, :24]), "`b` is not contiguous"
    yield "a step of 0", LINEAR, lambda f: f(b16(1, 16).expand(8, 16), b), "`a` is not contiguous"
    yield "a transpose that is added", ADDED, lambda f: f(b16(16, 8).t(), b16(16, 16)), "something other than `gemm` reads it"
    yield "an odd address", LINEAR, lambda f: f(odd(8, 16), b), "not a multiple of 16 bytes"
    yield "an odd address, by name", LINEAR, lambda f: f(a=a, b=odd(16, 24)), "`b` is at"
    yield "meta", LINEAR, lambda f: f(a.to("meta"), b), "`a` is on meta, without memory"
    yield "all on meta", LINEAR, lambda f: f(a.to("meta"), b.to("meta")), "`a` is on meta, without memory"
    yield "sparse", LINEAR, lambda f: f(a, b.to_sparse()), "`b` is a sparse tensor (torch.sparse_coo)"
    yield "an output of another shape", LINEAR, lambda f: f(a, b, out=b16(8, 23)), "`out` has shape [8, 23] on rank 0, and the result is [8, 24]"
    yield "an output of another type", LINEAR, lambda f: f(a, b, out=b16(8, 24).float()), "`out` is f32, and the result is bf16"
    yield "a strided output", LINEAR, lambda f: f(a, b, out=b16(8, 48)[:, ::2]), "`out` is not contiguous"
    yield "no output", LINEAR, lambda f: f(a, b, out=3), "`out` is a int"
    yield "an output that is an input", ADDED, lambda f: f(a, b16(16, 16), out=a), "`out` overlaps `a`"
    yield "an output that wants a gradient", LINEAR, lambda f: f(a, b, out=b16(8, 24, requires_grad=True)), "`out` requires a gradient"
    yield "a gradient beside an output", LINEAR, lambda f: f(b16(8, 16, requires_grad=True), b, out=b16(8, 24)), "`a` requires a gradient"


# Of what fakes have none.
ADDRESSES = ("an odd address", "an odd address, by name")


def caught(call):
    try:
        call()
    except Exception as error:
        return type(error), " ".join([str(error), *getattr(error, "__notes__", ())])
    return None, "no exception"


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Calls(unittest.TestCase):
    def worlds(self):
        return {"reference": mk.World.reference(), "offline": mk.World.offline(1)}

    def test_tensors(self):
        for name, text, call, words in cases():
            found = {}
            for kind, world in self.worlds().items():
                f = mk.compile(text, world)
                found[kind] = caught(lambda: call(f))
                if name not in ADDRESSES and "output" not in name:
                    found[f"fakes, {kind}"] = caught(lambda: call(lambda *args, **kwargs: self.faked(f, args, kwargs)))
            with self.subTest(name):
                for kind, (error, text) in found.items():
                    self.assertIs(error, mk.ArgumentError, f"{kind}: {text}")
                    self.assertIn(words, text, kind)
                self.addresses_aside(found)

    def test_tensors_that_record_gradients(self):
        """Of a block that is several kernels where it records, and one where it does not."""
        mlp = "gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter"
        shapes = (8, 16), (16, 24), (24, 16)
        fits = [lambda shape=shape: b16(*shape) for shape in shapes]
        for at, make, words in (
            (0, lambda: b16(0, 16), "`x_0` is 0 by dimension 0 of `x`"),
            (0, lambda: b16(8, 16).float(), "`x` is f32"),
            (0, lambda: b16(8, 32)[:, ::2], "`x` is not contiguous"),
            (1, lambda: b16(15, 24), "and 15 by dimension 0 of `w1`"),
            (1, lambda: b16(16, 24).half(), "`w1` is f16"),
            (2, lambda: b16(23, 16), "and 23 by dimension 0 of `w2`"),
            (2, lambda: b16(24, 16).double(), "`w2` is torch.float64"),
            (2, lambda: odd(24, 16), "`w2` is at"),
        ):
            found = {}
            for kind, world in self.worlds().items():
                for records in (False, True):
                    f = mk.compile(mlp, world)
                    tensors = [t().requires_grad_(records) for t in fits]
                    tensors[at] = make().requires_grad_(records)
                    found[kind, records] = caught(lambda: f(*tensors))
                    if words != "`w2` is at":
                        found[kind, records, "fakes"] = caught(lambda: self.faked(f, tensors, {}))
            with self.subTest(words):
                for kind, (error, text) in found.items():
                    self.assertIs(error, mk.ArgumentError, f"{kind}: {text}")
                    self.assertIn(words, text, kind)
                self.addresses_aside(found)

    def addresses_aside(self, found):
        words = {" ".join(w for w in text.split() if not w.startswith("0x")) for _, text in found.values()}
        self.assertEqual(len(words), 1, found)

    def faked(self, f, args, kwargs):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = lambda t: mode.from_tensor(t) if isinstance(t, torch.Tensor) and t.device.type != "meta" and t.layout is torch.strided else t
            return f(*map(fake, args), **{k: fake(t) for k, t in kwargs.items()})

    def test_what_fits_is_taken(self):
        a, b = good()
        f = mk.compile(LINEAR, mk.World.reference())
        self.assertEqual(self.faked(f, (a, b), {}).shape, (8, 24))
        self.assertEqual(f(b=b, a=a).shape, (8, 24))
        out = torch.ones(8, 24, dtype=torch.bfloat16)
        self.assertIs(f(a, b, out=out), out)
        self.assertEqual(out.abs().max(), 0)
        # The f32 matrix that a product is added to may be replaced.
        f, c = mk.compile(SUM, mk.World.reference()), torch.ones(8, 24)
        self.assertIs(f(a, b, c, out=c), c)
        self.assertEqual((c - 1).abs().max(), 0)

    def test_parts_of_given_shapes(self):
        for shapes in ({"a": (9, 16)}, {"b": (16, 23)}):
            found = [caught(lambda: mk.compile(LINEAR, world, shapes=shapes)(*good())) for world in self.worlds().values()]
            self.assertIs(found[0][0], mk.ArgumentError, found)
            self.assertEqual(*found)

    def test_counts_of_rows(self):
        text = "fn f(x: bf16[R, K], counts: i32[E], w: bf16[E, K, N]) { ragged(x, counts) -> grouped_gemm(w) }"
        f, x, w = mk.compile(text, mk.World.reference()), b16(512, 16), b16(3, 16, 8)
        for counts, words in (([-1, 5, 5], "group 0 has -1 rows"), ([5, -200, 5], "group 1 has -200 rows"), ([400, 5, 5], "take 6 blocks")):
            with self.assertRaisesRegex(mk.ArgumentError, words):
                f(x, torch.tensor(counts, dtype=torch.int32), w)

    def test_options(self):
        for options, error, words in (
            ({"fusion": "auto"}, TypeError, "unexpected keyword argument 'fusion'"),
            ({"fuse": "no"}, mk.ArgumentError, "fuse: `no`"),
            ({"fuse": 1}, TypeError, "fuse"),
            ({"settings": {"blok": 3}}, mk.ArgumentError, "no setting `blok`"),
            ({"settings": 3}, mk.ArgumentError, "settings is a int"),
            ({"shapes": {"z": (8, 16)}}, mk.ArgumentError, "no tensor `z`"),
            ({"shapes": {"a": (8,)}}, mk.ArgumentError, "`a` has 2 dimensions"),
            ({"shapes": [8, 16]}, TypeError, "shapes"),
            ({"dims": {"z": 1}}, mk.ArgumentError, "no symbol `z`"),
            ({"dims": {"a_0": -1}}, mk.ArgumentError, "dims maps a name to a positive integer"),
            ({"save": "some"}, mk.ArgumentError, "save is 'some'"),
            ({"grads": 5}, TypeError, "grads is a int"),
            ({"grads": {"z": "main_grad"}}, mk.ArgumentError, "grads has `z`"),
            ({"wait_limit_s": 0.0}, mk.ArgumentError, "wait_limit_s is 0"),
            ({"entry_limit_s": "soon"}, TypeError, "entry_limit_s"),
            ({"reserve_sms": -1}, OverflowError, ""),
            ({"reserve_sms": "some"}, TypeError, "reserve_sms"),
            ({"overlap": 2}, TypeError, "overlap"),
            ({"tuning": "yes"}, TypeError, "tuning"),
        ):
            with self.subTest(options):
                found = [caught(lambda: mk.compile(LINEAR, world, **options)) for world in self.worlds().values()]
                self.assertIs(found[0][0], error, found)
                self.assertIn(words, found[0][1])
                self.assertEqual(*found)

    def test_texts(self):
        mesh = "fn f(a: bf16[M, K] @ shard(0, tp), b: bf16[K, N] @ shard(1, dp)) { gather(a, tp) -> gemm(b) }"
        # One rank has any axes; several have those of their mesh.
        for world in self.worlds().values():
            mk.compile(mesh, world)
        with self.assertRaisesRegex(mk.ArgumentError, "over the axes `tp`, `dp`, and the world's ranks have none"):
            mk.compile(mesh, mk.World.offline(4))
        for text, error in (("gather(a) -> gemn(b)", mk.PipelineError), (None, TypeError), (7, TypeError), ("x/f.txt", mk.ArgumentError),
                            ("none.mk", mk.ArgumentError)):
            with self.subTest(text):
                found = [caught(lambda: mk.compile(text, world)) for world in self.worlds().values()]
                self.assertTrue(found[0][0] and issubclass(found[0][0], error), found)
                self.assertEqual(*found)

    def test_worlds_that_are_none(self):
        import mk.nn

        for world in (None, "cpu", 4, mk.World):
            for make in (lambda: mk.compile(LINEAR, world), lambda: mk.nn.ColumnParallelLinear(64, 256, world),
                         lambda: mk.nn.RowParallelLinear(64, 256, world), lambda: mk.nn.GatedMLP(64, 256, world), lambda: mk.recover(world)):
                with self.assertRaisesRegex(TypeError, "world is a .*, and must be an mk.World"):
                    make()
        with self.assertRaisesRegex(TypeError, "a world is made by World.from_torch"):
            mk.World()
        world = mk.World.reference()
        for sizes, error in (((64, -4), mk.ArgumentError), ((0, 64), mk.ArgumentError), ((64, "4"), TypeError), ((6.5, 64), TypeError)):
            for layer in (mk.nn.ColumnParallelLinear, mk.nn.RowParallelLinear, mk.nn.GatedMLP):
                with self.assertRaises(error):
                    layer(*sizes, world)

    def test_every_world_has_what_functions_have(self):
        for kind, world in self.worlds().items():
            f = mk.compile(LINEAR, world)
            self.assertEqual(f.parameters, ["a", "b"], kind)
            self.assertEqual(f.plans, [], kind)
            plan = f.bind(shapes={"a": (8, 16), "b": (16, 24)})
            self.assertEqual(plan.shapes, {"a": (8, 16), "b": (16, 24)}, kind)
            with self.assertRaisesRegex(mk.ArgumentError, "`a_1` is 16"):
                f.bind(shapes={"a": (8, 16), "b": (15, 24)})
            with self.assertRaisesRegex(mk.DeviceError, "World.from_torch"):
                f.explain(*good())
            self.assertEqual(f.infer((8, 16), (16, 24)), [((8, 24), torch.bfloat16)])
            with self.assertRaisesRegex(mk.ArgumentError, "`a_1` is 16"):
                f.infer((8, 16), (15, 24))
            f.close()
            with self.assertRaisesRegex(mk.Error, "closed"):
                f(*good())

    def test_programs_that_are_traced(self):
        a, b = good()
        f = mk.compile(LINEAR, mk.World.reference())

        class Product(torch.nn.Module):
            def forward(self, a, b):
                return f(a, b)

        self.assertEqual(torch.export.export(Product(), (a, b), strict=False).module()(a, b).shape, (8, 24))
        for strict in (False, True):
            for wrong, words in (((b16(8, 15), b), "`a_1` is 15"), ((a.float(), b.float()), "`a` is f32"), ((a, b16(16, 0)), "`b_1` is 0")):
                with self.assertRaisesRegex(Exception, words):
                    torch.export.export(Product(), wrong, strict=strict)
        torch._dynamo.reset()
        step = torch.compile(lambda a, b: f(a, b), fullgraph=True, dynamic=True, backend="aot_eager")
        self.assertEqual(step(a, b).shape, (8, 24))
        with self.assertRaisesRegex(Exception, "`a_1` is 15"):
            step(b16(8, 15), b)

    def test_transforms_are_refused(self):
        a, b = good()
        f = mk.compile(LINEAR, mk.World.reference())
        for transform in (
            lambda: torch.func.grad(lambda a: f(a, b).float().sum())(a),
            lambda: torch.func.vmap(lambda a: f(a, b))(a[None]),
            lambda: torch.func.jvp(lambda a: f(a, b), (a,), (a,)),
        ):
            with self.assertRaisesRegex(mk.UnsupportedError, "torch.func|has a tangent"):
                transform()

    def test_tensors_that_autograd_makes_are_copied(self):
        """Gradients and saved tensors that hooks unpack lie as torch likes."""
        text = "fn f(x: bf16[M, K], w: bf16[K, N]) { gemm(x, w) -> gelu }"
        f = mk.compile(text, mk.World.reference())
        generator = torch.Generator().manual_seed(1)
        x, w = (torch.randn(*s, generator=generator).bfloat16().requires_grad_() for s in ((3, 16), (16, 12)))
        y = f(x, w)
        # One row before it: the gradient begins 24 bytes in.
        z = b16(1, 12, requires_grad=True)
        d = torch.randn(4, 12, generator=generator).bfloat16()
        want = torch.autograd.grad(f(x, w), [x, w], d[1:].clone())
        for got in (torch.autograd.grad(torch.cat([z, y]), [x, w], d), torch.autograd.grad(f(x, w).t(), [x, w], d[1:].t())):
            for one, other in zip(got, want):
                self.assertTrue(torch.equal(one, other))
        sums = torch.autograd.grad(f(x, w).sum(), [x, w])
        for one, other in zip(sums, torch.autograd.grad(f(x, w), [x, w], torch.ones(3, 12).bfloat16())):
            self.assertTrue(torch.equal(one, other))
        for moved in (lambda t: odd(*t.shape).copy_(t), lambda t: t.t().contiguous().t()):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), moved):
                y = f(x, w)
            for one, other in zip(torch.autograd.grad(y, [x, w], d[1:].clone()), want):
                self.assertTrue(torch.equal(one, other))
        # What GPUs would be given: offline, no tensor is refused.
        back = mk.compile(text, mk.World.offline(1))._train.backward((0, 1))
        kinds = {"gradient": lambda v: odd(3, 12), "saved": lambda v: odd(3, 12), "parameter": lambda i: odd(*[(3, 16), (16, 12)][i])}
        with self.assertRaisesRegex(mk.DeviceError, "offline"), torch.no_grad():
            back.run(torch, [kinds[kind](i) for kind, i in back.inputs])


if __name__ == "__main__":
    unittest.main()
