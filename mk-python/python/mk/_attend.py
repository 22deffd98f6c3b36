"""``mk.attention``: attention with the arguments of torch, without a text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

from . import _function, _mk, _worlds
from ._errors import ArgumentError, UnsupportedError
from ._reference import Ranks, ReferenceWorld

if TYPE_CHECKING:
    from torch import Tensor

_DTYPES = {"bfloat16": "bf16", "float16": "f16"}


class _Alone(ReferenceWorld):
    """CPU tensors of this process, whether or not torch.distributed is initialised."""

    def __new__(cls):
        return _mk.World.__new__(cls, 1, 0)

    def __init__(self):
        self._dist, self.rank = None, 0
        self._all, self._along = Ranks(None, None, 1, 0), {}
        _worlds.register(self)


@functools.cache
def _alone(kind, index):
    """The world of one device of this process."""
    return _mk.World.local(devices=[index]) if kind == "cuda" else _Alone()


@functools.cache
def _made(text, world):
    """The function of a text, kept for as long as the process lives: graphs name it. ``world`` is a device, or a world's name."""
    return _function.compile(text, _worlds.find(world) if isinstance(world, str) else _alone(*world))


def _key(text, world, records):
    """The name that a graph calls it by."""
    f = _made(text, world)
    return f._train._key if records else f._key


# What torch.compiler.assume_constant_result says, without torch.
_key._dynamo_marked_constant = True


def call(text, at, operands):
    """A text on tensors; nothing is recorded."""
    import torch

    if torch.compiler.is_compiling():
        key = _key(text, at, False)
        return torch.ops.mk.call(operands, key)
    made = _made(text, at)(*operands)
    return list(made) if isinstance(made, tuple) else [made]


class Texts:
    """Forward and backward of one attention."""

    def __init__(self, dtype, ring, words, longest, same, packed, sinks, values):
        placed, turned = (f" @ {ring}(1)", f" @ {ring}(2)") if ring else ("", "")
        q, logs, stats = f"{dtype}[B, S, H, D]{placed}", f"f32[B, H, S]{turned}", f"f32[B, H, S, 4]{turned}"
        # One kernel has one length of a launch: that of both, or of keys.
        keys_dim = "S" if ring or longest and same else "T"
        dims = f"<{keys_dim}: dyn <= {longest}>" if longest else ""
        over = lambda passed, op, rest: f"ring({passed}) -> {op}({rest}{words})" if ring else None
        if packed:
            keys_dim, words = "S", f"{words}, cu_seqlens = cu"
        # Heads of values may have other elements.
        wide = "E" if values else "D"
        k, v, do = f"{dtype}[B, {keys_dim}, G, D]{placed}", f"{dtype}[B, {keys_dim}, G, {wide}]{placed}", f"{dtype}[B, S, H, {wide}]{placed}"
        documents = ", cu: i32[N]" if packed else ""
        keys, gradients = f"k: {k}, v: {v}{documents}", f"q: {q}, do: {do}, stats: {stats}, k: {k}, v: {v}{documents}"
        sums, given = (", sinks = s", ", s: f32[H]") if sinks else ("", "")
        o = over("k, v", "attention", f"q{sums}") or f"attention(q, k, v{sums}{words})"
        dq = over("k, v", "attention_dq", "q, do, stats") or f"attention_dq(q, do, stats, k, v{words})"
        dk = over("q, do, stats", "attention_dk", "k, v") or f"attention_dk(k, v, q, do, stats{words})"
        self.forward = f"fn attention{dims}(q: {q}, {keys}{given}) {{ let o = {o}; (o, o -> lse) }}"
        dims = dims if keys_dim == "S" else ""
        self.stats = f"fn attention_stats{dims}(o: {do}, do: {do}, logs: {logs}) {{ o -> attention_stats(do, logs) }}"
        # Over a ring each rank has what its rows give, and whoever sums gradients of parameters sums them.
        self.sinks = f"fn attention_dsinks{dims}(stats: {stats}, s: f32[H]) {{ attention_dsinks(stats, s) }}"
        self.queries = f"fn attention_dq{dims}({gradients}) {{ {dq} }}"
        self.keys = f"fn attention_dk{dims}({gradients}) {{ let dk = {dk}; (dk, dk -> attention_dv) }}"


