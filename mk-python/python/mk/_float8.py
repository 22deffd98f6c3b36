"""Linear layers whose GEMMs read eight bits: operands A with factors of 1 x 128, weights of 128 x 128."""

import re

import torch

from ._errors import ArgumentError
from ._function import compile

__all__ = ["Gated", "Linear", "Rows", "Tokens", "dequantized", "quantized", "stacked"]
BLOCK = 128
# Matrices of experts.
MATRICES = f"scaled({BLOCK}, {BLOCK}) @ shard(0)"


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


def _matrices(w, v):
    """Experts' matrices and their factors, with K last, as tensor cores read eight bits."""
    return *stacked(w.permute(0, 2, 3, 1)), *stacked(v.transpose(1, 2))


def _other(t):
    """Matrices along the other dimension: of their factors, too."""
    return t.transpose(1, 2).contiguous()


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, x, counts, w, v, *biases):
        x, sx = layer.quantize(x.contiguous())
        w, sw, v, sv = _matrices(w, v)
        ctx.layer = layer
        ctx.save_for_backward(x, sx, counts, w, sw, v, sv, *biases)
        return layer.forward(x, sx, counts, w, sw, v, sv, *biases)

    @staticmethod
    def backward(ctx, dy):
        layer = ctx.layer
        x, sx, counts, w, sw, v, sv, *biases = ctx.saved_tensors
        needs = dict(zip(("x", "counts", "w", "v", "b", "c"), ctx.needs_input_grad[1:]))
        dy, found = dy.contiguous(), {}
        d, sd = layer.quantize(dy)
        if any(needs.get(name) for name in "xwvb"):
            h = layer.up(x, sx, counts, w, sw, *biases[:1])
        if any(needs.get(name) for name in "xwb"):
            da = layer.down(d, sd, counts, _other(v), _other(sv))
            dh = layer.swiglu_grad(da, h).flatten(1)
            e, se = layer.quantize(dh)
        if needs["x"]:
            found["x"] = layer.down(e, se, counts, _other(w.flatten(1, 2)), _other(sw.flatten(1, 2)))
        if needs["w"]:
            found["w"] = layer.weights(layer.wide(x, sx), counts, layer.wide(e, se)).unflatten(2, (2, -1))
        if needs["v"]:
            a, sa = layer.hidden(h)
            found["v"] = layer.weights(layer.wide(a, sa), counts, layer.wide(d, sd))
        if needs.get("b") or needs.get("c"):
            # Sums of each expert's rows.
            ones = dy.new_ones(len(dy), 8)
            if needs["b"]:
                found["b"] = layer.weights(ones, counts, dh)[:, 0].unflatten(1, (2, -1))
            if needs["c"]:
                found["c"] = layer.weights(ones, counts, dy)[:, 0]
        return None, *(found.get(name) for name in needs)


class _Kernels:
    """GEMMs of rows of experts, and those of their gradients, with ``counts``, a parameter of texts, that says whose rows there are."""

    def __init__(self, make, biased, counts, experts=""):
        self._rows = f"x: e4m3[R, K] scaled(1, {BLOCK}) @ shard(0), {counts} @ shard(0)"
        self._make, self._counts = make, counts.split(":")[0]
        self._up = self.product("up", ", b: bf16[E, N] @ shard(0)" if biased else "", " -> bias(b)" if biased else "")
        self.hidden = make(f"fn hidden(h: bf16[R, 2, F] @ shard(0)) {{ h -> swiglu -> quantize(e4m3, 1, {BLOCK}) }}")
        self.swiglu_grad = make("fn experts_dh(d: bf16[R, F] @ shard(0), h: bf16[R, 2, F] @ shard(0)) { d -> swiglu_grad(h) }")
        # Of rows, and back.
        self.quantize = make(f"fn quantized(x: bf16[R, K] @ shard(0)) {{ x -> quantize(e4m3, 1, {BLOCK}) }}")
        self.wide = make(f"fn dequantized(x: e4m3[R, K] scaled(1, {BLOCK}) @ shard(0)) {{ x -> dequantize }}")
        self.weights = make(
            f"""fn experts_dw(x: bf16[R, K] @ shard(0), {counts} @ shard(0), d: bf16[R, N] @ shard(0)) {{
                ragged(x, {self._counts}) -> grouped_wgrad(d{experts})
            }}""")

    def product(self, name, more="", stage=""):
        return self._make(
            f"fn experts_{name}({self._rows}, w: e4m3[E, N, K] {MATRICES}{more}) {{ ragged(x, {self._counts}) -> grouped_gemm(w.t){stage} }}")

    def up(self, x, sx, counts, w, sw, *biases):
        """Gates and ups of rows."""
        h = self._up(x, sx, counts, w.flatten(1, 2), sw.flatten(1, 2), *(b.flatten(1) for b in biases))
        return h.unflatten(1, (2, -1))


