"""Tensor-parallel layers: as ``torch.nn``'s, with weights that are this rank's parts, ``[out, in]`` as ``torch.nn.Linear`` has them.

Activations outside are sharded by tokens (sequence parallelism) unless ``sequence_parallel`` is false; then they are whole on every rank.
Layers of one size in one world share one function, and so its workspace. SMs are kept free for NCCL's channels where there are process groups
besides the world's when a layer is made (data parallelism, say), or with ``reserve_sms="nccl"``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from operator import index

import torch

from . import _float8
from ._experts import BLOCK
from ._errors import ArgumentError, UnsupportedError
from ._function import check_world, compile
from ._replace import Replaced, replace

__all__ = ["ColumnParallelLinear", "GatedMLP", "GroupedMLP", "MoE", "Replaced", "RowParallelLinear", "replace"]
_DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}


def _dtype(dtype):
    if dtype not in _DTYPES:
        raise ArgumentError(f"dtype is {dtype}, and products take torch.bfloat16 or torch.float16\n  help: keep float32 copies in the optimizer")
    return _DTYPES[dtype]


def _size(n, what):
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"{what} is a {type(n).__name__}, and must be an int")
    if n < 1:
        raise ArgumentError(f"{what} is {n}, and must be 1 or more")
    return n


def _capacity(given):
    if given is None or isinstance(given, float) and 0 < given < math.inf:
        return given
    if isinstance(given, float):
        raise ArgumentError(f"capacity is {given}, and a factor must be above 0\n  help: with 1.0 experts have room for equal parts of the rows")
    if _size(given, "capacity") % BLOCK:
        raise ArgumentError(f"capacity is {given}, and experts keep whole blocks of {BLOCK} rows\n  help: give {BLOCK * -(-given // BLOCK)} rows, or a "
                            "float, a factor that is rounded up")
    return given


def _part(n, world, what):
    check_world(world)
    if _size(n, what) % world.size:
        raise ArgumentError(f"{what} is {n}, and {world.size} ranks have no equal parts of it")
    return n // world.size


def _nccl_elsewhere(world):
    """Whether NCCL may run beside the world's kernels: there are process groups of other ranks, or it is not known."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return False
    groups = getattr(dist.distributed_c10d._world, "pg_map", None)
    if groups is None:
        return True
    sizes = [dist.get_world_size(group) for group, (backend, *_) in groups.items() if "nccl" in str(backend)]
    return any(1 < size != world.size for size in sizes) or sum(size > 1 for size in sizes) > 1


def _options(world, reserve_sms, options):
    if reserve_sms is None:
        reserve_sms = "nccl" if world.size > 1 and world.devices and _nccl_elsewhere(world) else 0
    return {"reserve_sms": reserve_sms, **options}


class _Layer(torch.nn.Module):
    def _weight(self, *shape, fan_in, device, dtype):
        weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        # As torch.nn.Linear of all ranks' columns and rows.
        torch.nn.init.uniform_(weight, -(fan_in**-0.5), fan_in**-0.5)
        return weight


