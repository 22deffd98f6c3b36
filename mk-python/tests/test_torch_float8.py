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

    def test_there_are_no_gradients(self):
        f = mk.compile("fn f(x: bf16[M, K] @ shard(0)) { gather(x) -> cast(e4m3) }", self.world)
        with self.assertRaisesRegex(mk.Error, "values of eight bits"):
            f(torch.randn(8, 16).bfloat16().requires_grad_())


if __name__ == "__main__":
    unittest.main()
