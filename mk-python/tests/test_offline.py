"""The module without a GPU and without torch."""

import ast
import inspect
import math
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import fake_torch
from dense import Dense

torch = fake_torch.install()

import mk  # noqa: E402
from mk._mk import _all_gather  # noqa: E402

LINEAR = "gather(a) -> gemm(b)"
MLP = """
pub fn mlp(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[F, K] @ shard(0)) -> bf16[M, K] @ shard(0) {
    gather(x) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter
}
"""


def tensor(*shape, dtype=None, **more):
    return fake_torch.Tensor(shape, dtype or torch.bfloat16, **more)


class Case(unittest.TestCase):
    def raises(self, kind, *words):
        """A context that wants an exception of exactly this class, with these words."""
        test = self

        class Context:
            def __enter__(self):
                return self

            def __exit__(self, found, value, trace):
                test.assertIs(found, kind, value)
                for word in words:
                    test.assertIn(word, str(value))
                self.error = value
                return True

        return Context()


class Plans(Case):
    def test_text_and_figures(self):
        plan = mk.plan(LINEAR, ranks=4, shapes={"a": (512, 256), "b": [256, 1024]})
        self.assertIn("gather", str(plan))
        self.assertIn("__global__", plan.cuda)
        self.assertIn("races", plan.proof + " races")
        self.assertEqual(plan.ranks, 4)
        self.assertEqual(plan.shapes, {"a": (512, 256), "b": (256, 1024)})
        inputs, outputs = plan.local_shapes(3)
        self.assertEqual(inputs, {"a": (128, 256), "b": (256, 256)})
        self.assertEqual(list(outputs.values()), [(512, 256)])
        # The gathered operand is what is copied.
        self.assertGreaterEqual(plan.symmetric_bytes, 512 * 256 * 2)
        self.assertEqual(sum(plan.roles.values()), 132)
        self.assertEqual(repr(plan), f"<mk.Plan {plan.name} on 4 ranks>")

    def test_simulation_agrees_with_the_reference(self):
        plan = mk.plan(MLP, ranks=2, dims={"M": 128, "K": 64, "F": 256})
        case = Dense(plan, seed=3)
        errors = case.errors(schedule="reversed", seed=3)
        self.assertEqual(len(errors), 2)
        for error in errors:
            self.assertGreater(error, 0.0)  # bfloat16 rounds
            self.assertLess(error, 1e-2)
        # Another order gives the same bits.
        self.assertEqual(plan.simulate(case.inputs), plan.simulate(case.inputs, schedule="reversed"))
        with self.raises(mk.ArgumentError, "schedule"):
            plan.simulate(case.inputs, schedule="sometimes")
        with self.raises(mk.ArgumentError, "no rank 2", "0 to 1"):
            plan.simulate(case.inputs, schedule="starve:2")

    def test_simulations_take_what_fits(self):
        plan = mk.plan(LINEAR, ranks=2, shapes={"a": (4, 8), "b": (8, 16)})
        good = Dense(plan).inputs
        with self.raises(mk.ArgumentError, "1 lists of tensors", "2 are needed"):
            plan.simulate(good[:1])
        with self.raises(mk.ArgumentError, "rank 1", "no parameter `c`"):
            plan.simulate([good[0], {**good[1], "c": []}])
        with self.raises(mk.ArgumentError, "1 tensors were given", "2 are needed"):
            plan.simulate([good[0], {"a": good[1]["a"]}])
        with self.raises(mk.ArgumentError, "`b`", "rank 1"):
            plan.simulate([good[0], {**good[1], "b": [1.0]}])
        for bad in ("ones", 3, [1.0, "2"]):
            with self.raises(mk.ArgumentError, "rank 1: `b` is a", "a flat list of numbers"):
                plan.simulate([good[0], {**good[1], "b": bad}])
        for bad in (-1, 2**64, 0.5, "0", True):
            with self.raises(mk.ArgumentError, f"seed is {bad!r}", "whole number from 0"):
                plan.simulate(good, seed=bad)
        for bad in (-1, 2, 2**40, 0.0, None):
            with self.raises(mk.ArgumentError, f"rank is {bad!r}", "whole number from 0 to 1"):
                plan.local_shapes(bad)

    def test_worlds_have_whole_numbers_of_ranks(self):
        for bad in (-1, 0, 65, 2**32 + 2, 2**70, 1.5, math.nan, "2", True, None):
            with self.raises(mk.ArgumentError, f"ranks is {bad!r}", "whole number from 1 to 64"):
                mk.plan(LINEAR, ranks=bad, shapes={"a": (4, 8), "b": (8, 16)})

    def test_one_rank_has_no_collectives(self):
        from mk._texts import on_one_rank

        body = lambda text: " ".join(on_one_rank(text).partition("{")[2].split())
        self.assertEqual(body(MLP), "gemm(x, w) -> gelu -> gemm(v) }")
        self.assertEqual(body("fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1), u: bf16[K, N] @ shard(1)) "
                              "{ let h = gather(x); (h -> gemm(w), h -> gemm(u)) }"), "let v4 = gemm(x, w); let v5 = gemm(x, u); (v4, v5) }")
        self.assertEqual(body("fn f<M: dyn <= 64>(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) "
                              "{ gemm(x, w) -> cast(f32) -> reduce_scatter -> scale(0.5) -> cast(bf16) }"),
                         "gemm(x, w) -> cast(f32) -> scale(0.5) -> cast(bf16) }")
        for text in ("gather(x)", "gemm(a, b)", "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) "
                     "{ let h = gather(x); (h -> gemm(w), h) }", "fn f(x: f32[M] @ partial) { all_reduce(x) }"):
            self.assertIsNone(on_one_rank(text))

    def test_rows_that_come_with_a_launch(self):
        text = """pub fn f<M: dyn <= 1024>(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) -> bf16[M, N] @ shard(1) {
            gather(a) -> gemm(b)
        }"""
        plan = mk.plan(text, ranks=2, dims={"M": 300, "K": 64, "N": 128})
        inputs, outputs = plan.local_shapes(1)
        self.assertEqual(inputs, {"a": (150, 64), "b": (64, 64)})
        self.assertEqual(list(outputs.values()), [(300, 64)])
        self.assertLess(max(Dense(plan).errors()), 1e-2)

    def test_kernels_are_compiled_ahead(self):
        plan = mk.plan(LINEAR, ranks=4, shapes={"a": (512, 256), "b": (256, 1024)})
        with tempfile.TemporaryDirectory() as folder:
            # The cache's folder is read by the native library: from the environment that this process began with.
            script = (
                "import mk; mk.plan('gather(a) -> gemm(b)', ranks=4, "
                "shapes={'a': (512, 256), 'b': (256, 1024)}).compile()"
            )
            environment = os.environ | {"MK_CACHE_DIR": folder}
            run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
            if run.returncode != 0:
                # Without NVRTC the error says so.
                self.assertIn("mk.CompileError", run.stderr.replace("mk._errors", "mk"))
                self.assertIn("nvrtc", run.stderr.lower())
                return
            self.assertTrue(list(pathlib.Path(folder).rglob("*")), plan.name)


