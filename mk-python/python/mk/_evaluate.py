"""Pipelines as torch operations, one after the other, on what this rank holds: the reference world, and what is done between kernels."""

from __future__ import annotations

from . import _attention
from ._errors import UnsupportedError
from ._mk import DTYPES


def dtype(torch, value):
    return getattr(torch, DTYPES[value["dtype"]])


def evaluate(torch, program, tensors, move=None, sequence=None, experts=None, widen=False, local=None):
    """The results of a described pipeline. ``move(kind, x, value)`` is a collective, where there are any, and
    ``sequence(x, value, dim, passed)`` is what attention meets of a tensor, with its places; ``experts(value, operands)`` computes rows of experts; ``local(value)`` is the shape of what this rank has. With ``widen`` everything is computed in float32, and
    results are rounded once."""
    values = [t.float() if widen and t.is_floating_point() else t for t in tensors]
    # What parts of attention have in common with others of the same operation, and factors of quantised values.
    beside = {}
    for value in program["values"][len(values) :]:
        operands = [values[i] for i in value["inputs"]]
        if value["op"] in ("gather", "reduce_scatter", "all_reduce", "all_to_all"):
            if move is None:
                raise UnsupportedError(f"`{value['op']}` between kernels")
            values.append(move(value["op"], operands[0], value))
        elif value["op"] in _attention.OPS and sequence is not None:
            values.append(_attention.OPS[value["op"]](torch, program["values"], value, values, sequence, beside))
        elif value["op"] in ("dispatch", "grouped_gemm", "grouped_wgrad", "combine", "combine_grad", "weigh", "weigh_grad", "dropped") and experts is not None:
            values.append(experts(value, operands))
        elif value["op"] == "bias" and operands[1].dim() > 1 and experts is not None:
            values.append(experts(value, operands))
        elif value["op"] == "view":
            # Alone between kernels, it is the caller who knows the shape.
            values.append(operands[0] if local is None else operands[0].reshape(local(value)))
        elif value["op"] == "quantize":
            q, beside[len(values)] = _quantize(torch, value, *operands)
            values.append(q)
        elif value["op"] == "factor":
            values.append(beside[value["inputs"][0]])
        elif value["op"] not in _OPS:
            raise UnsupportedError(f"`{value['op']}` has no torch operations here\n  help: use a world of GPUs")
        else:
            values.append(_OPS[value["op"]](torch, value, widen, *operands))
    return [values[i].to(dtype(torch, program["values"][i])).contiguous() for _, i in program["results"]]


def _gemm(torch, value, widen, a, b):
    # Of eight bits torch multiplies none here.
    if a.dtype != b.dtype or a.dtype.itemsize == 1:
        a, b = a.float(), b.float()
    a = a.flatten(1)
    shape = b.shape[1:] if not value["b_transposed"] else b.shape[:1]
    b = b.flatten(1)
    out = (a.t() if value["a_transposed"] else a) @ (b.t() if value["b_transposed"] else b)
    return out.view(out.shape[0], *shape)


def _gelu_grad(approximate):
    return lambda torch, value, widen, d, x: torch.ops.aten.gelu_backward(d, x, approximate=approximate)


def _swiglu(torch, value, widen, x):
    gate, up = x.unbind(1)
    return torch.nn.functional.silu(gate) * up


def _swiglu_grad(torch, value, widen, d, x):
    gate, up = x.unbind(1)
    return torch.stack([torch.ops.aten.silu_backward(d * up, gate), d * torch.nn.functional.silu(gate)], 1)


def _rmsnorm(torch, value, widen, x, weight=None):
    x32 = x.float()
    y = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + value["eps"])
    return (y if weight is None else y * weight).to(x.dtype)


def _rmsnorm_grad(torch, value, widen, d, x, weight=None):
    x32, g = x.float(), d.float() if weight is None else d.float() * weight
    root = torch.rsqrt(x32.square().mean(-1, keepdim=True) + value["eps"])
    return (root * g - x32 * root**3 * (g * x32).mean(-1, keepdim=True)).to(x.dtype)


def _rope(back):
    def turned(torch, value, widen, x, table):
        rows, head = table.shape
        cos, sin = (t[:, None] for t in table.float().chunk(2, 1))
        first, second = x.float().view(rows, -1, head).chunk(2, 2)
        sin = -sin if back else sin
        return torch.cat([first * cos - second * sin, second * cos + first * sin], 2).view(x.shape).to(x.dtype)

    return turned


def _quantize(torch, value, x):
    from ._float8 import quantized

    q, scale = quantized(x, dtype=dtype(torch, value))
    return q, scale.t().contiguous()


def _dequantize(torch, value, widen, x, scales):
    y = _with_factors(x, scales)
    return y if value["dtype"] == "f32" else _cast(torch, value, widen, y)


def _with_factors(x, scales):
    if scales.ndim == 1:
        return x.float() * scales[:, None]
    if x.dim() > 2:
        # Of a stack, each matrix has its own, of 128 rows.
        each = scales.repeat_interleave(128, -2)[..., : x.shape[-2], :]
        return x.float() * each.repeat_interleave(128, -1)[..., : x.shape[-1]]
    rows, columns = x.shape
    # Factors of 128 elements of a row are [K / 128, rows]; of 128 rows, [rows / 128, K / 128].
    if scales.shape[1] == rows:
        each = scales.t()
    else:
        each = scales.repeat_interleave(128, 0)[:rows]
    return x.float() * each.repeat_interleave(128, 1)[:, :columns]


_OPS = {
    "gemm": _gemm,
    "dequantize": _dequantize,
    "bias": lambda torch, value, widen, x, c: x + c,
    "gelu": lambda torch, value, widen, x: torch.nn.functional.gelu(x),
    "gelu_tanh": lambda torch, value, widen, x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": lambda torch, value, widen, x: torch.nn.functional.silu(x),
    "relu": lambda torch, value, widen, x: torch.relu(x),
    "gelu_grad": _gelu_grad("none"),
    "gelu_tanh_grad": _gelu_grad("tanh"),
    "silu_grad": lambda torch, value, widen, d, x: torch.ops.aten.silu_backward(d, x),
    "relu_grad": lambda torch, value, widen, d, x: torch.ops.aten.threshold_backward(d, x, 0),
    "swiglu": _swiglu,
    "swiglu_grad": _swiglu_grad,
    "rmsnorm": _rmsnorm,
    "rmsnorm_grad": _rmsnorm_grad,
    "rope": _rope(False),
    "rope_grad": _rope(True),
    "mul": lambda torch, value, widen, x, y: x * y,
    "add": lambda torch, value, widen, x, y: x + y,
    "scale": lambda torch, value, widen, x: x * value["factor"],
    "cast": lambda torch, value, widen, x: x if widen and value["dtype"] == "f32" else _cast(torch, value, widen, x),
}


def _cast(torch, value, widen, x):
    y = x.to(dtype(torch, value))
    return y.float() if widen else y
