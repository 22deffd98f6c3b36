"""Tensors of eight bits, in and out of the reference world, beside torch's own casts. Needs torch."""

import unittest

import mk

try:
    import torch

    HAS_TORCH = hasattr(torch, "library")
except ImportError:
    HAS_TORCH = False

NAMES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def bits(x):
    return x.view(torch.uint8).tolist()


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Float8(unittest.TestCase):
    def setUp(self):
        import mk.nn

        self.world = mk.World.reference()
        torch.manual_seed(3)

    def cases(self):
        for name, theirs in NAMES.items():
            with self.subTest(name):
                yield name, getattr(torch, theirs)

    def test_casts_are_torchs(self):
        # Ties, what is between zero and the least number, beyond the largest, infinite, and none.
        odd = [448.0, 464.0, 480.0, 57344.0, 61440.0, 65536.0, 2.0**-10, 2.0**-17, 1.0625, 1.125, float("inf"), float("nan")]
        x = torch.cat([torch.randn(28, 16) * 10.0 ** torch.randint(-6, 7, (28, 16)), torch.tensor(odd + [-v for v in odd] + [0.0] * 40).view(4, 16)])
        for name, dtype in self.cases():
            f = mk.compile(f"fn f(x: bf16[M, K] @ shard(0)) {{ gather(x) -> cast({name}) }}", self.world)
            y = f(x.bfloat16())
            self.assertIs(y.dtype, dtype)
            self.assertEqual(bits(y), bits(x.bfloat16().to(dtype)))

    def test_every_value_comes_in_and_goes_out(self):
        codes = torch.arange(256, dtype=torch.uint8).view(16, 16)
        for name, dtype in self.cases():
            x = codes.view(dtype)
            wide = mk.compile(f"fn f(x: {name}[M, K] @ shard(0)) {{ gather(x) -> cast(f32) }}", self.world)(x)
            self.assertTrue(torch.equal(wide.nan_to_num(1e9), x.float().nan_to_num(1e9)))
            same = mk.compile(f"fn f(x: {name}[M, K] @ shard(0)) {{ gather(x) }}", self.world)(x)
            self.assertIs(same.dtype, dtype)
            known = ~x.float().isnan()
            self.assertTrue(torch.equal(same.view(torch.uint8)[known], codes[known]))

    def test_an_epilogue_ends_in_eight_bits(self):
        x, w = torch.randn(32, 64).bfloat16(), torch.randn(64, 16).bfloat16()
        for name, dtype in self.cases():
            y = mk.compile(f"fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) {{ gather(x) -> gemm(w) -> relu -> cast({name}) }}", self.world)(x, w)
            self.assertEqual(bits(y), bits((x.float() @ w.float()).relu().to(dtype)))

    def test_products_have_the_factors_of_their_rows(self):
        x, w = torch.randn(48, 64), torch.randn(32, 64)
        for name, dtype in self.cases():
            (a, sa), (b, sb) = [(v.to(dtype), torch.rand(len(v)) + 0.5) for v in (x, w)]
            source = f"fn f(x: {name}[M, K] scaled(1, K), w: {name}[N, K] scaled(1, K)) {{ gemm(x, w.t) }}"
            y = mk.compile(source, self.world)(a, sa, b, sb)
            want = (a.float() * sa[:, None]) @ (b.float() * sb[:, None]).t()
            self.assertIs(y.dtype, torch.bfloat16)
            self.assertTrue(torch.allclose(y.float(), want, rtol=2**-7, atol=1e-3))

    def test_products_have_the_factors_of_their_blocks(self):
        rows, depth, columns = 48, 300, 200
        x, w = torch.randn(rows, depth).to(torch.float8_e4m3fn), torch.randn(columns, depth).to(torch.float8_e4m3fn)
        # As torch._scaled_mm takes them: those of 128 of K of all rows side by side.
        sx, sw = torch.rand(3, rows).t() + 0.5, torch.rand(2, 3) + 0.5
        source = "fn f(x: e4m3[M, K] scaled(1, 128), w: e4m3[N, K] scaled(128, 128)) { gemm(x, w.t) }"
        f = mk.compile(source, self.world)
        y = f(x, sx.t(), w, sw)
        self.assertTrue(torch.equal(f(x, sx, w, sw.t()), y))
        wide = lambda s, n: s.repeat_interleave(128, 1)[:, :n]
        want = (x.float() * wide(sx, depth)) @ (w.float() * wide(sw, depth).repeat_interleave(128, 0)[:columns]).t()
        self.assertTrue(torch.allclose(y.float(), want, rtol=2**-7, atol=1e-3))

    def test_factors_are_gathered_with_their_rows(self):
        x, w = torch.randn(32, 256).to(torch.float8_e4m3fn), torch.randn(128, 256).to(torch.float8_e4m3fn)
        for block, scale in {"1, K": torch.rand(32) + 0.5, "1, 128": torch.rand(2, 32) + 0.5}.items():
            source = f"fn f(x: e4m3[M, K] scaled({block}) @ shard(0), w: e4m3[N, K] @ shard(0)) {{ gather(x) -> gemm(w.t) }}"
            y = mk.compile(source, self.world)(x, scale, w)
            each = scale[:, None] if scale.ndim == 1 else scale.t().repeat_interleave(128, 1)
            self.assertTrue(torch.allclose(y.float(), (x.float() * each) @ w.float().t(), rtol=2**-7, atol=1e-3))

    def test_layers_of_eight_bits(self):
        for make in (mk.nn.ColumnParallelLinear, mk.nn.RowParallelLinear):
            for parallel in (True, False):
                layer = make(256, 128, self.world, sequence_parallel=parallel, fp8="1x128")
                with torch.no_grad():
                    layer.bias.normal_()
                exact = torch.nn.Linear(256, 128)
                exact.load_state_dict({name: p.detach().float() for name, p in layer.named_parameters()})
                for call in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
                    layer.zero_grad()
                    exact.zero_grad()
                    x = torch.randn(64, 256).bfloat16().requires_grad_()
                    wide = x.detach().float().requires_grad_()
                    dy = torch.randn(64, 128).bfloat16()
                    y, want = call(x), exact(wide)
                    y.backward(dy)
                    want.backward(dy.float())
                    pairs = {"y": (y, want), "dx": (x.grad, wide.grad)}
                    pairs |= {name: (p.grad, q.grad) for (name, p), q in zip(layer.named_parameters(), exact.parameters())}
                    for name, (found, wanted) in pairs.items():
                        error = ((found.float() - wanted).norm() / wanted.norm()).item()
                        # e4m3 rounds each operand by 2.6 % or so.
                        self.assertLess(error, 0.05, (make.__name__, parallel, name))
                        self.assertGreater(error, 0.001 if name != "bias" else -1)

    def test_gated_blocks_of_eight_bits(self):
        for parallel in (True, False):
            layer = mk.nn.GatedMLP(256, 384, self.world, sequence_parallel=parallel, fp8="1x128")
            exact = [p.detach().float().requires_grad_() for p in (layer.gate_up, layer.down)]
            for call in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
                layer.zero_grad()
                x = torch.randn(64, 256).bfloat16().requires_grad_()
                wide = x.detach().float().requires_grad_()
                dy = torch.randn(64, 256).bfloat16()
                y = call(x)
                y.backward(dy)
                h = torch.einsum("mk,kgf->mgf", wide, exact[0])
                want = (torch.nn.functional.silu(h[:, 0]) * h[:, 1]) @ exact[1]
                wanted = [want, *torch.autograd.grad(want, (wide, *exact), dy.float())]
                for name, found, want in zip(("y", "dx", "gate_up", "down"), (y, x.grad, layer.gate_up.grad, layer.down.grad), wanted):
                    error = ((found.float() - want).norm() / want.norm()).item()
                    self.assertLess(error, 0.07, (parallel, name))
                    self.assertGreater(error, 0.001, (parallel, name))
        with self.assertRaisesRegex(mk.ArgumentError, "ffn is 192 on each rank"):
            mk.nn.GatedMLP(256, 192, self.world, fp8="1x128")

    def test_experts_of_eight_bits(self):
        ids = torch.stack([torch.randperm(4)[:2] for _ in range(40)])
        ids[3] = -1
        weights, counts = torch.rand(40, 2), torch.tensor([100, 0, 128, 3], dtype=torch.int32)
        there = [*range(100), *range(128, 259)]
        layers = {
            "tokens": (mk.nn.MoE, (4, 2), lambda layer, x, w: layer(x, ids, w)),
            "shared": (mk.nn.MoE, (4, 2), lambda layer, x, w: layer(x, ids, w, shared=x * 0.5)),
            "own": (mk.nn.MoE, (4, 2), lambda layer, x, w: layer(x, ids, w, shared=x * 0.5, tokens=64)),
            "rows": (mk.nn.GroupedMLP, (4,), lambda layer, x, w: layer(x, counts)[there] + w.sum() * 0),
        }
        for name, (make, sizes, call) in layers.items():
            bias = name != "tokens"
            layer, exact = (make(272, 128, *sizes, self.world, bias=bias, **more) for more in ({"fp8": "1x128"}, {}))
            exact.load_state_dict(layer.state_dict())
            n = 512 if name == "rows" else 40
            x, dy = torch.randn(n, 272).bfloat16(), torch.randn(len(there) if name == "rows" else n, 272).bfloat16()
            results = []
            for at in (layer, exact, torch.compile(layer, backend="aot_eager")):
                at.zero_grad()
                given = x.clone().requires_grad_(), weights.clone().requires_grad_()
                y = call(at, *given)
                y.backward(dy)
                parameters = (layer if at is not exact else exact).parameters()
                results.append((y.detach(), [t.grad.clone() for t in (*given, *parameters)]))
            (y, grads), (want, wanted), (again, _) = results
            self.assertTrue(torch.equal(y, again), name)
            error = ((y.float() - want.float()).norm() / want.float().norm()).item()
            self.assertLess(error, 0.07, name)
            self.assertGreater(error, 0.001, name)
            # Beside those of the layer in 16 bits: four roundings, or six, of 2.6 % each.
            for i, (found, of) in enumerate(zip(grads, wanted)):
                if name != "rows":
                    error = ((found.float() - of.float()).norm() / of.float().norm()).item()
                    self.assertLess(error, 0.1, (name, i))
                    self.assertGreater(error, 0.001, (name, i))
            with torch.no_grad():
                self.assertTrue(torch.equal(call(layer, x, weights), y), name)
            if name != "rows":
                self.assertEqual(grads[1][3].tolist(), [0.0, 0.0])
        with self.assertRaisesRegex(mk.ArgumentError, "ffn is 192 on each rank"):
            mk.nn.MoE(256, 192, 4, 2, self.world, fp8="1x128")

    def test_gradients_of_rows_of_experts(self):
        # Experts without rows, of some, and of whole blocks; rows behind an expert's last one are no numbers.
        counts, (experts, hidden, ffn) = torch.tensor([100, 0, 128, 3], dtype=torch.int32), (4, 272, 256)
        rows = {0: slice(0, 100), 2: slice(128, 256), 3: slice(256, 259)}
        nobody = torch.ones(512, dtype=torch.bool)
        for at in rows.values():
            nobody[at] = False
        for bias in (False, True):
            layer = mk.nn.GroupedMLP(hidden, ffn, experts, self.world, bias=bias, fp8="1x128")
            x, dy = torch.randn(512, hidden).bfloat16(), torch.randn(512, hidden).bfloat16()
            # Blocks have unlike factors along each dimension.
            along = lambda n: 4.0 ** -torch.arange(n).div(128, rounding_mode="floor")
            with torch.no_grad():
                layer.gate_up.mul_(along(hidden)[:, None, None] * along(ffn))
                layer.gate_up[:, :, 1].mul_(8)
                layer.down.mul_(along(ffn)[:, None] * along(hidden).flip(0))
            x[nobody], dy[nobody] = float("nan"), float("nan")
            x.requires_grad_()
            layer(x, counts).backward(dy)
            wide, *exact = [t.detach().double().requires_grad_() for t in (x, *layer.parameters())]
            total = 0
            for e, at in rows.items():
                h = torch.einsum("mk,kgf->mgf", wide[at], exact[0][e])
                h = h + exact[2][e] if bias else h
                y = (torch.nn.functional.silu(h[:, 0]) * h[:, 1]) @ exact[1][e]
                total = total + ((y + exact[3][e] if bias else y) * dy[at].double()).sum()
            wanted = torch.autograd.grad(total, (wide, *exact))
            names = ["x", *(name for name, _ in layer.named_parameters())]
            for name, found, want in zip(names, (x.grad, *(p.grad for p in layer.parameters())), wanted):
                for e, at in rows.items():
                    of = at if name == "x" else e
                    error = ((found[of].double() - want[of]).norm() / want[of].norm()).item()
                    # Of `down`, 6.4 % or so: two operands of either product before `swiglu`, and two of its own, 2.6 % each.
                    self.assertLess(error, 0.1, (bias, name, e))
                    # Of eight bits; sums of the given rows are exact.
                    self.assertGreater(error, 0.001 if name != "down_bias" else -1, (bias, name, e))
                if name != "x":
                    self.assertEqual(found[1].abs().max().item(), 0.0, name)
            # Some gradients, and no others.
            layer.zero_grad()
            layer.down.requires_grad_(False)
            layer(x.detach(), counts).backward(dy)
            self.assertIsNone(layer.down.grad)
            error = ((layer.gate_up.grad.double() - wanted[1]).norm() / wanted[1].norm()).item()
            self.assertLess(error, 0.1)

    def test_gradients_of_tokens_of_experts(self):
        # An expert without tokens, a token of none, and slots of none; weights of unlike sizes, one of them 0.
        experts, hidden, ffn, tokens = 5, 272, 256, 150
        ids = torch.stack([torch.tensor([0, 1, 3, 4])[torch.randperm(4)[:3]] for _ in range(tokens)])
        ids[3], ids[4, 1] = -1, -1
        for bias in (False, True):
            layer = mk.nn.MoE(hidden, ffn, experts, 3, self.world, bias=bias, fp8="1x128")
            plain = mk.nn.MoE(hidden, ffn, experts, 3, self.world, bias=bias)
            # Blocks have unlike factors along each dimension.
            along = lambda n: 4.0 ** -torch.arange(n).div(128, rounding_mode="floor")
            with torch.no_grad():
                layer.gate_up.mul_(along(hidden)[:, None, None] * along(ffn))
                layer.gate_up[:, :, 1].mul_(8)
                layer.down.mul_(along(ffn)[:, None] * along(hidden).flip(0))
            # State is the same, of parameters in 16 bits.
            self.assertEqual(plain.load_state_dict(layer.state_dict()), torch.nn.Module().load_state_dict({}))
            weights = torch.rand(tokens, 3) * 4.0 ** torch.randint(-2, 3, (tokens, 3))
            weights[5, 0] = 0.0
            x, dy, s = torch.randn(tokens, hidden).bfloat16(), torch.randn(tokens, hidden).bfloat16(), torch.randn(tokens, hidden).bfloat16()
            names = ["x", "weights", "shared", *(name for name, _ in layer.named_parameters())]
            made = lambda of, given: of(given[0], ids, given[1], shared=given[2])
            grads = lambda of: (lambda given: torch.autograd.grad(made(of, given), [*given, *of.parameters()], dy))(
                [t.clone().requires_grad_() for t in (x, weights, s)])
            exact = [t.detach().double().requires_grad_() for t in (x, weights, s, *layer.parameters())]
            wide, factors, y, w, v, *biases = exact
            for e in range(experts):
                token, slot = (ids == e).nonzero(as_tuple=True)
                h = torch.einsum("mk,kgf->mgf", wide[token], w[e])
                h = h + biases[0][e] if bias else h
                rows = (torch.nn.functional.silu(h[:, 0]) * h[:, 1]) @ v[e]
                y = y.index_add(0, token, (rows + biases[1][e] if bias else rows) * factors[token, slot, None])
            wanted = torch.autograd.grad(y, exact, dy.double())
            found = grads(layer)
            for name, ours, theirs, want in zip(names, found, grads(plain), wanted):
                self.assertEqual(ours.dtype, theirs.dtype)
                off = lambda t: ((t.double() - want).norm() / want.norm()).item()
                # Operands of eight bits on the way: of `shared` none, of `down_bias` one, of `x` six, each 2.6 % or so.
                self.assertLess(off(theirs), 0.012, (bias, name))
                self.assertLess(off(ours), {"shared": 1e-9, "down_bias": 0.03}.get(name, 0.08), (bias, name))
                self.assertGreater(off(ours), 0.001 if name != "shared" else -1, (bias, name))
                # Of each expert, too, but where it has no tokens.
                for e in (0, 1, 3, 4) if name in ("gate_up", "down") else ():
                    error = ((ours[e].double() - want[e]).norm() / want[e].norm()).item()
                    self.assertLess(error, 0.1, (bias, name, e))
                if name in dict(layer.named_parameters()):
                    self.assertEqual(ours[2].abs().max().item(), 0.0, name)
            self.assertEqual((found[0][3].abs().max().item(), found[1][3].abs().max().item()), (0.0, 0.0))
            # One by itself is the same, and others are left out.
            for i, name in enumerate(names):
                given = [t.clone().requires_grad_(i == j) for j, t in enumerate((x, weights, s))]
                for j, p in enumerate(layer.parameters()):
                    p.requires_grad_(i == j + 3)
                [alone] = torch.autograd.grad(made(layer, given), [[*given, *layer.parameters()][i]], dy)
                self.assertTrue(torch.equal(alone, found[i]), name)
            # A launch that nothing wants a gradient of keeps no rows.
            layer.requires_grad_(False)
            self.assertIsNone(made(layer, [x, weights, s]).grad_fn)

    def test_stacks_have_the_factors_of_their_matrices(self):
        x, w = torch.randn(256, 272), torch.randn(3, 2, 128, 272)
        (q, sx), (v, sv) = mk.nn._float8.quantized(x), mk.nn._float8.quantized(w, 128)
        self.assertEqual(tuple(sv.shape), (3, 2, 1, 3))
        counts = torch.tensor([100, 0, 40], dtype=torch.int32)
        f = mk.compile(
            "fn f(x: e4m3[R, K] scaled(1, 128), c: i32[E], w: e4m3[E, 2, F, K] scaled(128, 128)) { ragged(x, c) -> grouped_gemm(w.t) -> swiglu }",
            self.world)
        y = f(q, sx.t().contiguous(), counts, v, sv)
        wide = q.float() * sx.repeat_interleave(128, 1)[:, :272]
        each = v.float() * sv.repeat_interleave(128, -2).repeat_interleave(128, -1)[..., :272]
        for first, n, e in ((0, 100, 0), (128, 40, 2)):
            h = torch.einsum("mk,gfk->gmf", wide[first : first + n], each[e])
            want = torch.nn.functional.silu(h[0]) * h[1]
            self.assertTrue(torch.allclose(y[first : first + n].float(), want, rtol=2**-6, atol=1e-2))

    def test_layers_name_what_they_do_not_take(self):
        make = mk.nn.ColumnParallelLinear
        for words, call in {
            'layers take "1x128"': lambda: make(256, 128, self.world, fp8="row"),
            "cuts blocks of 128": lambda: make(256, 192, self.world, fp8="1x128"),
            "in_features is 200, and GEMMs read 16 bytes": lambda: make(200, 128, self.world, fp8="1x128"),
            "torch.bfloat16": lambda: make(256, 128, self.world, fp8="1x128", dtype=torch.float16),
        }.items():
            with self.assertRaisesRegex(mk.ArgumentError, words):
                call()

    def test_quantised_blocks(self):
        quantized = mk.nn._float8.quantized
        rows = [[0.0] * 128, [448.0] * 128, [-448.0, 1.0] * 64, [2.0**-130] * 128, [1e30] * 128, [float("nan")] + [1.0] * 127]
        values, scale = quantized(torch.tensor(rows))
        self.assertEqual(scale[:3, 0].tolist(), [1.0, 1.0, 1.0])
        self.assertEqual(values.float()[[0, 1, 4], 0].tolist(), [0.0, 448.0, 448.0])
        self.assertTrue(values[5].float().isnan().all() and scale[5].isnan().all())
        # Of a denormal factor a few bits are left.
        back = mk.nn._float8.dequantized(values, scale).float()[3, 0].item()
        self.assertLess(abs(back / 2.0**-130 - 1), 0.5)
        # Blocks that end early, and the same way back.
        x = torch.randn(200, 300) * torch.rand(200, 1).mul(9).exp()
        for n in (1, 128):
            values, scale = quantized(x, n)
            self.assertEqual(scale.shape, (-(-200 // n), 3))
            error = (mk.nn._float8.dequantized(values, scale, n).float() - x).abs()
            most = scale.repeat_interleave(128, 1)[:, :300]
            most = most if n == 1 else most.repeat_interleave(128, 0)[:200]
            # Half a step at the largest values.
            self.assertTrue((error <= most * 16.1 + x.abs() * 2**-8).all())

    def test_other_types_are_refused_by_name(self):
        f = mk.compile("fn f(x: e4m3[M, K] @ shard(0)) { gather(x) }", self.world)
        for wrong in (torch.float8_e5m2, torch.bfloat16, torch.uint8):
            with self.assertRaisesRegex(mk.ArgumentError, "e4m3"):
                f(torch.zeros(8, 16).to(wrong))

    def test_what_computes_is_refused(self):
        for text, words in {
            "fn f(x: e4m3[M, K], w: e4m3[K, N]) { gemm(x, w) }": "along K",
            "fn f(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> cast(e5m2) -> reduce_scatter }": "sum first",
        }.items():
            with self.assertRaisesRegex(mk.Error, words):
                mk.compile(text, self.world)

    def test_rows_are_quantised(self):
        x = torch.randn(24, 272) * 10.0 ** torch.randint(-4, 5, (24, 272))
        x[3, :128], x[5, 130] = 0.0, float("nan")
        x, w = x.bfloat16(), torch.randn(40, 272)
        w, sw = mk.nn._float8.quantized(w, 128)
        for name, dtype in self.cases():
            values, scale = mk.nn._float8.quantized(x, dtype=dtype)
            q, s = mk.compile(f"fn f(x: bf16[M, K] @ shard(0)) {{ x -> quantize({name}, 1, 128) }}", self.world)(x)
            self.assertIs(q.dtype, dtype)
            self.assertEqual(tuple(s.shape), (3, 24))
            self.assertEqual(bits(q), bits(values))
            self.assertTrue(torch.equal(s.nan_to_num(-1), scale.t().nan_to_num(-1)))
            back = mk.compile(f"fn f(q: {name}[M, K] scaled(1, 128) @ shard(0)) {{ q -> dequantize }}", self.world)(q, s)
            known = mk.nn._float8.dequantized(values, scale)
            self.assertTrue(torch.equal(back.nan_to_num(-1), known.nan_to_num(-1)))
            layer = f"fn f(x: bf16[M, K] @ shard(0), w: e4m3[N, K] scaled(128, 128) @ shard(0)) {{ let q = x -> quantize({name}, 1, 128); (gather(q) -> gemm(w.t), q) }}"
            y, again, factors = mk.compile(layer, self.world)(x, w, sw)
            self.assertEqual(bits(again), bits(values))
            self.assertTrue(torch.equal(factors.nan_to_num(-1), s.nan_to_num(-1)))
            each = w.float() * sw.repeat_interleave(128, 0)[:40].repeat_interleave(128, 1)[:, :272]
            exact = values.float() * scale.repeat_interleave(128, 1)[:, :272] @ each.t()
            rows = [i for i in range(24) if i not in (3, 5)]
            off = (y.float() - exact)[rows].norm(dim=1) / exact[rows].norm(dim=1)
            self.assertLess(off.max().item(), 1e-2)

    def test_there_are_no_gradients(self):
        f = mk.compile("fn f(x: bf16[M, K] @ shard(0)) { gather(x) -> cast(e4m3) }", self.world)
        with self.assertRaisesRegex(mk.Error, "values of eight bits"):
            f(torch.randn(8, 16).bfloat16().requires_grad_())


if __name__ == "__main__":
    unittest.main()