def _check(q, k, v, window, causal, softcap, sinks, enable_gqa, longest, ring):
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ArgumentError(f"`{name}` is {tuple(x.shape)}, and must be [B, H, S, D]")
        if x.dtype != q.dtype or x.device != q.device:
            raise ArgumentError(f"`{name}` is {x.dtype} on {x.device}, and `q` {q.dtype} on {q.device}")
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ArgumentError(f"queries {tuple(q.shape)} do not go with keys {tuple(k.shape)} and values {tuple(v.shape)}: "
                            "[B, H, S, D], [B, G, T, D] and [B, G, T, E]")
    if q.shape[1] != k.shape[1] and not (enable_gqa and k.shape[1] and q.shape[1] % k.shape[1] == 0):
        raise ArgumentError(f"{q.shape[1]} heads of queries, and {k.shape[1]} of keys\n  help: pass enable_gqa=True, and a multiple of the heads of keys")
    if ring and q.shape[2] != k.shape[2]:
        raise ArgumentError(f"ranks share a sequence of {q.shape[2]} queries and {k.shape[2]} keys each\n  help: pass as many of both")
    if window is not None and not (isinstance(window, int) and 0 < window < 2**31):
        raise ArgumentError(f"window is {window!r}, and must be how many keys a query sees, its own the last\n  help: left + 1 of a window (left, 0)")
    if window is not None and not causal:
        raise ArgumentError("a window ends at a query's own position\n  help: pass causal=True")
    if sinks is not None and (sinks.dim() != 1 or sinks.shape[0] != q.shape[1] or sinks.device != q.device):
        raise ArgumentError(f"sinks are {tuple(sinks.shape)} on {sinks.device}, and must be ({q.shape[1]},) on {q.device}: one of each head of queries")
    if longest is not None and not (isinstance(longest, int) and longest >= k.shape[2]):
        raise ArgumentError(f"longest is {longest!r}, and keys are {k.shape[2]}\n  help: pass the most keys that any call has")
    if softcap is not None and not softcap > 0:
        raise ArgumentError(f"softcap is {softcap!r}, and must be positive: None is no cap")