class ColumnParallelLinear(_Layer):
    """``y = x W^T + b``: each rank has ``out_features / ranks`` rows of ``W``, and those columns of ``y``.

    With ``sequence_parallel`` ``x`` is this rank's tokens, and is gathered; else all tokens, the same on every rank.

    ``fp8="1x128"``: ``y`` and the gradient of ``x`` are GEMMs of e4m3, with factors of 1 x 128 of activations and gradients, and of 128 x 128 of
    weights, which are quantised in each call; the gradient of ``W`` is one of bfloat16, of the quantised values.
    """

    def __init__(self, in_features, out_features, world, bias=True, *, sequence_parallel=True, fp8=None, device=None, dtype=torch.bfloat16,
                 reserve_sms=None, **options):
        super().__init__()
        self.in_features, self.out_features, n = _size(in_features, "in_features"), out_features, _part(out_features, world, "out_features")
        self.weight = self._weight(n, in_features, fan_in=in_features, device=device, dtype=dtype)
        self.bias = self._weight(n, fan_in=in_features, device=device, dtype=dtype) if bias else None
        t, x = _dtype(dtype), "shard(0)" if sequence_parallel else "replicate"
        parameter, stage = (f", c: {t}[N] @ shard(0)", " -> bias(c)") if bias else ("", "")
        head = "gather(x) -> gemm(w.t)" if sequence_parallel else "gemm(x, w.t)"
        if fp8 is not None:
            _float8.check(fp8, dtype, n, "out_features", in_features, "in_features")
            self.function = _float8.Linear(world, True, sequence_parallel, bias, _options(world, reserve_sms, options))
            return
        self.function = compile(f"fn column(x: {t}[M, K] @ {x}, w: {t}[N, K] @ shard(0){parameter}) {{ {head}{stage} }}", world,
                                **_options(world, reserve_sms, options))

    def forward(self, x):
        return self.function(x, self.weight) if self.bias is None else self.function(x, self.weight, self.bias)

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class RowParallelLinear(_Layer):
    """``y = x W^T + b``: each rank has ``in_features / ranks`` columns of ``W`` and of ``x``; the products are summed over the ranks.

    With ``sequence_parallel`` each rank gets the sums of its tokens; else all ranks get all. ``fp8``: as above.
    """

    def __init__(self, in_features, out_features, world, bias=True, *, sequence_parallel=True, fp8=None, device=None, dtype=torch.bfloat16,
                 reserve_sms=None, **options):
        super().__init__()
        self.in_features, self.out_features, k = in_features, _size(out_features, "out_features"), _part(in_features, world, "in_features")
        self.weight = self._weight(out_features, k, fan_in=in_features, device=device, dtype=dtype)
        # The same on every rank.
        self.bias = torch.nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype)) if bias else None
        t, reduce = _dtype(dtype), "reduce_scatter" if sequence_parallel else "all_reduce"
        parameter, stage = (f", c: {t}[N]", " -> bias(c)") if bias else ("", "")
        if fp8 is not None:
            _float8.check(fp8, dtype, k, "in_features", out_features, "out_features")
            self.function = _float8.Linear(world, False, sequence_parallel, bias, _options(world, reserve_sms, options))
            return
        self.function = compile(
            f"fn row(x: {t}[M, K] @ shard(1), w: {t}[N, K] @ shard(1){parameter}) {{ gemm(x, w.t) -> {reduce}{stage} }}", world,
            **_options(world, reserve_sms, options))

    def forward(self, x):
        return self.function(x, self.weight) if self.bias is None else self.function(x, self.weight, self.bias)

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class GatedMLP(_Layer):
    """``(silu(x G) * (x U)) D``, a SwiGLU block, in one kernel each way where one holds it. Each rank has ``ffn / ranks`` of its columns.

    ``gate_up`` is ``[hidden, 2, ffn / ranks]`` and ``down`` ``[ffn / ranks, hidden]``. ``load(gate, up, down)`` takes this rank's parts
    as ``torch.nn.Linear`` has them, and so does ``load_state_dict``, as ``gate_proj.weight``, ``up_proj.weight`` and ``down_proj.weight``, or ``w1``,
    ``w3`` and ``w2``.

    ``fp8="1x128"``: as both linear layers, with a kernel of ``swiglu`` between them.
    """

    def __init__(self, hidden, ffn, world, *, sequence_parallel=True, fp8=None, device=None, dtype=torch.bfloat16, reserve_sms=None, **options):
        super().__init__()
        self.hidden, self.ffn, f = _size(hidden, "hidden"), ffn, _part(ffn, world, "ffn")
        self.gate_up = self._weight(hidden, 2, f, fan_in=hidden, device=device, dtype=dtype)
        self.down = self._weight(f, hidden, fan_in=ffn, device=device, dtype=dtype)
        t, options = _dtype(dtype), _options(world, reserve_sms, options)
        if fp8 is not None:
            _float8.check(fp8, dtype, f, "ffn", hidden, "hidden")
            self.function = _float8.Gated(world, sequence_parallel, options)
            return
        x, head, reduce = ("shard(0)", "gather(x) -> gemm(w)", "reduce_scatter") if sequence_parallel else (
            "replicate", "gemm(x, w)", "all_reduce")
        self.function = compile(
            f"fn gated(x: {t}[M, K] @ {x}, w: {t}[K, 2, F] @ shard(2), v: {t}[F, K] @ shard(0)) {{ {head} -> swiglu -> gemm(v) -> {reduce} }}",
            world, **options)

    @torch.no_grad()
    def load(self, gate, up, down):
        """Copies weights ``[ffn / ranks, hidden]``, ``[ffn / ranks, hidden]`` and ``[hidden, ffn / ranks]``."""
        self.gate_up[:, 0].copy_(gate.t())
        self.gate_up[:, 1].copy_(up.t())
        self.down.copy_(down.t())

    @torch.no_grad()
    def load_fused(self, gate_up, down):
        """Copies weights ``[2 * ffn / ranks, hidden]``, this rank's gates above its ups, and ``[hidden, ffn / ranks]``."""
        self.load(*gate_up.chunk(2), down)

    @property
    def gate(self):
        """The gates as ``torch.nn.Linear`` has them, ``[ffn / ranks, hidden]``: a view."""
        return self.gate_up[:, 0].t()

    @property
    def up(self):
        """The ups, as ``gate``."""
        return self.gate_up[:, 1].t()

    def _load_from_state_dict(self, state, prefix, *rest):
        # Of three layers (Llama's names, too), or of one of gates and ups.
        for gate, up, down in (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("gate", "up", "down")):
            names = [f"{prefix}{name}.weight" for name in (gate, up, down)]
            if all(name in state for name in names):
                gate, up, down = (state.pop(name) for name in names)
                state[f"{prefix}gate_up"] = torch.stack([gate.t(), up.t()], 1)
                state[f"{prefix}down"] = down.t()
        super()._load_from_state_dict(state, prefix, *rest)

    def forward(self, x):
        return self.function(x, self.gate_up, self.down)

    def extra_repr(self):
        return f"hidden={self.hidden}, ffn={self.ffn}"


