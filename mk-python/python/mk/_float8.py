"""Linear layers whose GEMMs read eight bits: operands A with factors of 1 x 128, weights of 128 x 128."""

import torch

from ._errors import ArgumentError
from ._function import compile

__all__ = ["Experts", "Gated", "Linear", "Rows", "dequantized", "quantized", "stacked"]
BLOCK = 128


def quantized(x, rows=1, dtype=torch.float8_e4m3fn):
    """``x``, a matrix, in eight bits, and a factor for each ``rows`` x 128, ``[ceil(M / rows), ceil(K / 128)]``: of zeros 1, of what has a NaN NaN."""
    m, k = x.shape
    wide = torch.nn.functional.pad(x.float(), (0, -k % BLOCK, 0, -m % rows))
    blocks = wide.view(wide.shape[0] // rows, rows, wide.shape[1] // BLOCK, BLOCK)
    most = blocks.abs().amax((1, 3))
    scale = torch.where(most == 0, torch.ones_like(most), most / torch.finfo(dtype).max)
    values = (blocks / scale[:, None, :, None]).view(wide.shape)[:m, :k]
    return values.to(dtype).contiguous(), scale


def stacked(w):
    """Matrices ``[..., N, K]`` in eight bits, and a factor for each 128 x 128 of each, ``[..., ceil(N / 128), ceil(K / 128)]``."""
    flat = [quantized(matrix, BLOCK) for matrix in w.contiguous().flatten(0, -3)]
    values, scales = (torch.stack(list(t)) for t in zip(*flat))
    return values.view(w.shape), scales.view(*w.shape[:-2], *scales.shape[1:])


def dequantized(x, scale, rows=1):
    """What ``quantized`` stands for, in bfloat16."""
    m, k = x.shape
    each = scale.repeat_interleave(BLOCK, 1)[:, :k]
    return (x.float() * (each if rows == 1 else each.repeat_interleave(rows, 0)[:m])).bfloat16()


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, linear, x, w, bias):
        (x, sx), (w, sw) = quantized(x), quantized(w, BLOCK)
        ctx.linear, ctx.biased = linear, bias is not None
        ctx.save_for_backward(x, sx, w, sw)
        given = [x, sx.t().contiguous(), w, sw]
        return linear.forward(*given) if bias is None else linear.forward(*given, bias)

    @staticmethod
    def backward(ctx, dy):
        linear = ctx.linear
        x, sx, w, sw = ctx.saved_tensors
        d, sd = quantized(dy)
        dx = dw = dbias = None
        if ctx.needs_input_grad[1]:
            # Along the other dimension: the same factors, and bytes the other way round.
            dx = linear.backward(d, sd.t().contiguous(), w.t().contiguous(), sw.t().contiguous())
        if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
            d = linear.whole(d, sd, linear.gathers_gradients)
            if ctx.needs_input_grad[2]:
                dw = d.t() @ linear.whole(x, sx, linear.gathers_input)
            if ctx.needs_input_grad[3]:
                dbias = (d if linear.gathers_gradients else dy).sum(0)
        return None, dx, dw, dbias