class Rows(_Kernels):
    """Rows of experts, ``layer(x, counts, w, v)`` and perhaps biases of both: GEMMs forward, and those of gradients of rows, in eight bits.

    Gradients of matrices are GEMMs of 16 bits, of the quantised values. The first GEMM runs again for gradients.
    """

    def __init__(self, world, stages, options):
        more, b, c = stages
        super().__init__(lambda text: compile(text, world, **options), bool(b), "counts: i32[E]")
        self.forward = self._make(
            f"""fn experts({self._rows}, w: e4m3[E, 2, F, K] {MATRICES}, v: e4m3[E, K, F] {MATRICES}{more}) {{
                ragged(x, counts) -> grouped_gemm(w.t){b} -> swiglu -> quantize(e4m3, 1, {BLOCK}) -> grouped_gemm(v.t){c}
            }}""")
        self.down = self.product("dx")

    @torch.compiler.disable
    def __call__(self, *given):
        return _Rows.apply(self, *given)


class _Tokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, x, ids, weights, *given):
        (w, sw, v, sv), rest = _matrices(*given[:2]), given[2:]
        y, rows, factors = layer.kept(x, ids, weights, w, sw, v, sv, *rest)
        ctx.layer = layer
        ctx.save_for_backward(rows, factors, ids, weights, w, sw, v, sv, *rest[: 2 * layer.biased])
        return y

    @staticmethod
    def backward(ctx, dy):
        layer = ctx.layer
        x, sx, ids, weights, w, sw, v, sv, *biases = ctx.saved_tensors
        needs = dict(zip(layer.names, ctx.needs_input_grad[1:]))
        needs = {name: needs.get(name, False) for name in ("x", "ids", "weights", "w", "v", "b", "c", "s")}
        wants = lambda names: any(needs[name] for name in names)
        dy, found = dy.contiguous(), {"s": dy}
        if wants("xwvbc"):
            # Rows' gradients, without their tokens' weights, and those of what the second GEMM reads.
            da, d, sd = layer.back(dy, ids, _other(v), _other(sv))
        if wants(("x", "weights", "w", "v", "b")):
            h = layer.up(x, sx, ids, w, sw, *biases[:1])
        if wants("xwb"):
            dh = layer.swiglu_grad(da, h).flatten(1)
            e, se = layer.quantize(dh)
        if wants("x"):
            found["x"] = layer.sums(e, se, ids, _other(w.flatten(1, 2)), _other(sw.flatten(1, 2)), weights)
        if wants(("weights", "v")):
            a, sa = layer.hidden(h)
        if wants(("weights",)):
            found["weights"] = layer.products(a, sa, ids, v, sv, *biases[1:], dy)
        if wants("wvbc"):
            each = layer.each(dy.new_ones(len(dy), 8), ids, weights, torch.eye(8, dtype=dy.dtype, device=dy.device).expand(len(w), 8, 8).contiguous())
            weighed = lambda values, scale: layer.wide(values, scale * each[:, 0].float())
            if needs["w"]:
                found["w"] = layer.weights(weighed(x, sx), ids, layer.wide(e, se)).unflatten(2, (2, -1))
            if needs["v"]:
                found["v"] = layer.weights(layer.wide(a, sa), ids, weighed(d, sd))
            # Sums of each expert's rows.
            if needs["b"]:
                found["b"] = layer.weights(each, ids, dh)[:, 0].unflatten(1, (2, -1))
            if needs["c"]:
                found["c"] = layer.weights(each, ids, layer.wide(d, sd))[:, 0]
        return None, *(found.get(name) for name in layer.names)