class _Experts(_Layer):
    """SwiGLU blocks of experts, of which each rank has ``experts / ranks``."""

    def _experts(self, hidden, ffn, experts, own, bias, device, dtype):
        self.hidden, self.ffn, self.experts = _size(hidden, "hidden"), _size(ffn, "ffn"), experts
        self.gate_up = self._weight(own, hidden, 2, ffn, fan_in=hidden, device=device, dtype=dtype)
        self.down = self._weight(own, ffn, hidden, fan_in=ffn, device=device, dtype=dtype)
        self.gate_up_bias = self._weight(own, 2, ffn, fan_in=hidden, device=device, dtype=dtype) if bias else None
        self.down_bias = self._weight(own, hidden, fan_in=ffn, device=device, dtype=dtype) if bias else None
        return _dtype(dtype)

    def _biases(self):
        return () if self.gate_up_bias is None else (self.gate_up_bias, self.down_bias)

    def _stages(self, t, hidden):
        """Their parameters in a text, and what stands behind each product."""
        if self.gate_up_bias is None:
            return "", "", ""
        return f", b: {t}[E, 2, F] @ shard(0), c: {t}[E, {hidden}] @ shard(0)", " -> bias(b)", " -> bias(c)"

    @torch.no_grad()
    def load(self, gate_up, down, gate_up_bias=None, down_bias=None):
        """Copies weights ``[experts / ranks, 2 * ffn, hidden]``, gates above ups, and ``[experts / ranks, hidden, ffn]``, and biases
        ``[experts / ranks, 2 * ffn]`` and ``[experts / ranks, hidden]``, where the layer has them."""
        given = [gate_up_bias, down_bias]
        if [t is not None for t in given] != [t is not None for t in (self.gate_up_bias, self.down_bias)]:
            raise ArgumentError(f"the layer has {'no ' if self.gate_up_bias is None else ''}biases\n  help: give both, or none, as bias says")
        self.gate_up.copy_(self._turned(gate_up))
        self.down.copy_(down.transpose(1, 2))
        if self.gate_up_bias is not None:
            self.gate_up_bias.copy_(gate_up_bias.view(-1, 2, self.ffn))
            self.down_bias.copy_(down_bias)

    def _turned(self, gate_up):
        return gate_up.view(-1, 2, self.ffn, self.hidden).permute(0, 3, 1, 2)

    def _load_from_state_dict(self, state, prefix, *rest):
        own, kinds = range(len(self.down)), ["weight"] if self.gate_up_bias is None else ["weight", "bias"]
        megatron = {(i, kind): [f"{prefix}linear_fc{i}.{kind}{e}" for e in own] for i in (1, 2) for kind in kinds}
        if all(name in state for names in megatron.values() for name in names):
            for (i, kind), names in megatron.items():
                name = ("gate_up_proj", "down_proj")[i - 1] + ("_bias" if kind == "bias" else "")
                state[prefix + name] = torch.stack([state.pop(name) for name in names])
        if all(prefix + name in state for name in ("gate_up_proj", "down_proj")):
            state[f"{prefix}gate_up"] = self._turned(state.pop(f"{prefix}gate_up_proj"))
            state[f"{prefix}down"] = state.pop(f"{prefix}down_proj").transpose(1, 2)
            if all(f"{prefix}{name}_proj_bias" in state for name in ("gate_up", "down")):
                state[f"{prefix}gate_up_bias"] = state.pop(f"{prefix}gate_up_proj_bias").view(-1, 2, self.ffn)
                state[f"{prefix}down_bias"] = state.pop(f"{prefix}down_proj_bias")
        super()._load_from_state_dict(state, prefix, *rest)

    def extra_repr(self):
        return f"hidden={self.hidden}, ffn={self.ffn}, experts={self.experts}, bias={self.gate_up_bias is not None}"


