"""Layers of other libraries' models in their places: ``mk.nn.replace``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ._errors import ArgumentError, UnsupportedError
from ._function import check_world, compile
from ._runner import ready

PLANS = ("tp", "ep", "tp+ep")
_WHOLE = "activations are whole on every rank"


@dataclass
class Replaced:
    """What ``replace`` did: ``(name, was, became, why)`` of each module that it looked at; ``became`` is None for what was left. ``str()`` is a table."""

    rows: list

    def __str__(self):
        cells = [("module", "was", "became", "")] + [(n, w, b or "–", why) for n, w, b, why in self.rows]
        wide = [max(len(c[i]) for c in cells) for i in range(3)]
        return "\n".join("  ".join([*(t.ljust(w) for t, w in zip(c, wide)), c[3]]).rstrip() for c in cells)


def _mine(tensor, world, dim):
    [rank] = world.ranks
    return tensor.chunk(world.size, dim)[rank]


class _Loads:
    """Takes a tensor of all ranks, or of this one, from a state_dict."""

    _cuts = {}

    def _load_from_state_dict(self, state, prefix, *rest):
        for name, dim in self._cuts.items():
            tensor, own = state.get(prefix + name), getattr(self, name, None)
            if tensor is not None and own is not None and tensor.shape != own.shape and tensor.shape[dim] == own.shape[dim] * self._world.size:
                state[prefix + name] = _mine(tensor, self._world, dim)
        super()._load_from_state_dict(state, prefix, *rest)


def _layers():
    # mk.nn imports this file.
    from . import nn

    class Column(_Loads, nn.ColumnParallelLinear):
        _cuts = {"weight": 0, "bias": 0}

    class Row(_Loads, nn.RowParallelLinear):
        _cuts = {"weight": 1}

    class Gated(nn.GatedMLP):
        def _load_from_state_dict(self, state, prefix, *rest):
            for name, dim in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
                key = f"{prefix}{name}.weight"
                if key in state and state[key].shape[dim] == self.ffn:
                    state[key] = _mine(state[key], self._world, dim)
            super()._load_from_state_dict(state, prefix, *rest)

    Column.__name__, Row.__name__, Gated.__name__ = "ColumnParallelLinear", "RowParallelLinear", "GatedMLP"
    return Column, Row, Gated


def _linear(kind, old, world, options):
    new = kind(old.in_features, old.out_features, world, old.bias is not None, sequence_parallel=False, device=old.weight.device,
               dtype=old.weight.dtype, **options)
    new._world = world
    for parameter in old.parameters():
        if parameter.device.type == "meta":
            return new
    new.load_state_dict(old.state_dict())
    return new


class _Part(torch.autograd.Function):
    """This rank's rows of what every rank has; their gradients become those of all rows, on every rank."""

    @staticmethod
    def forward(ctx, whole, world, together):
        ctx.together = together
        return ready(_mine(whole, world, 0))

    @staticmethod
    def backward(ctx, grad):
        return ctx.together(grad), None, None


class _Together(torch.autograd.Function):
    """The rows of all ranks; of their gradients, which are the same on every rank, the own ones."""

    @staticmethod
    def forward(ctx, part, world, together):
        ctx.world = world
        return together(part)

    @staticmethod
    def backward(ctx, grad):
        return ready(_mine(grad, ctx.world, 0)), None, None