class Tokens(_Kernels):
    """Experts of tokens, ``layer(x, ids, weights, w, v)``, perhaps biases of both, and perhaps an addend ``s``.

    As ``Rows``, and tokens and their gradients travel in eight bits. Forward keeps the rows that it dispatches; where nothing wants a gradient it
    keeps none.
    """

    def __init__(self, world, experts, stages, adds, own, options):
        more, b, c = stages
        self.biased, self._options = bool(b), {**options, "dims": {**(options.get("dims") or {}), "E": experts}}
        self.names = ("x", "ids", "weights", "w", "v", *("b", "c") * self.biased, *("s",) * adds)
        # Of ranks that have their own numbers of tokens.
        make = lambda text: self._compile(text.replace("(", f"{own}(", 1) if "ids: " in text else text, world)
        super().__init__(make, self.biased, "ids: i64[T, S]", ", experts = E")
        tokens = lambda of: f"{of}: bf16[T, H] @ shard(0), ids: i64[T, S] @ shard(0)"
        weights, addend = "weights: f32[T, S] @ shard(0)", ", s: bf16[T, H] @ shard(0)" if adds else ""
        layer = lambda name, result: make(
            f"""fn {name}({tokens("x")}, {weights}, w: e4m3[E, 2, F, H] {MATRICES}, v: e4m3[E, H, F] {MATRICES}{more}{addend}) {{
                let rows = x -> quantize(e4m3, 1, {BLOCK}) -> dispatch(ids);
                let y = rows -> grouped_gemm(w.t){b} -> swiglu -> quantize(e4m3, 1, {BLOCK}) -> grouped_gemm(v.t){c}
                    -> combine(weights){" -> add(s)" if adds else ""};
                {result}
            }}""")
        self.forward, self.kept = layer("moe", "y"), layer("moe_kept", "(y, rows)")
        self.back = make(
            f"""fn moe_da({tokens("dy")}, v: e4m3[E, F, H] {MATRICES}) {{
                let rows = dy -> quantize(e4m3, 1, {BLOCK}) -> dispatch(ids);
                (rows -> grouped_gemm(v.t), rows)
            }}""")
        self.sums = self.product("dx", f", {weights}", " -> combine(weights)")
        self.products = self.product("dweights", (", c: bf16[E, N] @ shard(0)" if c else "") + ", dy: bf16[T, N] @ shard(0)", f"{c} -> combine_grad(dy)")
        # Of each row its weight.
        self.each = make(
            f"""fn experts_each(x: bf16[T, C] @ shard(0), ids: i64[T, S] @ shard(0), {weights}, m: bf16[E, C, C] @ shard(0)) {{
                dispatch(x, ids, weights) -> grouped_gemm(m)
            }}""")

    def _compile(self, text, world):
        dims = {name: n for name, n in self._options["dims"].items() if re.search(rf"\b{name}\b", text)}
        return compile(text, world, **{**self._options, "dims": dims or None})

    @torch.compiler.disable
    def __call__(self, *given):
        if torch.is_grad_enabled() and any(t.requires_grad for t in given):
            return _Tokens.apply(self, *given)
        return self.forward(*given[:3], *_matrices(*given[3:5]), *given[5:])


def check(fp8, dtype, part, what):
    if fp8 != "1x128":
        raise ArgumentError(f'fp8 is {fp8!r}, and layers take "1x128"\n  help: leave it out for 16 bits')
    if dtype != torch.bfloat16:
        raise ArgumentError(f"dtype is {dtype}, and results of eight bits are torch.bfloat16")
    if part % BLOCK:
        raise ArgumentError(f"{what} is {part} on each rank, which cuts blocks of {BLOCK} that share a factor\n  help: use a multiple of {BLOCK}")