class GroupedMLP(_Experts):
    """SwiGLU blocks of experts, of which each rank has ``experts / ranks``: rows of experts, with gradients of rows and weights.

    ``layer(x, counts)``: ``x`` is ``[rows, hidden]``, this rank's rows, an expert's behind those of the one before, each from a multiple of 128 on;
    ``counts`` says how many each has, ``int32``. Rows behind an expert's last one have no value, and neither have those of the result.

    ``gate_up`` is ``[experts / ranks, hidden, 2, ffn]`` and ``down`` ``[experts / ranks, ffn, hidden]``. ``load(gate_up, down)`` takes this rank's
    experts as transformers has them, and ``load_state_dict`` as ``gate_up_proj`` and ``down_proj``, or as Megatron's ``linear_fc1.weight0``,
    ``linear_fc2.weight0``, and so on. With ``bias`` there are ``gate_up_bias``, ``[experts / ranks, 2, ffn]``, and ``down_bias``,
    ``[experts / ranks, hidden]``, which are loaded as ``gate_up_proj_bias`` and ``down_proj_bias``, or ``linear_fc1.bias0``, and so on.

    ``fp8="1x128"``: as the linear layers', rows and matrices quantised in each call; the first GEMM runs again for gradients. A call is a graph break of
    ``torch.compile``.
    """

    def __init__(self, hidden, ffn, experts, world, *, bias=False, fp8=None, device=None, dtype=torch.bfloat16, reserve_sms=None, **options):
        super().__init__()
        t = self._experts(hidden, ffn, experts, _part(experts, world, "experts"), bias, device, dtype)
        options, (more, b, c) = _options(world, reserve_sms, options), self._stages(t, "K")
        if fp8 is not None:
            _float8.check(fp8, dtype, ffn, "ffn", hidden, "hidden")
            self.function = _float8.Rows(world, (more, b, c), options)
            return
        self.function = compile(
            f"""fn experts(x: {t}[R, K] @ shard(0), counts: i32[E] @ shard(0), w: {t}[E, K, 2, F] @ shard(0), v: {t}[E, F, K] @ shard(0){more}) {{
                ragged(x, counts) -> grouped_gemm(w){b} -> swiglu -> grouped_gemm(v){c}
            }}""",
            world, **options)

    def forward(self, x, counts):
        return self.function(x, counts, self.gate_up, self.down, *self._biases())


