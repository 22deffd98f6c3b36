"""Linear layers whose GEMMs read eight bits: operands A with factors of 1 x 128, weights of 128 x 128."""

import math
import re

import torch

from . import _mk
from ._errors import ArgumentError
from ._function import compile

__all__ = ["Gated", "Linear", "Rows", "Tokens", "dequantized", "quantized"]
BLOCK = 128
# Matrices of experts.
MATRICES = f"scaled({BLOCK}, {BLOCK}) @ shard(0)"


def quantized(x, rows=1, dtype=torch.float8_e4m3fn):
    """``x``, a matrix ``[M, K]`` or a stack of them, in eight bits, and a factor for each ``rows`` x 128, ``[ceil(M / rows), ceil(K / 128)]``: 1 for
    zeros, NaN for what has a NaN."""
    *stack, m, k = x.shape
    wide = torch.nn.functional.pad(x, (0, -k % BLOCK, 0, -m % rows)) if m % rows or k % BLOCK else x.contiguous()
    blocks = wide.view(*stack, wide.shape[-2] // rows, rows, wide.shape[-1] // BLOCK, BLOCK)
    most = torch.linalg.vector_norm(blocks, torch.inf, (-3, -1)).float()
    scale = torch.where(most == 0, 1.0, most / torch.finfo(dtype).max)
    # One pass: quotients in float32 are rounded as they are stored.
    values = torch.empty(wide.shape, dtype=dtype, device=x.device)
    torch.div(blocks, scale[..., :, None, :, None], out=values.view(blocks.shape))
    return values[..., :m, :k].contiguous(), scale


def dequantized(x, scale, rows=1):
    """The inverse of ``quantized``, in bfloat16."""
    m, k = x.shape
    each = scale.repeat_interleave(BLOCK, 1)[:, :k]
    return (x.float() * (each if rows == 1 else each.repeat_interleave(rows, 0)[:m])).bfloat16()


def _turned(t):
    """Transposed matrices, or their factors."""
    return t.transpose(-2, -1).clone(memory_format=torch.contiguous_format)


# Quantises ``[.., M, K]`` by blocks of 128 x 128: values, factors, and both transposed. On GPUs in one pass over bf16.
_library = torch.library.Library("mk", "FRAGMENT")
_library.define("quantize_weight(Tensor w) -> (Tensor, Tensor, Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))


def _made(w):
    """Results of the operator, without contents."""
    *stack, m, k = w.shape
    blocks = [-(-m // BLOCK), -(-k // BLOCK)]
    make = lambda sizes, dtype: w.new_empty([*stack, *sizes], dtype=dtype)
    values, factors = torch.float8_e4m3fn, torch.float32
    return make([m, k], values), make(blocks, factors), make([k, m], values), make(blocks[::-1], factors)


def _on_cpu(w):
    q, scale = quantized(w, BLOCK)
    return q, scale, _turned(q), _turned(scale)


def _on_gpu(w):
    *stack, m, k = w.shape
    w, made = w.bfloat16().contiguous(), _made(w)
    if w.data_ptr() % 16:
        # A view into a larger buffer: the kernel reads 16 bytes at a time.
        w = w.clone()
    _mk._quantize_weight(w.get_device(), [math.prod(stack), m, k], [t.data_ptr() for t in (w, *made)])
    return made


_library.impl("quantize_weight", _on_cpu, "CPU")
_library.impl("quantize_weight", _on_gpu, "CUDA")
torch.library.register_fake("mk::quantize_weight", _made, lib=_library)
both = torch.ops.mk.quantize_weight


class _Own:
    """Kernels without communication, in one pass each: to eight bits and back, and SwiGLU with its derivative."""

    def __init__(self, make):
        self.quantize = make(f"fn quantized(x: bf16[R, K] @ shard(0)) {{ x -> quantize(e4m3, 1, {BLOCK}) }}")
        self.wide = make(f"fn dequantized(x: e4m3[R, K] scaled(1, {BLOCK}) @ shard(0)) {{ x -> dequantize }}")
        self.hidden = make(f"fn hidden(h: bf16[R, 2, F] @ shard(0)) {{ h -> swiglu -> quantize(e4m3, 1, {BLOCK}) }}")
        self.swiglu_grad = make("fn experts_dh(d: bf16[R, F] @ shard(0), h: bf16[R, 2, F] @ shard(0)) { d -> swiglu_grad(h) }")


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, linear, x, w, bias):
        (x, sx), (w, sw, wt, swt) = linear.own.quantize(x.bfloat16().contiguous()), both(w)
        ctx.linear = linear
        ctx.save_for_backward(x, sx, wt, swt)
        return linear.forward(x, sx, w, sw) if bias is None else linear.forward(x, sx, w, sw, bias)

    @staticmethod
    def backward(ctx, dy):
        linear = ctx.linear
        x, sx, wt, swt = ctx.saved_tensors
        dy = dy.bfloat16().contiguous()
        d, sd = linear.own.quantize(dy)
        dx = dw = dbias = None
        if ctx.needs_input_grad[1]:
            dx = linear.backward(d, sd, wt, swt)
        if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
            rows = linear.gradients(dy, d, sd)
            if ctx.needs_input_grad[2]:
                dw = rows.t() @ linear.inputs(x, sx)
            if ctx.needs_input_grad[3]:
                dbias = rows.sum(0)
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
        # Here x is the gradient of y, and w the transposed weight.
        self.backward = make(f"fn linear_dx({operands(dy, other)}) {{ {product(self.gathers_gradients, sums if columns else '')} }}")
        self.own, self._whole = _Own(make), None
        if sequence_parallel:
            self._whole = make(f"fn whole(x: e4m3[M, K] scaled(1, {BLOCK}) @ shard(0)) {{ gather(x) -> dequantize }}")

    def __call__(self, x, weight, bias=None):
        return _Product.apply(self, x, weight, bias)

    def inputs(self, x, scale):
        """All rows of the input, in bfloat16."""
        return (self._whole if self.gathers_input else self.own.wide)(x, scale)

    def gradients(self, dy, d, scale):
        """Gradients of all rows of results, in bfloat16: others' have travelled in eight bits."""
        return self._whole(d, scale) if self.gathers_gradients else dy


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, x, gate_up, down):
        x, sx = block.own.quantize(x.bfloat16().contiguous())
        # As the GEMMs of backward read them; with a star, as those of forward do.
        (w, sw, *up), (v, sv, *down) = both(gate_up.flatten(1)), both(down)
        h = block.up.forward(x, sx, *up).unflatten(1, (2, -1))
        a, sa = block.own.hidden(h)
        ctx.block = block
        ctx.save_for_backward(x, sx, w, sw, v, sv, h, a, sa)
        return block.down.forward(a, sa, *down)

    @staticmethod
    def backward(ctx, dy):
        block, own = ctx.block, ctx.block.own
        x, sx, w, sw, v, sv, h, a, sa = ctx.saved_tensors
        _, needs_x, needs_w, needs_v = ctx.needs_input_grad
        dx = dw = dv = None
        dy = dy.bfloat16().contiguous()
        d, sd = own.quantize(dy)
        if needs_v:
            dv = block.down.inputs(a, sa).t() @ block.down.gradients(dy, d, sd)
        if needs_x or needs_w:
            dh = own.swiglu_grad(block.down.backward(d, sd, v, sv), h).flatten(1)
            e, se = own.quantize(dh)
            if needs_x:
                dx = block.up.backward(e, se, w, sw)
            if needs_w:
                dw = (block.up.inputs(x, sx).t() @ block.up.gradients(dh, e, se)).unflatten(1, (2, -1))
        return None, dx, dw, dv


class Gated:
    """The kernels of a SwiGLU block, of weights ``[K, 2, F]`` and ``[F, K]``."""

    def __init__(self, world, sequence_parallel, options):
        self.up, self.down = (Linear(world, columns, sequence_parallel, False, options) for columns in (True, False))
        self.own = self.up.own

    def __call__(self, x, gate_up, down):
        return _Block.apply(self, x, gate_up, down)


def matrices(w, v):
    """Experts' matrices ``[E, K, 2, F]`` and ``[E, F, K]``, quantised, with factors: as the GEMMs of backward read them, ``[E, K, 2F]`` and
    ``[E, F, K]``, then as those of forward do, ``[E, 2F, K]`` and ``[E, K, F]``."""
    (w, sw, wt, swt), (v, sv, vt, svt) = both(w.flatten(2)), both(v)
    return (w, sw, v, sv), (wt, swt, vt, svt)


def halves(w, scale, *v):
    """The same with gates and ups apart: ``[E, 2, F, K]``."""
    return w.unflatten(1, (2, -1)), scale.unflatten(1, (2, -1)), *v


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, x, counts, w, v, *biases):
        x, sx = layer.quantize(x.contiguous())
        ctx.layer = layer
        # Backward quantises the matrices again; they are not kept.
        ctx.save_for_backward(x, sx, counts, w, v, *biases)
        return layer.forward(x, sx, counts, *halves(*matrices(w, v)[1]), *biases)

    @staticmethod
    def backward(ctx, dy):
        layer = ctx.layer
        x, sx, counts, w, v, *biases = ctx.saved_tensors
        (w, sw, v, sv), (up, s_up, _, _) = matrices(w, v)
        needs = dict(zip(("x", "counts", "w", "v", "b", "c"), ctx.needs_input_grad[1:]))
        dy, found = dy.contiguous(), {}
        d, sd = layer.quantize(dy)
        if any(needs.get(name) for name in "xwvb"):
            h = layer.up(x, sx, counts, up, s_up, *biases[:1])
        if any(needs.get(name) for name in "xwb"):
            da = layer.down(d, sd, counts, v, sv)
            dh = layer.swiglu_grad(da, h).flatten(1)
            e, se = layer.quantize(dh)
        if needs["x"]:
            found["x"] = layer.down(e, se, counts, w, sw)
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


class _Kernels(_Own):
    """GEMMs of rows of experts, and those of their gradients, with ``counts``, a parameter of texts, that says whose rows there are."""

    def __init__(self, make, biased, counts, experts=""):
        self._rows = f"x: e4m3[R, K] scaled(1, {BLOCK}) @ shard(0), {counts} @ shard(0)"
        super().__init__(make)
        self._make, self._counts = make, counts.split(":")[0]
        self._up = self.product("up", ", b: bf16[E, N] @ shard(0)" if biased else "", " -> bias(b)" if biased else "")
        self.weights = make(
            f"""fn experts_dw(x: bf16[R, K] @ shard(0), {counts} @ shard(0), d: bf16[R, N] @ shard(0)) {{
                ragged(x, {self._counts}) -> grouped_wgrad(d{experts})
            }}""")

    def product(self, name, more="", stage=""):
        return self._make(
            f"fn experts_{name}({self._rows}, w: e4m3[E, N, K] {MATRICES}{more}) {{ ragged(x, {self._counts}) -> grouped_gemm(w.t){stage} }}")

    def up(self, x, sx, counts, w, sw, *biases):
        """Gates and ups of rows."""
        h = self._up(x, sx, counts, w, sw, *(b.flatten(1) for b in biases))
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
        w, v, *rest = given
        y, rows, factors = layer.kept(x, ids, weights, *halves(*matrices(w, v)[1]), *rest)
        ctx.layer = layer
        ctx.save_for_backward(rows, factors, ids, weights, w, v, *rest[: 2 * layer.biased])
        return y

    @staticmethod
    def backward(ctx, dy):
        layer = ctx.layer
        x, sx, ids, weights, w, v, *biases = ctx.saved_tensors
        (w, sw, v, sv), (up, s_up, down, s_down) = matrices(w, v)
        needs = dict(zip(layer.names, ctx.needs_input_grad[1:]))
        needs = {name: needs.get(name, False) for name in ("x", "ids", "weights", "w", "v", "b", "c", "s")}
        wants = lambda names: any(needs[name] for name in names)
        dy, found = dy.contiguous(), {"s": dy}
        if wants(("x", "weights", "w", "v", "b")):
            h = layer.up(x, sx, ids, up, s_up, *biases[:1])
            # Times tokens' weights: gradients of h, and what the second GEMM reads. Those of weights, and gradients as rows.
            dh, a, found["weights"], d, sd = layer.grads(dy, ids, weights, v, sv, h)
            dh = dh.flatten(1)
        elif wants("c"):
            _, d, sd = layer.back(dy, ids, v, sv)
        if wants("x"):
            e, se = layer.quantize(dh)
            found["x"] = layer.sums(e, se, ids, w, sw, torch.ones_like(weights))
        if needs["weights"] and biases:
            found["weights"] = layer.products(*layer.hidden(h), ids, down, s_down, *biases[1:], dy)
        if needs["w"]:
            found["w"] = layer.weights(layer.wide(x, sx), ids, dh).unflatten(2, (2, -1))
        if wants("vc"):
            d = layer.wide(d, sd)
        if needs["v"]:
            found["v"] = layer.weights(a, ids, d)
        # Sums of each expert's rows.
        if needs["b"]:
            found["b"] = layer.weights(dh.new_ones(len(dh), 8), ids, dh)[:, 0].unflatten(1, (2, -1))
        if needs["c"]:
            eye = torch.eye(8, dtype=dy.dtype, device=dy.device).expand(len(w), 8, 8).contiguous()
            found["c"] = layer.weights(layer.each(dy.new_ones(len(dy), 8), ids, weights, eye), ids, d)[:, 0]
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
        rows = f"dy -> quantize(e4m3, 1, {BLOCK}) -> dispatch(ids"
        self.back = make(
            f"fn moe_rows({tokens('dy')}, v: e4m3[E, F, H] {MATRICES}) {{ let rows = {rows}); (rows -> grouped_gemm(v.t), rows) }}")
        self.grads = make(
            f"""fn moe_grads({tokens("dy")}, {weights}, v: e4m3[E, F, H] {MATRICES}, h: bf16[R, 2, F] @ shard(0)) {{
                let rows = {rows}, capacity = R);
                let u = rows -> grouped_gemm(v.t);
                let a = h -> swiglu;
                (u -> weigh(weights) -> swiglu_grad(h), a -> ragged(ids) -> weigh(weights), u -> weigh_grad(a), rows)
            }}""")
        self.sums = self.product("dx", f", {weights}", " -> combine(weights)")
        # Of biases each token's weight has a part, which rows before them do not show.
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
        return self.forward(*given[:3], *halves(*matrices(*given[3:5])[1]), *given[5:])


def check(fp8, dtype, part, what, other, its):
    """Refuses sizes and types that layers of eight bits cannot have. ``part`` is a rank's part of one dimension, ``other`` the other dimension."""
    if fp8 != "1x128":
        raise ArgumentError(f'fp8 is {fp8!r}, and layers take "1x128"\n  help: leave it out for 16 bits')
    if dtype != torch.bfloat16:
        raise ArgumentError(f"dtype is {dtype}, and results of eight bits are torch.bfloat16")
    if part % BLOCK:
        raise ArgumentError(f"{what} is {part} on each rank, which cuts blocks of {BLOCK} that share a factor\n  help: use a multiple of {BLOCK}")
    if other % 16:
        raise ArgumentError(f"{its} is {other}, and GEMMs read 16 bytes of eight bits at a time\n  help: use a multiple of 16")