class Experts(torch.nn.Module):
    """The experts of a layer, of which each rank has its part: tokens, the same on every rank, go to the ranks of their experts and come back.

    ``forward(x, ids, weights)`` is that of ``transformers``: ``[T, H]``, and ``[T, K]`` each. ``load_state_dict`` takes ``gate_up_proj`` and
    ``down_proj`` of all experts, or of this rank's.
    """

    def __init__(self, old, world, options):
        super().__init__()
        self._world, self.num_experts, self._functions, self._options = world, old.num_experts, {}, options
        each = -(-self.num_experts // world.size)
        [rank] = world.ranks
        self._mine = slice(rank * each, min(self.num_experts, (rank + 1) * each))
        if (world.size - 1) * each >= self.num_experts:
            raise UnsupportedError(f"{self.num_experts} experts and {world.size} ranks: some rank would have none")
        for name, turned, was in (("gate_up", self._turned, old.gate_up_proj), ("down", lambda t: t.mT, old.down_proj)):
            own = turned(was.detach()[self._mine]).contiguous()
            setattr(self, name, torch.nn.Parameter(own, requires_grad=was.requires_grad))

    @staticmethod
    def _turned(gate_up):
        return gate_up.unflatten(1, (2, gate_up.shape[1] // 2)).permute(0, 3, 1, 2)

    def _load_from_state_dict(self, state, prefix, *rest):
        for was, name, turned in (("gate_up_proj", "gate_up", self._turned), ("down_proj", "down", lambda t: t.mT)):
            tensor = state.pop(prefix + was, None)
            if tensor is not None:
                state[prefix + name] = turned(tensor[self._mine] if len(tensor) == self.num_experts else tensor)
        super()._load_from_state_dict(state, prefix, *rest)

    def _function(self, tokens):
        # Parts that are not even need their sizes.
        even = tokens % self._world.size == 0
        found = self._functions.get(None if even else tokens)
        if found is None:
            from .nn import _dtype

            t = _dtype(self.gate_up.dtype)
            dims = {"E": self.num_experts, **({} if even else {"T": tokens})}
            found = compile(
                f"""fn experts(x: {t}[T, H] @ shard(0), ids: i64[T, K] @ shard(0), weights: f32[T, K] @ shard(0),
                    w: {t}[E, H, 2, I] @ shard(0), v: {t}[E, I, H] @ shard(0)) -> {t}[T, H] @ shard(0) {{
                    dispatch(x, ids) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(weights)
                }}""", self._world, dims=dims, **self._options)
            rows = compile("fn together(y: bf16[T, H] @ shard(0)) { gather(y) }", self._world, dims=None if even else {"T": tokens},
                           **self._options)
            # Whatever the bits stand for.
            together = lambda y: y if self._world.size == 1 else rows(ready(y).view(torch.bfloat16)).view(y.dtype)
            self._functions[None if even else tokens] = found = found, together
        return found

    def forward(self, hidden_states, top_k_index, top_k_weights):
        x, ids, weights = hidden_states, top_k_index, top_k_weights
        world = self._world
        if x.shape[0] < world.size:
            raise ArgumentError(f"{x.shape[0]} tokens, and {world.size} ranks: each needs one")
        layer, together = self._function(x.shape[0])
        x, weights = (_Part.apply(t, world, together) for t in (x, weights.float()))
        y = layer(x, ready(_mine(ids, world, 0)), weights, self.gate_up, self.down)
        return _Together.apply(y, world, together)


def replace(model, world, plan="tp", **options):
    """Puts mk's layers in the places of a model's of ``transformers`` (Llama, Qwen3, and others of their form; Mixtral and Qwen3-MoE for experts),
    with its weights, and says what it replaced. Every rank gives the same model and, afterwards, the same inputs.

    ``plan="tp"``: projections of attention, and gated MLPs, of which each rank has its part. ``"ep"``: experts, of which each rank has its part.
    ``"tp+ep"``: both. ``load_state_dict`` takes checkpoints of the whole model, and this rank's. ``options`` are those of
    ``mk.compile``.

    Raises ArgumentError for parts that are not equal, UnsupportedError for a model in which there is nothing to replace.
    """
    check_world(world)
    if plan not in PLANS:
        raise ArgumentError(f"plan is {plan!r}, and must be one of {', '.join(map(repr, PLANS))}")
    if len(world.ranks) != 1:
        raise UnsupportedError("this process has several ranks, and a model has one\n  help: a process for each rank, under torchrun")
    rows, column, row, gated = [], *_layers()
    # All is checked before anything is changed.
    jobs = []
    for name, module in list(model.named_modules()):
        has = lambda *names: all(isinstance(getattr(module, n, None), torch.nn.Linear) for n in names)
        experts = all(isinstance(getattr(module, n, None), torch.nn.Parameter) for n in ("gate_up_proj", "down_proj")) and hasattr(module, "num_experts")
        if "tp" in plan and has("q_proj", "k_proj", "v_proj", "o_proj"):
            head = getattr(module, "head_dim", None)
            for part in ("q_proj", "k_proj"):
                heads = getattr(module, part).out_features // head if head else 0
                if not head or heads % world.size:
                    raise ArgumentError(f"{name}.{part} has {heads} heads, and {world.size} ranks have no equal parts of them")
            jobs.append((name, module, "attention"))
        elif "tp" in plan and has("gate_proj", "up_proj", "down_proj"):
            if module.gate_proj.out_features % world.size:
                raise ArgumentError(f"{name} has {module.gate_proj.out_features} columns, and {world.size} ranks have no equal parts of them")
            jobs.append((name, module, "mlp"))
        elif experts:
            jobs.append((name, module, "experts"))
        elif isinstance(module, (torch.nn.Linear, torch.nn.Embedding)) and name.rpartition(".")[2] not in _PROJECTIONS:
            rows.append((name, type(module).__name__, None, _WHOLE))
    for name, module, kind in jobs:
        if kind == "attention":
            for part, layer in (("q_proj", column), ("k_proj", column), ("v_proj", column), ("o_proj", row)):
                new = _linear(layer, getattr(module, part), world, options)
                setattr(module, part, new)
                rows.append((f"{name}.{part}", "Linear", type(new).__name__, ""))
        elif kind == "mlp":
            _mlp(name, model, module, world, options, rows, column, row, gated)
        elif "ep" not in plan:
            rows.append((name, type(module).__name__, None, "plan=\"ep\" takes experts"))
        elif not _is_silu(module):
            rows.append((name, type(module).__name__, None, "its activation is not silu"))
        else:
            _put(model, name, Experts(module, world, options))
            rows.append((name, type(module).__name__, "Experts", ""))
    if not any(became for _, _, became, _ in rows):
        raise UnsupportedError(f"{type(model).__name__} has nothing that plan={plan!r} replaces: attention with q_proj, k_proj, v_proj and o_proj, MLPs "
                               "with gate_proj, up_proj and down_proj, experts with gate_up_proj and down_proj\n" + str(Replaced(rows)))
    return Replaced(rows)


_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def _put(model, name, new):
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)


def _is_silu(module):
    act = getattr(module, "act_fn", None)
    return isinstance(act, torch.nn.SiLU) or getattr(act, "__name__", type(act).__name__) in ("silu", "SiLU", "SiLUActivation")


def _mlp(name, model, module, world, options, rows, column, row, gated):
    parts = (module.gate_proj, module.up_proj, module.down_proj)
    if _is_silu(module) and all(p.bias is None for p in parts):
        weight = module.gate_proj.weight
        new = gated(module.gate_proj.in_features, module.gate_proj.out_features, world, sequence_parallel=False, device=weight.device,
                    dtype=weight.dtype, **options)
        new._world = world
        if weight.device.type != "meta":
            new.load(*(_mine(p.weight, world, dim) for p, dim in zip(parts, (0, 0, 1))))
        _put(model, name, new)
        rows.append((name, type(module).__name__, "GatedMLP", ""))
        return
    for part, layer in (("gate_proj", column), ("up_proj", column), ("down_proj", row)):
        setattr(module, part, _linear(layer, getattr(module, part), world, options))
        rows.append((f"{name}.{part}", "Linear", layer.__name__, "not silu, or with biases"))