class Linear:
    """The kernels of a layer, ``y = x W^T + b``: of columns, each rank has rows of ``W``; else columns."""

    def __init__(self, world, columns, sequence_parallel, bias, options):
        self.gathers_input = columns and sequence_parallel
        self.gathers_gradients = not columns and sequence_parallel
        x = "shard(0)" if self.gathers_input else "replicate" if columns else "shard(1)"
        dy = "shard(1)" if columns else "shard(0)" if sequence_parallel else "replicate"
        sums = " -> reduce_scatter" if sequence_parallel else " -> all_reduce"
        own, c = ("shard(0)", "@ shard(0)") if columns else ("shard(1)", "")
        other = "shard(1)" if columns else "shard(0)"
        product = lambda gathers, to: f"{'gather(x) -> gemm(w.t)' if gathers else 'gemm(x, w.t)'}{to}"
        operands = lambda a, b: f"x: e4m3[M, K] scaled(1, {BLOCK}) @ {a}, w: e4m3[N, K] scaled({BLOCK}, {BLOCK}) @ {b}"
        parameter, stage = (f", c: bf16[N] {c}", " -> bias(c)") if bias else ("", "")
        make = lambda text: compile(text, world, **options)
        self.forward = make(f"fn linear({operands(x, own)}{parameter}) {{ {product(self.gathers_input, '' if columns else sums)}{stage} }}")
        # x and w are gradients of y, and the weight the other way round.
        self.backward = make(f"fn linear_dx({operands(dy, other)}) {{ {product(self.gathers_gradients, sums if columns else '')} }}")
        self._gather = make("fn whole(x: e4m3[M, K] @ shard(0)) { gather(x) }") if sequence_parallel else None

    def __call__(self, x, weight, bias=None):
        return _Product.apply(self, x, weight, bias)

    def whole(self, x, scale, gathers):
        """All rows, in bfloat16. Factors travel as bytes."""
        if gathers:
            x = self._gather(x)
            scale = self._gather(scale.contiguous().view(torch.float8_e4m3fn)).view(torch.float32)
        return dequantized(x, scale)


class Gated:
    """The kernels of a SwiGLU block: gates above ups as rows of one weight."""

    def __init__(self, world, sequence_parallel, options):
        self.up, self.down = (Linear(world, columns, sequence_parallel, False, options) for columns in (True, False))
        self.swiglu = compile("fn gated(h: bf16[M, 2, F] @ shard(2)) { h -> swiglu }", world, **options)

    def __call__(self, x, gate_up, down):
        h = self.up(x, gate_up.permute(1, 2, 0).reshape(-1, gate_up.shape[0]))
        return self.down(self.swiglu(h.unflatten(1, (2, -1))), down.t())


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, *given):
        ctx.layer = layer
        ctx.save_for_backward(*given)
        x, ids, weights, w, v, *rest = given
        # Both with K last, as tensor cores read eight bits.
        (w, sw), (v, sv) = stacked(w.permute(0, 2, 3, 1)), stacked(v.transpose(1, 2))
        return layer.eight(x, ids, weights, w, sw, v, sv, *rest)

    @staticmethod
    def backward(ctx, dy):
        given = [t.detach().requires_grad_(need) for t, need in zip(ctx.saved_tensors, ctx.needs_input_grad[1:])]
        wanted = [t for t in given if t.requires_grad]
        with torch.enable_grad():
            y = ctx.layer.exact(*given)
        found = iter(torch.autograd.grad(y, wanted, dy))
        return None, *(next(found) if t.requires_grad else None for t in given)


class Experts:
    """Experts whose forward is in eight bits. Gradients are those of ``exact``, the layer in 16 bits, whose forward runs again for them."""

    def __init__(self, eight, exact):
        self.eight, self.exact = eight, exact

    @torch.compiler.disable
    def __call__(self, *given):
        return _Experts.apply(self, *given)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, x, counts, w, v, *biases):
        (x, sx), (w, sw), (v, sv) = quantized(x), stacked(w.permute(0, 2, 3, 1)), stacked(v.transpose(1, 2))
        ctx.layer = layer
        ctx.save_for_backward(x, sx, counts, w, sw, v, sv, *biases)
        return layer.forward(x, sx.t().contiguous(), counts, w, sw, v, sv, *biases)

    @staticmethod
    def backward(ctx, dy):
        layer = ctx.layer
        x, sx, counts, w, sw, v, sv, *biases = ctx.saved_tensors
        needs = dict(zip(("x", "counts", "w", "v", "b", "c"), ctx.needs_input_grad[1:]))
        turned = lambda t: t.transpose(1, 2).contiguous()
        d, sd = quantized(dy)
        found = {}
        if any(needs.get(name) for name in "xwvb"):
            h = layer.up(x, sx.t().contiguous(), counts, w, sw, *biases[:1])
        if any(needs.get(name) for name in "xwb"):
            # Along the other dimension: the same factors, and bytes the other way round. Gates and ups are one dimension.
            da = layer.down(d, sd.t().contiguous(), counts, turned(v), turned(sv))
            dh = layer.swiglu_grad(da, h).flatten(1)
            e, se = quantized(dh)
        if needs["x"]:
            found["x"] = layer.down(e, se.t().contiguous(), counts, turned(w.flatten(1, 2)), turned(sw.flatten(1, 2)))
        if needs["w"]:
            found["w"] = layer.weights(dequantized(x, sx), counts, dequantized(e, se)).unflatten(2, (2, -1))
        if needs["v"]:
            a, sa = layer.hidden(h)
            found["v"] = layer.weights(dequantized(a, sa.t()), counts, dequantized(d, sd))
        if needs.get("b") or needs.get("c"):
            # Sums of each expert's rows.
            ones = dy.new_ones(len(dy), 8)
            sums = lambda of: layer.weights(ones, counts, of.contiguous())[:, 0]
            if needs["b"]:
                found["b"] = sums(dh).unflatten(1, (2, -1))
            if needs["c"]:
                found["c"] = sums(dy)
        return None, *(found.get(name) for name in needs)