class MoE(_Experts):
    """A layer of experts over ranks, in one kernel forward: ``layer(x, ids, weights)``, with gradients of all but ``ids``.

    ``x`` is ``[..., hidden]``, this rank's tokens; ``ids`` ``[..., top_k]``, ``int64`` or ``int32``, the experts of each, numbered over all ranks,
    each once, or -1 for none; ``weights`` ``[..., top_k]`` what their results are multiplied by. A router is the caller's.

    Every rank has as many tokens, 0 or more; else all pass ``tokens``, the most that one of them has, the same in each call: the kernel takes fewer
    on each rank, or none. ``shared``, as ``x``, is added to the sums before they are rounded: what experts of all tokens make.

    Parameters, their layouts, ``bias`` and ``fp8`` are :class:`GroupedMLP`'s; in eight bits tokens and their gradients travel so. Forward then keeps
    the rows that it dispatched, a byte an element, and their factors; backward quantises the matrices again, and has rows in 16 bits for their
    gradients. Of experts that ranks do not divide, each has ``experts / ranks`` rounded up, and the
    last one the rest.

    ``capacity`` bounds the rows of an expert, from all ranks, and so memory. A float is a factor: ``capacity * tokens * top_k / experts`` rows, of the
    tokens of all ranks (with ``tokens``, so many of each), rounded up to whole blocks of 128; an int is a number of rows, a multiple of 128. An expert
    keeps its first rows, by rank and token; slots behind them are dropped: they add nothing, and have gradients of 0. ``dropped`` is then how many
    slots of this rank's tokens the last call dropped, an ``int32`` tensor ``[1]`` on the device, which is in no state dict. Without a capacity nothing
    is dropped, and ``dropped`` is None. ``fp8`` takes no capacity.
    """

    def __init__(self, hidden, ffn, experts, top_k, world, *, capacity=None, bias=False, fp8=None, device=None, dtype=torch.bfloat16,
                 reserve_sms=None, **options):
        super().__init__()
        self.capacity, self.dropped = _capacity(capacity), None
        self.top_k = _size(top_k, "top_k")
        if top_k > _size(experts, "experts"):
            raise ArgumentError(f"top_k is {top_k}, of {experts} experts\n  help: a token goes to each expert once")
        check_world(world)
        each = -(-experts // world.size)
        if each * (world.size - 1) >= experts:
            raise ArgumentError(f"experts is {experts}, and of {world.size} ranks with {each} each some have none\n  help: let every rank have one")
        own = min(each, experts - each * world.ranks[0])
        t = self._experts(hidden, ffn, experts, own, bias, device, dtype)
        options = _options(world, reserve_sms, options)
        if experts % world.size:
            options["dims"] = {**(options.get("dims") or {}), "E": experts}
        if fp8 is not None:
            _float8.check(fp8, dtype, ffn, "ffn", hidden, "hidden")
        if fp8 is not None and capacity is not None:
            raise UnsupportedError("dropped rows of eight bits are not counted\n  help: leave out fp8, or capacity")
        self._made_of = t, world, options, fp8
        # By whether something is added, the most tokens of a rank where each has another number, and the rows that an expert keeps.
        self._functions, self.function = {}, None
        if not isinstance(capacity, float):
            self.function, _ = (self._functions[self._key(adds, None, None)] for adds in (False, True))

    def _key(self, adds, tokens, rows):
        """The function, by name, of so many tokens of each rank, which matter where a factor says what an expert keeps."""
        kept = self.capacity
        if isinstance(kept, float):
            every = (rows if tokens is None else tokens) * self._made_of[1].size
            kept = math.ceil(Fraction(repr(kept)) * every * self.top_k / self.experts)
            # No expert has a token twice.
            kept = BLOCK * -(-min(kept, every) // BLOCK)
        key = f"{adds} {tokens} {kept}"
        if key not in self._functions:
            self._functions[key] = self._function(adds, tokens, kept)
        # With a factor, each number of tokens has a kernel: `function` is the last call's.
        self.function = self._functions[key] if isinstance(self.capacity, float) else self.function
        return key

    # What torch.compiler.assume_constant_result says, without its import.
    _key._dynamo_marked_constant = True

    def _function(self, adds, tokens, kept):
        t, world, options, fp8 = self._made_of
        more, b, c = self._stages(t, "H")
        own, add = "" if tokens is None else "<T: own>", " -> add(s)" if adds else ""
        if tokens is not None:
            options = {**options, "dims": {**(options.get("dims") or {}), "T": tokens * world.size}}
        if fp8 is not None:
            return _float8.Tokens(world, self.experts, (more, b, c), adds, own, options)
        more += f", s: {t}[T, H] @ shard(0)" if adds else ""
        let, room, count = "", ")", ""
        if kept is not None:
            of_all = kept * -(-self.experts // world.size) * world.size
            let, room, count = "let rows = ", f", capacity = {of_all}, drop); (rows", ", rows -> dropped)"
        return compile(
            f"""fn moe{own}(x: {t}[T, H] @ shard(0), ids: i64[T, K] @ shard(0), weights: f32[T, K] @ shard(0),
            w: {t}[E, H, 2, F] @ shard(0), v: {t}[E, F, H] @ shard(0){more}) {{
                {let}dispatch(x, ids{room} -> grouped_gemm(w){b} -> swiglu -> grouped_gemm(v){c} -> combine(weights){add}{count}
            }}""",
            world, **options)

    def forward(self, x, ids, weights, *, shared=None, tokens=None):
        given = (("x", x, self.hidden), ("ids", ids, self.top_k), ("weights", weights, self.top_k))
        if shared is not None:
            given += (("shared", shared, self.hidden),)
        for name, t, n in given:
            if t.shape[-1] != n:
                raise ArgumentError(f"{name} is {list(t.shape)}, and has {n} columns here")
        rows = x.numel() // self.hidden
        if rows == 0 and tokens is None:
            # Ranks have as many tokens: there is nothing to do on any, and all gradients are zeros.
            self.dropped = None if self.capacity is None else torch.zeros(1, dtype=torch.int32, device=x.device)
            return x + sum(t.flatten()[:0].sum() for t in (weights, self.gate_up, self.down, *self._biases())).to(x.dtype)
        parts = [x.reshape(rows, self.hidden), ids.reshape(-1, self.top_k).long(), weights.reshape(-1, self.top_k).float()]
        if shared is not None:
            parts.append(shared.reshape(rows, self.hidden))
        if tokens is not None:
            if rows > _size(tokens, "tokens"):
                raise ArgumentError(f"tokens is {tokens}, and this rank has {rows}\n  help: pass the most that a rank has, the same on all of them")
        # A graph of any number of tokens is one of this number, where a factor makes another kernel of it.
        key = self._key(shared is not None, tokens, index(rows) if isinstance(self.capacity, float) else None)
        made = self._functions[key](*parts[:3], self.gate_up, self.down, *self._biases(), *parts[3:])
        if self.capacity is not None:
            made, self.dropped = made
        return made.view(x.shape)

    def extra_repr(self):
        return f"{super().extra_repr()}, top_k={self.top_k}" + ("" if self.capacity is None else f", capacity={self.capacity}")