class Settings(Case):
    SHAPES = {"a": (512, 256), "b": (256, 1024)}

    def plan(self, settings=None, text=LINEAR):
        return mk.plan(text, ranks=4, shapes=self.SHAPES, settings=settings)

    def test_a_dict_or_a_text(self):
        given = {"intra_comm_sms": 20, "block": "128x128x64", "chunk_bytes": "8192"}
        plan = self.plan(given)
        self.assertEqual(plan.roles["intra_comm"], 20)
        self.assertEqual(str(plan), str(self.plan("block=128x128x64 chunk_bytes=8192  intra_comm_sms=20")))
        self.assertNotEqual(str(plan), str(self.plan()))
        for nothing in ({}, ""):
            self.assertEqual(str(self.plan()), str(self.plan(nothing)))
        offline = mk.compile(LINEAR, mk.World.offline(4), settings=given).bind(shapes=self.SHAPES)
        self.assertEqual(str(plan), str(offline))

    def test_settings_of_a_plan_make_it_again(self):
        plan = self.plan("block=128x128x64 k_slices=4 last_wave=1x64 tile_scheduler=dynamic")
        [settings] = plan.settings
        self.assertEqual((settings["block"], settings["k_slices"]), ("128x128x64", "4"))
        self.assertEqual(str(plan), str(self.plan(settings)))

    def test_every_setting_is_listed_with_a_default_that_changes_nothing(self):
        names = [s.name for s in mk.SETTINGS]
        self.assertEqual(len(names), len(set(names)))
        plain = str(self.plan())
        for setting in mk.SETTINGS:
            self.assertTrue(setting.doc and setting.form)
            self.assertEqual(plain, str(self.plan({setting.name: setting.default})), setting)
        block = mk.SETTINGS[names.index("block")]
        self.assertEqual((block.form, block.default), ("MxNxK", "128x256x64"))
        self.assertEqual(repr(block), "<mk.Setting block=128x256x64, of MxNxK>")

    def test_the_document_has_every_setting(self):
        text = (pathlib.Path(__file__).parents[2] / "docs/tuning.md").read_text()
        table = text.split("<!-- settings: begin -->")[1].split("<!-- settings: end -->")[0]
        rows = [[c.strip(" `") for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.strip().splitlines()[2:]]
        listed = [(s.name, s.doc, s.form, s.default) for s in mk.SETTINGS]
        self.assertEqual(listed, [(name, doc, form.replace("\\|", "|"), default) for name, doc, form, default, _ in rows])

    def test_values_that_do_not_fit(self):
        for settings, words in (
            ({"blok": "1x1x1"}, ("there is no setting `blok`", "block, stages")),
            ({"consumers": "both"}, ("`both` is no value of `consumers`", "cooperative | ping_pong")),
            ({"consumers": "ping_pong"}, ("no warpgroup multiplies a tile of 128 x 256",)),
            ({"split_k": -1}, ("`-1` is no value of `split_k`",)),
            ({"split_k": 2**40}, ("is no value of `split_k`",)),
            ({"group_m": 0}, ("`group_m=0`", "use 1 or more")),
            ({"last_wave": "1x256"}, ("`last_wave=1x256`", "set `last_wave=1x192`")),
            ({"split_k": True}, ("a name to a str or an int", "{'split_k': True}")),
            ({"block": (128, 128, 64)}, ("a name to a str or an int", "(128, 128, 64)", "mk.SETTINGS")),
            ({"split_k": 2.0}, ("a name to a str or an int",)),
            ({"split_k": "2 stages=4"}, ("a name to a str or an int",)),
            ({2: 2}, ("a name to a str or an int",)),
            ("split_k", ("`split_k` is no setting", "NAME=VALUE")),
            ("split_k=1 split_k=2", ("`split_k` is given twice",)),
            (["split_k=1"], ("settings is a list", "a dict of names to str or int")),
        ):
            with self.subTest(settings=settings), self.raises(mk.ArgumentError, *words):
                self.plan(settings)
        with self.raises(mk.ArgumentError, "`ring` is no value of `all_reduce`", "one_shot"):
            mk.compile("gemm(a, b) -> all_reduce", mk.World.offline(4), settings={"all_reduce": "ring"})

    def test_a_constant_lies_on_a_gpu(self):
        with self.raises(mk.DeviceError, "without GPUs"):
            mk._mk._Constant(mk.World.offline(4), 0x3F803F80, 1024)

    def test_reserved_sms_are_one_thing(self):
        world = mk.World.offline(4)
        bound = [
            mk.compile(LINEAR, world, **given).bind(shapes=self.SHAPES)
            for given in ({"reserve_sms": 16}, {"settings": {"reserved_sms": 16}}, {"reserve_sms": 16, "settings": "reserved_sms=16"})
        ]
        self.assertEqual([sum(plan.roles.values()) for plan in bound], [116] * 3)
        with self.raises(mk.ArgumentError, "reserve_sms is 8, and the setting reserved_sms is 16"):
            mk.compile(LINEAR, world, reserve_sms=8, settings={"reserved_sms": 16})


class Mistakes(Case):
    def test_all_of_a_text_with_places(self):
        with self.raises(mk.PipelineError, "unknown operation `gemn`", "did you mean `gemm`?", "-->") as c:
            mk.plan("gather(a) -> gemn(b) -> gelo", ranks=2)
        places = [(line, column) for line, column, _, _ in c.error.diagnostics]
        self.assertEqual(places, [(1, 14), (1, 25)])
        self.assertIsInstance(c.error, (mk.Error, ValueError))

    def test_sizes(self):
        with self.raises(mk.ArgumentError, 'add `shapes={"b": (<number>, <number>)}`'):
            mk.plan(LINEAR, ranks=2, shapes={"a": (512, 256)})
        with self.raises(mk.ArgumentError, "no tensor `c`", "`a`, `b`"):
            mk.plan(LINEAR, ranks=2, shapes={"c": (512, 256)})
        with self.raises(mk.ArgumentError, "shapes maps a name to a tuple of positive integers", "-1"):
            mk.plan(LINEAR, ranks=2, shapes={"a": (512, -1)})
        with self.raises(mk.ArgumentError, "`K` is 64", "and 32", "given shapes are global"):
            mk.plan(MLP, ranks=2, dims={"M": 64, "K": 64, "F": 64}, shapes={"x": (64, 32)})
        with self.raises(mk.ArgumentError, "`a_0` is 0 by the given shape of `a`, [0, 256]"):
            mk.plan(LINEAR, ranks=2, shapes={"a": (0, 256), "b": (256, 64)})
        with self.raises(mk.ArgumentError, "`a_0` is 1073741825", "outside 1..=1073741824", "from 1 to 1073741824"):
            mk.plan(LINEAR, ranks=2, shapes={"a": (2**30 + 1, 64), "b": (64, 64)})

    def test_numbers_of_ranks(self):
        for ranks in (0, 65):
            with self.raises(mk.ArgumentError, f"ranks is {ranks}", "1 to 64"):
                mk.plan(LINEAR, ranks=ranks, shapes={"a": (512, 256), "b": (256, 1024)})

    def test_what_has_no_kernel(self):
        with self.raises(mk.UnsupportedError, "cannot be lowered", "help:"):
            mk.plan(
                "pub fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N]) -> bf16[M, N] { gather(a) -> gemm(b) }",
                ranks=2,
                dims={"M": 256, "K": 256, "N": 256},
            )

    def test_errors_are_ordinary_exceptions(self):
        for name in ("PipelineError", "FaultError", "ArgumentError"):
            kind = getattr(mk, name)
            self.assertEqual(f"{kind.__module__}.{kind.__qualname__}", f"mk.{name}")
            self.assertTrue(issubclass(kind, mk.Error) and kind.__doc__)
            self.assertEqual(str(pickle.loads(pickle.dumps(kind("text")))), "text")


EXPERTS = """
fn layer(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
         w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}
"""


class Experts(Case):
    """Tokens that go to the ranks of their experts, and back."""

    T, H, I, E, K = 10, 16, 8, 4, 2
    SHAPES = {"x": (T, H), "ids": (T, K), "gate": (T, K), "w1": (E, H, 2, I), "w2": (E, I, H)}

    def setUp(self):
        torch.grad = torch.capturing = False

    def test_the_executor_agrees(self):
        T, H, I, E, K = self.T, self.H, self.I, self.E, self.K
        plan = mk.plan(EXPERTS, ranks=2, shapes=self.SHAPES)
        self.assertEqual(plan.kernels, ["dispatch -> grouped_gemm -> swiglu -> grouped_gemm -> combine"])
        self.assertEqual(plan.program["values"][1]["dtype"], "i64")
        number = lambda seed, n: [((seed + 3) * (i + 7) * 40503 % 65521 % 17) / 8 - 1 for i in range(n)]
        ids = [(3 * t + j * (1 + t % 3)) % E for t in range(T) for j in range(K)]
        whole = {"x": number(1, T * H), "ids": [float(e) for e in ids], "gate": number(2, T * K)}
        whole |= {"w1": number(3, E * H * 2 * I), "w2": number(4, E * I * H)}
        half = lambda values, rank: values[len(values) // 2 * rank :][: len(values) // 2]
        given = [{name: half(values, rank) for name, values in whole.items()} for rank in range(2)]
        got = plan.simulate(given, schedule="reversed")
        [name] = got[0]
        for t in range(T):
            x, want = whole["x"][t * H :][:H], [0.0] * H
            for j in range(K):
                e = ids[t * K + j]
                of = lambda g, i: sum(x[h] * whole["w1"][((e * H + h) * 2 + g) * I + i] for h in range(H))
                hidden = [of(0, i) / (1 + math.exp(-of(0, i))) * of(1, i) for i in range(I)]
                for h in range(H):
                    want[h] += whole["gate"][t * K + j] * sum(hidden[i] * whole["w2"][(e * I + i) * H + h] for i in range(I))
            for h, value in enumerate(got[t // (T // 2)][name][t % (T // 2) * H :][:H]):
                self.assertLess(abs(value - want[h]), 0.02 * (1 + max(map(abs, want))))
        for ids, words in (([0, 4], "goes to expert 4, and there are 4"), ([0, -2], "goes to expert -2"), ([1, 1], "goes to expert 1 twice")):
            bad = [{**given[0], "ids": [*map(float, ids), *given[0]["ids"][2:]]}, given[1]]
            with self.raises(mk.Error, "token 0", words):
                plan.simulate(bad)
        # What no integer is, and what the executor would take for another one.
        for number in (0.5, math.nan, math.inf, 2**24 + 1, 2**32 + 1, 2**70):
            ids = [0, number, *given[0]["ids"][2:]]
            with self.raises(mk.ArgumentError, "`ids`, which is i64", "at 1 on rank 1", "whole numbers"):
                plan.simulate([given[0], {**given[1], "ids": ids}])

    def test_calls(self):
        f = mk.compile(EXPERTS, mk.World.offline(2))
        good = {"x": tensor(5, 16), "ids": tensor(5, 2, dtype=torch.int64), "gate": tensor(5, 2, dtype=torch.float32)}
        good |= {"w1": tensor(2, 16, 2, 8), "w2": tensor(2, 8, 16)}
        with self.raises(mk.DeviceError, "offline"):
            f(**good)
        for name, bad, words in (
            ("ids", tensor(5, 2, dtype=torch.int32), ("`ids` is i32", "says i64", "ids: i32[..] @ shard(0)")),
            ("ids", tensor(5, 2, dtype=torch.uint8), ("`ids` is torch.uint8", "says i64")),
            ("gate", tensor(5, 2), ("`gate` is bf16", "says f32")),
            ("gate", tensor(5, 3, dtype=torch.float32), ("`K`",)),
        ):
            with self.raises(mk.ArgumentError, *words):
                f(**{**good, name: bad})
        with self.raises(mk.PipelineError, "ids"):
            mk.compile(EXPERTS.replace("i64", "f32"), mk.World.offline(2))


class Calls(Case):
    """Everything that a call checks before it launches."""

    def setUp(self):
        torch.grad = torch.capturing = False
        self.f = mk.compile(MLP, mk.World.offline(4, rank=1))
        self.good = [tensor(32, 64), tensor(64, 16), tensor(16, 64)]

    def test_good_tensors_reach_the_missing_gpu(self):
        with self.raises(mk.DeviceError, "offline"):
            self.f(*self.good)
        with self.raises(mk.DeviceError, "offline"):
            self.f(self.good[0], v=self.good[2], w=self.good[1])

    def refused(self, i, bad, *words):
        with self.raises(mk.ArgumentError, *words):
            self.f(*self.good[:i], bad, *self.good[i + 1 :])

    def test_shapes(self):
        self.refused(0, tensor(32, 64, 1), "`x` has 2 dimensions", "[32, 64, 1] has 3")
        self.refused(1, tensor(63, 16), "`K` is 64 by dimension 1 of `x`", "63 by dimension 0 of `w`")
        self.refused(0, tensor(0, 64), "`M` is 0 by dimension 0 of `x`")

    def test_dtypes(self):
        self.refused(1, tensor(64, 16, dtype=torch.float16), "`w` is f16", "says bf16", "w: f16[..] @ shard(1)")
        self.refused(1, tensor(64, 16, dtype=torch.float64), "`w` is torch.float64", "says bf16")

    def test_layout_kind_and_gradients(self):
        self.refused(2, tensor(16, 64, contiguous=False), "`v` is not contiguous", "v.contiguous()")
        self.refused(2, tensor(16, 64, pointer=0), "without memory of its own", "v.to_local()")
        self.refused(2, tensor(16, 64, pointer=(1 << 20) + 8), "not a multiple of 16 bytes", "v.clone()")
        # Products have no float32 factors: no advice to declare one.
        with self.assertRaises(mk.ArgumentError) as c:
            self.f(tensor(32, 64, dtype=torch.float32), *self.good[1:])
        self.assertTrue(str(c.exception).endswith("help: convert it"), str(c.exception))
        self.refused(2, [1, 2], "`v` is a list, and must be a torch.Tensor")
        fake = tensor(16, 64)
        fake.data_ptr = lambda: 1 // 0
        with self.raises(mk.ArgumentError, "`v` is a fake_torch.Tensor whose memory cannot be read", "division") as c:
            self.f(*self.good[:2], fake)
        self.assertIsInstance(c.error.__cause__, ZeroDivisionError)
        fake.data_ptr = lambda: signal.raise_signal(signal.SIGINT)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with self.assertRaises(KeyboardInterrupt):
            self.f(*self.good[:2], fake)
        torch.grad = True
        self.refused(2, tensor(16, 64, requires_grad=True), "`v` requires a gradient", "torch.no_grad()")
        out = tensor(32, 64, requires_grad=True, pointer=1 << 30)
        for given in (out, [out], (tensor(32, 64), out)):
            with self.raises(mk.ArgumentError, "`out` requires a gradient"):
                self.f(*self.good, out=given)
        torch.grad = False
        with self.raises(mk.DeviceError, "offline"):
            self.f(*self.good, out=out)

    def test_numbers_of_arguments(self):
        with self.raises(mk.ArgumentError, "`v` is not given", "`x`, `w`, `v`"):
            self.f(*self.good[:2])
        with self.raises(mk.ArgumentError, "more arguments than tensors"):
            self.f(*self.good, self.good[0])
        with self.raises(mk.ArgumentError, "there is no tensor `y`", "`x`, `w`, `v`"):
            self.f(*self.good, y=self.good[0])
        with self.raises(mk.ArgumentError, "`x` is given twice"):
            self.f(*self.good, x=self.good[0])

    def test_ragged_shards(self):
        f = mk.compile(LINEAR, mk.World.offline(4, rank=3), shapes={"a": (13, 64)})
        with self.raises(mk.DeviceError, "offline"):
            f(tensor(1, 64), tensor(64, 8))
        with self.raises(mk.ArgumentError, "[4, 64] on rank 3, and [1, 64] is that rank's part of [13, 64]"):
            f(tensor(4, 64), tensor(64, 8))

    def test_binding_ahead_gives_the_plan(self):
        plan = self.f.bind(dims={"M": 128, "K": 64, "F": 64})
        self.assertEqual(plan.local_shapes(1)[0], {"x": (32, 64), "w": (64, 16), "v": (16, 64)})
        with self.raises(mk.ArgumentError, "`F` has no value", 'dims={"F": <number>}'):
            self.f.bind(dims={"M": 128, "K": 64})

    def test_sms_that_are_kept_free_are_nobodys(self):
        for n, ctas in ((0, 132), (16, 116)):
            roles = mk.compile(MLP, mk.World.offline(4), reserve_sms=n).bind(dims={"M": 128, "K": 64, "F": 64}).roles
            self.assertEqual(sum(roles.values()), ctas)
        # Of few SMs communication has a quarter by default.
        few = mk.compile(MLP, mk.World.offline(4), reserve_sms=116).bind(dims={"M": 128, "K": 64, "F": 64}).roles
        self.assertEqual((few["compute"], few["intra_comm"]), (12, 4))
        f = mk.compile(MLP, mk.World.offline(4), reserve_sms=116, settings={"compute_sms": 30})
        with self.raises(mk.ArgumentError, "do not fit 16 SMs beside the 116 that are reserved"):
            f.bind(dims={"M": 128, "K": 64, "F": 64})

    def test_binds_ahead_in_the_order_asked_for(self):
        f = mk.compile(MLP, mk.World.offline(4))
        sizes = [{"M": 128 * n, "K": 64, "F": 64} for n in (1, 2, 3)]
        futures = [f.bind_async(dims=dims) for dims in sizes]
        # Whoever binds after that waits for all of them.
        plan = f.bind(dims=sizes[0])
        self.assertTrue(all(future.done() for future in futures))
        self.assertEqual(str(futures[0].result()), str(plan))
        self.assertNotEqual(str(futures[1].result()), str(plan))
        with self.raises(mk.ArgumentError, "F"):
            f.bind_async(dims={"M": 128, "K": 64}).result()

    def test_whether_kept_proofs_are_taken(self):
        plans = [mk.compile(MLP, mk.World.offline(4), prove=prove).bind(dims={"M": 128, "K": 64, "F": 64}) for prove in ("cached", "always")]
        self.assertEqual(str(plans[0]), str(plans[1]))
        with self.raises(mk.ArgumentError, "prove", "`sometimes` is not `cached` or `always`"):
            mk.compile(MLP, mk.World.offline(4), prove="sometimes")

    def test_options(self):
        world = mk.World.offline(2)
        for bad in (0.0, -1.0, float("nan"), float("inf")):
            with self.raises(mk.ArgumentError, "wait_limit_s"):
                mk.compile(LINEAR, world, wait_limit_s=bad)
        with self.raises(mk.ArgumentError, "rank 2 of 2"):
            mk.World.offline(2, rank=2)
        self.assertEqual(repr(world), "<mk.World of 2 ranks: [0], offline>")
        self.assertIsNone(world.sm_budget)
        for n in (0, 65):
            with self.raises(mk.ArgumentError, f"ranks is {n}, and must be a whole number from 1 to 64"):
                mk.World.local(n, gpu=0)
        with self.assertRaises(TypeError):
            mk.World.local(2, 0)
        self.assertEqual(repr(self.f), "<mk.Function mlp(x, w, v) on 4 ranks>")
        self.assertEqual((world.size, world.ranks, world.devices), (2, [0], []))


class Apart(Case):
    """Pipelines as a kernel for each of their parts."""

    sizes = {"M": 70, "K": 64, "F": 104}

    def bind(self, fuse, text=MLP, **more):
        return mk.compile(text, mk.World.offline(3), fuse=fuse, **more).bind(dims=self.sizes)

    def test_what_is_asked_for_is_made(self):
        one, parts = self.bind("always"), self.bind("never")
        self.assertTrue(one.fused)
        self.assertEqual(one.kernels, ["gather -> gemm -> gelu -> gemm -> reduce_scatter"])
        self.assertEqual(one.verdict, "one kernel: as the options say")
        self.assertFalse(parts.fused)
        self.assertEqual(parts.kernels, ["gather", "gemm -> gelu", "gemm", "reduce_scatter"])
        self.assertEqual(parts.verdict, "apart: as the options say")
        # Callers see the same tensors; what lies between is counted.
        for rank in range(3):
            self.assertEqual(parts.local_shapes(rank), one.local_shapes(rank))
        self.assertGreaterEqual(parts.scratch_bytes, 2 * (70 * 64 + 70 * 35 + 70 * 64))
        self.assertEqual(parts.cuda.count("extern \"C\" __global__"), 4 * one.cuda.count("extern \"C\" __global__"))
        self.assertIn("mlp_3.compute", parts.roles)
        self.assertEqual((repr(parts), parts.ranks), ("<mk.Plan mlp on 3 ranks>", 3))
        with self.raises(mk.ArgumentError, "fuse: `sometimes`", "`auto`", "`never`"):
            self.bind("sometimes")

    def test_parts_compute_what_the_pipeline_does(self):
        errors = Dense(self.bind("never")).errors()
        self.assertEqual(len(errors), 3)
        self.assertTrue(all(0.0 < error < 1e-2 for error in errors), errors)

    def test_what_has_no_kernel_as_a_whole_comes_apart(self):
        text = "pub fn last(x: bf16[M, K] @ shard(0), w: bf16[K, F]) -> bf16[M, F] { gemm(x, w) -> gelu -> gather }"
        plan = self.bind("auto", text)
        self.assertEqual((plan.fused, plan.kernels), (False, ["gemm -> gelu", "gather"]))
        self.assertIn("no kernel as a whole", plan.verdict)
        with self.raises(mk.UnsupportedError, "gather"):
            self.bind("always", text)

    def test_what_does_not_come_apart_says_why(self):
        plan = mk.compile("gemm(a, b)", mk.World.offline(1), fuse="never").bind(shapes={"a": (8, 8), "b": (8, 8)})
        self.assertEqual((plan.fused, plan.verdict), (True, "one kernel: it is one operation"))
        self.assertEqual(mk.compile(MLP, mk.World.offline(3)).plans, [])


class Training(Case):
    def test_what_the_example_trains_with_is_one_kernel_each(self):
        example = pathlib.Path(__file__).parents[2] / "examples" / "tp_train.py"
        tree = ast.parse(example.read_text())
        assigned = [x for x in tree.body if isinstance(x, ast.Assign) and isinstance(x.targets[0], ast.Name)]
        kernels = ast.literal_eval(next(x.value for x in assigned if x.targets[0].id == "KERNELS"))
        self.assertEqual(len(kernels), 4)
        sizes = {"M": 144, "K": 96, "N": 120, "F": 112}
        for name, text in kernels.items():
            dims = {symbol: n for symbol, n in sizes.items() if f"{symbol}," in text or f"{symbol}]" in text}
            for ranks in 1, 2, 3, 4:
                plan = mk.compile(text, mk.World.offline(ranks)).bind(dims=dims)
                self.assertTrue(plan.fused, f"{name}: {plan.verdict}")
                self.assertLess(max(Dense(plan).errors()), 1e-2, f"{name} on {ranks} ranks")


class Rendezvous(Case):
    def test_torch_must_be_initialised(self):
        with self.raises(mk.RendezvousError, "init_process_group"):
            mk.World.from_torch()

    def test_groups_of_one_store_do_not_meet(self):
        dist, store = torch.distributed, fake_torch.Store()
        groups = {"tp": (0, 2, [4, 5]), "dp": (0, 1, [4]), "other": (-1, 2, [6, 7])}
        dist.get_rank = lambda group=None: groups[group][0] if group else 4
        dist.get_world_size = lambda group=None: groups[group][1] if group else 8
        dist.get_process_group_ranks = lambda group: groups[group][2]
        dist.is_initialized = lambda: True

        def gone():
            dist.is_initialized = lambda: False
            del dist.get_rank, dist.get_world_size, dist.get_process_group_ranks

        self.addCleanup(gone)
        for group in ("dp", "dp"):
            # There is no GPU, which is told to all ranks before it is an error.
            with self.assertRaises(mk.Error):
                mk.World.from_torch(store, group=group, device=0, timeout_s=0.2)
        with self.raises(mk.RendezvousError, "missing: rank 1"):
            mk.World.from_torch(store, group="tp", device=0, timeout_s=0.2)
        # Of this rank alone; each world of the other group in a place of its own.
        names = sorted(store.values)
        self.assertEqual([n for n in names if n.startswith("mk/4,5/")], ["mk/4,5/wants/0"])
        places = {n.split("/")[2] for n in names if n.startswith("mk/4/") and n.endswith("/begins")}
        self.assertEqual(len(places), 2)
        with self.raises(mk.ArgumentError, "not in `group`"):
            mk.World.from_torch(store, group="other", device=0)

    def test_restarted_ranks_meet(self):
        """Rank 0 has had a world and has waited for another in vain; rank 1 died and is a fresh process; rank 2 had two worlds."""
        from mk._rendezvous import meet

        store = fake_torch.Store()

        def together(ranks, got, limit=30.0):
            def run(rank):
                try:
                    got[rank] = meet(store, "mk/all", rank, 3, limit)
                except mk.RendezvousError as error:
                    got[rank] = str(error)

            threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
            for thread in threads:
                thread.start()
            return threads

        def wait(threads):
            for thread in threads:
                thread.join()

        first, second, third, alone = {}, {}, {}, {}
        wait(together([0, 1, 2], first))
        self.assertEqual(len(set(first.values())), 1)
        wait(together([0, 2], alone, 0.2))
        for text in alone.values():
            self.assertTrue(text.endswith("missing: rank 1"), text)
        # What rank 2 said before it died, here, is in the store; it says another thing after a while.
        early = together([0, 1], second)
        time.sleep(0.3)
        wait(early + together([2], second))
        self.assertEqual(len(set(second.values())), 1)
        wait(together([2, 1, 0], third))
        self.assertEqual(len(set(third.values())), 1)
        self.assertEqual(len({first[0], second[0], third[0]}), 3)

    def test_warnings_reach_logging(self):
        with self.assertLogs("mk", "WARNING") as caught:
            sys.modules["mk._mk"]._warn("a peer is gone")
        self.assertEqual(caught.output, ["WARNING:mk:a peer is gone"])

    def test_every_rank_gets_every_message(self):
        store, ranks = fake_torch.Store(), 3
        sent = [[bytes([rank, i]) * i for i in range(4)] for rank in range(ranks)]
        got = [None] * ranks

        def run(rank):
            time.sleep(0.05 * rank)
            got[rank] = _all_gather(store, rank, ranks, sent[rank], 30.0)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for rank in range(ranks):
            self.assertEqual(got[rank], [[sent[peer][i] for peer in range(ranks)] for i in range(4)])
        # Only the last exchange is still in the store.
        self.assertEqual(len(store.values), ranks)

    def test_a_missing_rank_is_named(self):
        store = fake_torch.Store()
        store.set("test/0/2", b"m")
        with self.raises(mk.RendezvousError, "missing: ranks 1, 3", "waited 0.2 s", "same order"):
            _all_gather(store, 0, 4, [b""], 0.2)

    def test_failures_of_the_store_are_kept(self):
        store = fake_torch.Store()
        store.get = lambda key: 1 / 0
        with self.raises(mk.RendezvousError, "division by zero") as c:
            _all_gather(store, 0, 1, [b""], 0.2)
        self.assertIsInstance(c.error.__cause__, ZeroDivisionError)

    def test_simulations_can_be_interrupted(self):
        plan = mk.plan("gather(a) -> gemm(b)", ranks=4, shapes={"a": (1024, 512), "b": (512, 1024)})
        inputs = [{"a": [1.0] * (256 * 512), "b": [1.0] * (512 * 256)} for _ in range(4)]
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            plan.simulate(inputs)

    def test_waiting_can_be_interrupted(self):
        # A job in the background of a shell ignores it, and so do its children.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
        timer.start()
        begin = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            _all_gather(fake_torch.Store(), 0, 2, [b""], 30.0)
        self.assertLess(time.monotonic() - begin, 5.0)


class Stubs(Case):
    """What type checkers are told is what there is."""

    folder = pathlib.Path(mk.__file__).parent

    def test_every_public_name_is_in_the_stub(self):
        tree = ast.parse((self.folder / "_mk.pyi").read_text())
        native = sys.modules["mk._mk"]
        stub = {}
        for node in tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                stub[node.name] = node
            elif isinstance(node, ast.AnnAssign):
                stub[node.target.id] = node
        public = {n for n in dir(native) if not n.startswith("_")} | {"__version__"}
        self.assertEqual({n for n in stub if n != "_Shapes"}, public)
        self.assertTrue(public <= set(mk.__all__))
        for name, node in stub.items():
            item = getattr(native, name)
            if isinstance(node, ast.FunctionDef):
                self.same_parameters(node, item, skip=0)
            elif isinstance(node, ast.ClassDef):
                methods = {m.name: m for m in node.body if isinstance(m, ast.FunctionDef)}
                there = {n for n in dir(item) if not n.startswith("_")}
                self.assertEqual({m for m in methods if not m.startswith("_")}, there, name)
                for method, definition in methods.items():
                    decorators = {d.id for d in definition.decorator_list}
                    if "property" not in decorators and not method.startswith("_"):
                        skip = 0 if "staticmethod" in decorators else 1
                        self.same_parameters(definition, getattr(item, method), skip)

    def same_parameters(self, definition, item, skip):
        a = definition.args
        rest = [[x.arg] if x else [] for x in (a.vararg, a.kwarg)]
        names = [x.arg for x in a.posonlyargs + a.args][skip:] + rest[0] + [x.arg for x in a.kwonlyargs] + rest[1]
        real = [n for n in inspect.signature(item).parameters if n != "self"]
        self.assertEqual(names, real, definition.name)

    def test_everything_is_documented(self):
        for name in mk.__all__:
            item = getattr(mk, name)
            if name == "__version__":
                continue
            self.assertTrue(inspect.getdoc(item), name)
            for member in vars(item) if inspect.isclass(item) else ():
                if not member.startswith("_") and callable(getattr(item, member)):
                    self.assertTrue(inspect.getdoc(getattr(item, member)), f"{name}.{member}")

    def test_the_package_is_typed(self):
        self.assertTrue((self.folder / "py.typed").exists())
        self.assertEqual(sorted(mk.__all__), mk.__all__)
        for name in mk.__all__:
            self.assertTrue(hasattr(mk, name), name)


class Meshes(unittest.TestCase):
    """Ranks along two axes, planned and simulated."""

    BOTH = """fn both(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(1, tp) @ shard(0, dp)) {
        gather(a, tp) -> gemm(b) -> reduce_scatter(dp)
    }"""
    SIZES = {"M": 24, "K": 32, "N": 16}

    def test_a_plan(self):
        plan = mk.plan(self.BOTH, ranks={"dp": 2, "tp": 2}, dims=self.SIZES)
        self.assertEqual((plan.ranks, plan.local_shapes(3)), (4, ({"a": (12, 16), "b": (16, 8)}, {"out": (12, 8)})))
        ones = {"a": [1.0] * (12 * 16), "b": [1.0] * (16 * 8)}
        for results in plan.simulate([ones] * 4):
            self.assertEqual(results["out"], [32.0] * (12 * 8))
        self.assertEqual(plan.settings[0]["reduction"], "dedicated_sms")
        self.assertIn("along several axes", plan.explain())
        placements = plan.program["values"][0]["placements"]
        self.assertEqual((plan.program["axes"], placements), (["tp", "dp"], {"tp": ("shard", 0), "dp": ("shard", 1)}))

    def test_an_exchange_around_attention(self):
        kv = "bf16[B, S, G, D] @ shard(1)"
        text = f"""fn f(q: bf16[B, S, H, D] @ shard(1), k: {kv}, v: {kv}) {{
            let x = all_to_all(k, split = 2, concat = 1);
            let y = all_to_all(v, split = 2, concat = 1);
            all_to_all(q, split = 2, concat = 1) -> attention(x, y) -> all_to_all(split = 1, concat = 2)
        }}"""
        sizes = {"B": 1, "S": 8, "H": 4, "G": 2, "D": 64}
        plan = mk.plan(text, ranks=2, dims=sizes)
        ones = {"q": [1.0] * (4 * 4 * 64), "k": [1.0] * (4 * 2 * 64), "v": [2.0] * (4 * 2 * 64)}
        for results in plan.simulate([ones] * 2):
            self.assertEqual(results["out"], [2.0] * (4 * 4 * 64))
        f = mk.compile(text, mk.World.offline(2))
        f.bind(dims=sizes)
        self.assertEqual(f.backward.count("all_to_all"), 4)
        # Heads over one axis, a ring over the other.
        both = text.replace("all_to_all(", "all_to_all(up, ").replace("(up, k", "(k, up").replace("(up, v", "(v, up").replace("(up, q", "(q, up")
        both = both.replace("@ shard(1)", "@ shard(1, cp) @ shard(1, up)").replace("-> attention(x, y)", "-> lined")
        both = both.replace("all_to_all(q, up, split = 2, concat = 1) -> lined", "let h = all_to_all(q, up, split = 2, concat = 1); ring(x, y, cp) -> attention(h)")
        plan = mk.plan(both, ranks={"cp": 2, "up": 2}, dims={**sizes, "S": 16})
        for results in plan.simulate([ones] * 4):
            self.assertEqual(results["out"], [2.0] * (4 * 4 * 64))

    def test_worlds(self):
        world = mk.World.offline({"dp": 2, "tp": 2}, rank=3)
        self.assertEqual((repr(world), world.mesh), ("<mk.World of 4 ranks as dp=2,tp=2: [3], offline>", {"dp": 2, "tp": 2}))
        f = mk.compile(self.BOTH, world)
        self.assertEqual(f.bind(dims=self.SIZES).ranks, 4)
        self.assertEqual(len(f.plans), 0)
        for bad, words in [
            ({}, "a mesh has 1 to 64 ranks"),
            ({"dp": 64, "tp": 2}, "a mesh has 1 to 64 ranks"),
            ({"dp": 2.5}, "dp is 2.5"),
            ({1: 2}, "1 is no name of an axis"),
        ]:
            with self.assertRaises(mk.ArgumentError) as caught:
                mk.World.offline(bad)
            self.assertIn(words, str(caught.exception))
        with self.assertRaises(mk.ArgumentError) as caught:
            mk.plan(self.BOTH, ranks={"dp": 2, "ep": 2}, dims=self.SIZES)
        self.assertIn("over the axis `tp`, and the world's mesh is dp=2,ep=2", str(caught.exception))
        # Ranks in a row have no axes.
        with self.assertRaises(mk.ArgumentError) as caught:
            mk.plan(self.BOTH, ranks=4, dims=self.SIZES)
        self.assertIn("axes `tp`, `dp`", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
