"""torchtitan 0.3: its layers that fold tensor-parallel collectives into products, and its experts, by mk. Parameters, their layouts and
checkpoints stay.

    torchtitan_train --module llama3 --config llama3_debugmodel_dist_gemm --override.imports \\
        mk.integrations.torchtitan.qkv,mk.integrations.torchtitan.wo,mk.integrations.torchtitan.feed_forward

These take what ``tp_gemm_backend="dist_gemm"`` selects, so that torchtitan has set the shardings of such layers;
``mk.integrations.torchtitan.experts`` takes the experts of models with the standard token dispatcher.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torchtitan.config.override import derive, override
from torch.distributed.tensor import DTensor
from torchtitan.distributed.spmd_types import current_spmd_mesh, maybe_set_sparse_mesh
from torchtitan.models.common.dist_gemm import AllGatherFusedFeedForward, AllGatherFusedQKVLinear, RowParallelLinear
from torchtitan.models.common.moe import GroupedExperts, RoutedExperts
from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher, LocalTokenDispatcher

from .._errors import UnsupportedError
from .._function import compile
from ..nn import _dtype, _options
from ._worlds_of import world_of

__all__ = ["experts", "feed_forward", "qkv", "wo"]
_compiled: dict = {}


def _tp_group():
    """The group of tensor parallelism in which this is called, or None where there is none of several ranks."""
    mesh = current_spmd_mesh()
    if mesh is None or "tp" not in (mesh.mesh_dim_names or ()):
        return None
    group = mesh.get_group("tp")
    return group if group.size() > 1 else None


def _function(group, x, text, **parts):
    """The pipeline for tensors like ``x``, compiled once for each group; ``TYPE`` in the text is their dtype."""
    world = world_of(group, x.device)
    key = id(world), text, x.dtype
    if key not in _compiled:
        _compiled[key] = compile(text.replace("TYPE", _dtype(x.dtype)), world, **_options(world, None, {}))
    return _compiled[key]


def _sequence_first(x):
    """``[B, S, H]`` as ``[S, B, H]``: ranks share the sequence, and their rows follow each other."""
    return x.transpose(0, 1).contiguous()


def _batch_first(x):
    return x.transpose(0, 1).contiguous()


_COLUMN = "fn qkv(x: TYPE[M, K] @ shard(0), w: TYPE[N, K] @ shard(0)) { gather(x) -> gemm(w.t) }"
_COLUMN_BIAS = "fn qkv(x: TYPE[M, K] @ shard(0), w: TYPE[N, K] @ shard(0), c: TYPE[N] @ shard(0)) { gather(x) -> gemm(w.t) -> bias(c) }"
_ROW = "fn wo(x: TYPE[M, K] @ shard(1), w: TYPE[N, K] @ shard(1)) { gemm(x, w.t) -> reduce_scatter }"
_UP = """fn up(x: TYPE[M, K] @ shard(0), w1: TYPE[F, K] @ shard(0), w3: TYPE[F, K] @ shard(0)) {
    let g = gather(x);
    (g -> gemm(w1.t), g -> gemm(w3.t))
}"""


class QKV(AllGatherFusedQKVLinear):
    """``gather(x) -> gemm(wqkv.t)``, split as the stock layer does."""

    @dataclass(kw_only=True, slots=True)
    class Config(AllGatherFusedQKVLinear.Config):
        """The same fields; it builds this layer."""

    def forward(self, x):
        group = _tp_group()
        if group is None:
            return super().forward(x)
        weight, bias = self.wqkv.weight, self.wqkv.bias
        operands = (weight,) if bias is None else (weight, bias)
        y = _function(group, x, _COLUMN if bias is None else _COLUMN_BIAS)(_sequence_first(x), *operands)
        heads = _batch_first(y).unflatten(-1, (-1, self.r_dim, self.head_dim))
        return tuple(t.flatten(2, 3).contiguous() for t in heads.split([self.heads_per_kv, 1, 1], -2))


class Output(RowParallelLinear):
    """``gemm(x, w.t) -> reduce_scatter``."""

    @dataclass(kw_only=True, slots=True)
    class Config(RowParallelLinear.Config):
        """The same fields; it builds this layer."""

        def __post_init__(self):
            if self.bias:
                raise UnsupportedError("a bias of a row-parallel layer is one that every rank would add\n  help: bias=False, or the stock layer")

    def forward(self, input):
        group = _tp_group()
        if group is None:
            return super().forward(input)
        return _batch_first(_function(group, input, _ROW)(_sequence_first(input), self.weight))


class FeedForward(AllGatherFusedFeedForward):
    """One gather for both products, and ``gemm(h, w2.t) -> reduce_scatter``; parameters stay ``w1``, ``w2`` and ``w3``."""

    @dataclass(kw_only=True, slots=True)
    class Config(AllGatherFusedFeedForward.Config):
        """The same fields; it builds this layer."""

    def forward(self, x):
        group = _tp_group()
        if group is None:
            return super().forward(x)
        gate, up = _function(group, x, _UP)(_sequence_first(x), self.w1.weight, self.w3.weight)
        h = torch.nn.functional.silu(gate) * up
        return _batch_first(_function(group, h, _ROW)(h, self.w2.weight))


@override(target=AllGatherFusedQKVLinear.Config, exact=True, description="gather -> gemm by mk")
def qkv(cfg):
    return derive(cfg, QKV.Config)


@override(target=RowParallelLinear.Config, exact=True, description="gemm -> reduce_scatter by mk")
def wo(cfg):
    return derive(cfg, Output.Config)


@override(target=AllGatherFusedFeedForward.Config, exact=True, description="both collectives of a feed-forward layer by mk")
def feed_forward(cfg):
    return derive(cfg, FeedForward.Config)


_EXPERTS = """fn experts(x: TYPE[T, D] @ shard(0), ids: i64[T, K] @ shard(0), scores: f32[T, K] @ shard(0),
    w: TYPE[E, D, 2, F] @ shard(0), v: TYPE[E, F, D] @ shard(0)) {
    dispatch(x, ids) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(scores)
}"""


class Inner(GroupedExperts):
    """The stock layer's parameters; of several ranks the whole way of the tokens, there and back, is this module's: a wrapper that shards
    parameters makes them whole around it, as around the stock layer."""

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        """The same fields; it builds this layer."""

    def forward(self, x, counts, way=None):
        if way is None:
            return super().forward(x, counts)
        group, scores, ids = way
        w1, w2, w3 = (w.to_local() if isinstance(w, DTensor) else w for w in (self.w1_EFD, self.w2_EDF, self.w3_EFD))
        # Gates beside ups, and K before N: parameters stay as they are, so this is copied at each call.
        w = torch.stack((w1, w3), 1).permute(0, 3, 1, 2).bfloat16().contiguous()
        v = w2.mT.bfloat16().contiguous()
        y = _function(group, x.bfloat16(), _EXPERTS)(x.bfloat16().contiguous(), ids.contiguous(), scores.float().contiguous(), w, v)
        return y.type_as(x)


class Experts(RoutedExperts):
    """``dispatch -> grouped_gemm -> swiglu -> grouped_gemm -> combine`` in one kernel, over the ranks of expert parallelism."""

    @dataclass(kw_only=True, slots=True)
    class Config(RoutedExperts.Config):
        """The same fields; it builds this layer."""

        def __post_init__(self):
            kinds = ((self.inner_experts, (GroupedExperts.Config, Inner.Config)),
                     (self.token_dispatcher, (LocalTokenDispatcher.Config, AllToAllTokenDispatcher.Config)))
            for part, known in kinds:
                if type(part) not in known:
                    raise UnsupportedError(f"experts with a {type(part).__qualname__} are none of those that mk has\n  help: the standard token "
                                           "dispatcher and GroupedExperts, or leave mk.integrations.torchtitan.experts out")
            if type(self.inner_experts) is GroupedExperts.Config:
                self.inner_experts = derive(self.inner_experts, Inner.Config)

    def forward(self, x_BLD, topk_scores_BLK, topk_expert_ids_BLK, num_local_tokens_per_expert_E):
        mesh = getattr(self.token_dispatcher, "ep_mesh", None)
        if mesh is None or mesh.size() == 1:
            return super().forward(x_BLD, topk_scores_BLK, topk_expert_ids_BLK, num_local_tokens_per_expert_E)
        rows = x_BLD.shape[0] * x_BLD.shape[1]
        way = mesh.get_group(), topk_scores_BLK.reshape(rows, -1), topk_expert_ids_BLK.reshape(rows, -1)
        with maybe_set_sparse_mesh():
            y = self.inner_experts(x_BLD.reshape(rows, -1), num_local_tokens_per_expert_E, way)
        return y.view(x_BLD.shape)


@override(target=RoutedExperts.Config, description="dispatch, experts and combine by mk")
def experts(cfg):
    return derive(cfg, Experts.Config)