class Rows:
    """Rows of experts, ``layer(x, counts, w, v)`` and perhaps biases of both: GEMMs forward, and those of gradients of rows, in eight bits.

    Gradients of matrices are GEMMs of 16 bits, of the quantised values. The first GEMM runs again for gradients.
    """

    def __init__(self, world, stages, options):
        more, b, c = stages
        make = lambda text: compile(text, world, **options)
        matrices = f"scaled({BLOCK}, {BLOCK}) @ shard(0)"
        rows = f"x: e4m3[R, K] scaled(1, {BLOCK}) @ shard(0), counts: i32[E] @ shard(0)"
        product = lambda name, more, stage: make(f"fn {name}({rows}, w: e4m3[E, N, K] {matrices}{more}) {{ ragged(x, counts) -> grouped_gemm(w.t){stage} }}")
        self.forward = make(
            f"""fn experts({rows}, w: e4m3[E, 2, F, K] {matrices}, v: e4m3[E, K, F] {matrices}{more}) {{
                ragged(x, counts) -> grouped_gemm(w.t){b} -> swiglu -> quantize(e4m3, 1, {BLOCK}) -> grouped_gemm(v.t){c}
            }}""")
        self._up = product("experts_up", ", b: bf16[E, N] @ shard(0)" if b else "", b)
        self.down = product("experts_dx", "", "")
        self.hidden = make(f"fn hidden(h: bf16[R, 2, F] @ shard(0)) {{ h -> swiglu -> quantize(e4m3, 1, {BLOCK}) }}")
        self.swiglu_grad = make("fn experts_dh(d: bf16[R, F] @ shard(0), h: bf16[R, 2, F] @ shard(0)) { d -> swiglu_grad(h) }")
        self.weights = make(
            "fn experts_dw(x: bf16[R, K] @ shard(0), counts: i32[E] @ shard(0), d: bf16[R, N] @ shard(0)) { ragged(x, counts) -> grouped_wgrad(d) }")

    def up(self, x, sx, counts, w, sw, *biases):
        """Gates and ups of rows."""
        h = self._up(x, sx, counts, w.flatten(1, 2), sw.flatten(1, 2), *(b.flatten(1) for b in biases))
        return h.unflatten(1, (2, -1))

    @torch.compiler.disable
    def __call__(self, *given):
        return _Rows.apply(self, *given)


def check(fp8, dtype, part, what):
    if fp8 != "1x128":
        raise ArgumentError(f'fp8 is {fp8!r}, and layers take "1x128"\n  help: leave it out for 16 bits')
    if dtype != torch.bfloat16:
        raise ArgumentError(f"dtype is {dtype}, and results of eight bits are torch.bfloat16")
    if part % BLOCK:
        raise ArgumentError(f"{what} is {part} on each rank, which cuts blocks of {BLOCK} that share a factor\n  help: use a multiple of {BLOCK}")