def _documents(q, k, v, cu_seqlens, longest, ring):
    """``[T, H, D]`` as ``[1, H, T, D]``; and where documents begin, with empty ones behind them, so that one kernel serves many numbers of them."""
    import torch

    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 3:
            raise ArgumentError(f"`{name}` is {tuple(x.shape)}, and with cu_seqlens must be [T, H, D]: the tokens of all documents, one after the other")
        if x.shape[0] != q.shape[0]:
            raise ArgumentError(f"`{name}` has {x.shape[0]} tokens, and `q` {q.shape[0]}\n  help: queries and keys of packed sequences are the same tokens")
    cu, n = cu_seqlens, q.shape[0]
    if cu.dim() != 1 or cu.dtype not in (torch.int32, torch.int64) or cu.shape[0] < 2 or cu.device != q.device:
        raise ArgumentError(f"cu_seqlens is {tuple(cu.shape)} of {cu.dtype} on {cu.device}, and must be [documents + 1] of int32 on {q.device}")
    if longest is not None:
        raise ArgumentError("longest goes with one sequence\n  help: pass tensors of one length, and cu_seqlens that end before it: tokens behind the last document see nothing")
    if cu.device.type == "cpu" and not torch.compiler.is_compiling():
        begins = cu.tolist()
        # Ranks that share the tokens have at most as many each as the first.
        n = n if ring is None else 2**31 - 1
        for i, (begin, least) in enumerate(zip(begins, [0, *begins])):
            if not least <= begin <= (n if i else 0):
                raise ArgumentError(f"entry {i} of cu_seqlens is {begin}, and may be {least} to {n if i else 0}\n  help: let the first one be 0, and all ascend to the number of tokens")
    entries = max(16, 1 << (cu.shape[0] - 1).bit_length())
    cu = torch.cat([cu, cu[-1:].expand(entries - cu.shape[0])]).to(torch.int32)
    return *(x.transpose(0, 1)[None] for x in (q, k, v)), cu


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    longest: int | None = None,
    cu_seqlens: Tensor | None = None,
    world: _mk.World | None = None,
    placement: Literal["zigzag", "shard"] = "zigzag",
) -> Tensor | tuple[Tensor, Tensor]:
    """``softmax(scale q k^T) v`` as ``torch.nn.functional.scaled_dot_product_attention`` has it: ``q`` is ``[B, H, S, D]``, ``k`` and ``v``
    are ``[B, G, T, D]``, bfloat16 or float16, and so is the result; heads of values may have others than 192, 128. Views of contiguous ``[B, S, H, D]`` are taken as they are, others copied.

    ``causal``: a query sees the keys at its own position and before. The last query and the last key have one position, as in
    flash-attn and ``torch.nn.attention.bias.causal_lower_right``; ``is_causal`` of torch aligns the first ones. ``window`` is how many of those
    keys a query sees, its own the last. Scaled scores ``s`` become ``softcap * tanh(s / softcap)``. ``scale`` is ``1 / sqrt(D)`` unless given. With
    ``enable_gqa`` ``H`` may be a multiple of ``G``. Rows that see no key are 0. ``sinks``, ``[H]``, are added to each sum of
    exponentials by ``exp(sinks)``. ``return_lse`` returns the logarithms of these sums, too, ``[B, H, S]`` in float32.

    With ``cu_seqlens``, int32 ``[documents + 1]`` on the tensors' device, ``q``, ``k`` and ``v`` are packed sequences, ``[T, H, D]``, as flash-attn and
    ``torch.nn.attention.varlen`` have them, and so is the result; logarithms are ``[H, T]``. Document ``n`` has the tokens from ``cu_seqlens[n]`` on,
    before ``cu_seqlens[n + 1]``, and sees no others; what is behind the last one sees nothing. Ranks that share the tokens all pass the same. Nothing is read on the host: on a GPU numbers that
    do not ascend from 0 to ``T`` end the launch with an error.

    In a ``world`` of several ranks, one in each process, these share the sequence; gradients of ``sinks`` are then of the rank's rows.
    ``placement`` is ``"zigzag"``, which balances causal masks, or ``"shard"``. Keys and values then go round while ranks compute. Otherwise each process computes by itself, on the tensors' device.

    Records gradients, and is one operator to ``torch.compile``. The first call with new shapes compiles, as that of any function; with ``longest`` one
    kernel serves all lengths of keys up to it, of which there are as many as queries, or whose queries are as many in all calls.

    Raises ArgumentError, UnsupportedError for heads that no kernel has.
    """
    import torch

    if placement not in ("zigzag", "shard"):
        raise ArgumentError(f'placement is {placement!r}, and must be "zigzag" or "shard"')
    ring = placement if world is not None and world.size > 1 else None
    documents = []
    if cu_seqlens is not None:
        q, k, v, *documents = _documents(q, k, v, cu_seqlens, longest, ring)
    _check(q, k, v, window, causal, softcap, sinks, enable_gqa, longest, ring)
    dtype = q.dtype
    if dtype == torch.float32 and torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
    name = _DTYPES.get(str(dtype).removeprefix("torch."))
    if name is None:
        raise UnsupportedError(f"attention of {dtype}\n  help: pass bfloat16 or float16")
    words = ", causal" if causal else ""
    for word, number in (("window", window), ("softcap", softcap), ("scale", scale)):
        words += f", {word} = {number}" if number is not None else ""
    at = _worlds.name(world) if world is not None else (q.device.type, q.device.index or 0)
    texts = Texts(name, ring, words, longest, q.shape[2] == k.shape[2], bool(documents), sinks is not None, q.shape[3] != v.shape[3])
    operands = [x.transpose(1, 2).contiguous().to(dtype) for x in (q, k, v)]
    if return_lse or sinks is not None:
        from ._attend_sums import Attention

        made = Attention.apply(*operands, sinks, *(documents or [None]), texts, at, return_lse)
        o, logs = made if return_lse else (made, None)
    elif torch.compiler.is_compiling():
        records = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        key = _key(texts.forward, at, records)  # which defines the operator
        o, logs = torch.ops.mk.call([*operands, *documents], key)[:2]
    else:
        o, logs = _made(texts.forward, at)(*operands, *documents)
    o = o.transpose(1, 2)
    if documents:
        # Not `o[0]`, of which the gradient is copied into zeros.
        o, logs = o.squeeze(0).transpose(0, 1), logs.squeeze(0) if return_lse else None
    return (o, logs) if return_lse else o
