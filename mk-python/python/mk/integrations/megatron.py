"""Megatron-Core 0.16: its column- and row-parallel linear layers, whose collectives mk folds into the products, and its layer of experts.

    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    spec = mk.integrations.megatron.layer_spec(get_gpt_layer_local_spec())

Parameters, their names, attributes and checkpoints are those of the stock layers, whose classes these derive from. A config that cannot be served is
an UnsupportedError when the layer is made.
"""

from __future__ import annotations

import copy

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear as StockColumn
from megatron.core.tensor_parallel.layers import RowParallelLinear as StockRow
from megatron.core.tensor_parallel.random import checkpoint
from megatron.core.transformer.moe.experts import GroupedMLP, SequentialMLP
from megatron.core.transformer.moe.moe_layer import MoELayer as StockMoE
from megatron.core.transformer.spec_utils import ModuleSpec

from .._errors import UnsupportedError
from .._function import compile
from ..nn import _DTYPES, _options
from ._worlds_of import world_of

__all__ = ["ColumnParallelLinear", "MoELayer", "RowParallelLinear", "layer_spec"]


def _refuse(layer, config, **more):
    """What these layers do not do: never done in another way quietly."""
    wrong = {
        "params_dtype": config.params_dtype not in _DTYPES and "products take bfloat16 or float16",
        "gradient_accumulation_fusion": config.gradient_accumulation_fusion and "gradients are added to main_grad by the hooks of Megatron's DDP: set it to False",
        "fp8": getattr(config, "fp8", None) and "no products of fp8 yet",
        "defer_embedding_wgrad_compute": getattr(config, "defer_embedding_wgrad_compute", False) and "not deferred here",
        "cpu_offloading": getattr(config, "cpu_offloading", False) and "activations are not offloaded",
        **more,
    }
    for name, why in wrong.items():
        if why:
            raise UnsupportedError(f"{layer} of mk does not take {name}: {why}\n  help: keep the stock layer there, or change the config")


class _Parallel:
    def _compiled(self, device, text):
        """The pipeline of this layer, on this device."""
        world = world_of(self.tp_group, device)
        made = self.__dict__.setdefault("_functions", {})
        if device not in made:
            dtype = _DTYPES[self.config.params_dtype]
            made[device] = compile(text.replace("TYPE", dtype), world, **_options(world, None, {}))
        return made[device]


class ColumnParallelLinear(_Parallel, StockColumn):
    """``gather(x) -> gemm(w.t)`` with sequence parallelism, ``gemm(x, w.t)`` without."""

    def __init__(self, input_size, output_size, *, config, gather_output=False, is_expert=False, skip_weight_param_allocation=False,
                 disable_grad_reduce=False, **more):
        _refuse("ColumnParallelLinear", config, gather_output=gather_output and "it returns this rank's columns",
                is_expert=is_expert and "experts are not served",
                skip_weight_param_allocation=skip_weight_param_allocation and "it has a weight of its own",
                disable_grad_reduce=disable_grad_reduce and "the gradient of its input is reduced in the product that makes it")
        super().__init__(input_size, output_size, config=config, gather_output=gather_output, is_expert=is_expert,
                         skip_weight_param_allocation=skip_weight_param_allocation, disable_grad_reduce=disable_grad_reduce, **more)

    def forward(self, input_, weight=None, runtime_gather_output=None):
        if weight is not None or runtime_gather_output:
            raise UnsupportedError("ColumnParallelLinear of mk takes no weight and gathers no output\n  help: keep the stock layer there")
        place, head = ("shard(0)", "gather(x) -> gemm(w.t)") if self.sequence_parallel else ("replicate", "gemm(x, w.t)")
        adds = self.bias is not None and not self.skip_bias_add
        c, stage = (", c: TYPE[N] @ shard(0)", " -> bias(c)") if adds else ("", "")
        function = self._compiled(input_.device, f"fn column(x: TYPE[M, K] @ {place}, w: TYPE[N, K] @ shard(0){c}) {{ {head}{stage} }}")
        y = function(input_.contiguous(), self.weight, *([self.bias] if adds else []))
        return y, self.bias if self.skip_bias_add else None


class RowParallelLinear(_Parallel, StockRow):
    """``gemm(x, w.t) -> reduce_scatter`` with sequence parallelism, ``all_reduce`` without. A bias is added afterwards, as by the stock layer."""

    def __init__(self, input_size, output_size, *, config, input_is_parallel, is_expert=False, **more):
        _refuse("RowParallelLinear", config, input_is_parallel=not input_is_parallel and "it takes this rank's columns: set it to True",
                is_expert=is_expert and "experts are not served")
        super().__init__(input_size, output_size, config=config, input_is_parallel=input_is_parallel, is_expert=is_expert, **more)

    def forward(self, input_):
        reduce = "reduce_scatter" if self.sequence_parallel else "all_reduce"
        function = self._compiled(input_.device, f"fn row(x: TYPE[M, K] @ shard(1), w: TYPE[N, K] @ shard(1)) {{ gemm(x, w.t) -> {reduce} }}")
        y = function(input_.contiguous(), self.weight)
        if self.skip_bias_add:
            return y, self.bias
        return (y if self.bias is None else y + self.bias), None


_EXPERTS = """fn moe(x: TYPE[T, H] @ shard(0), ids: i64[T, K] @ shard(0), probs: f32[T, K] @ shard(0),
    w: TYPE[E, H, 2, F] @ shard(0), v: TYPE[E, F, H] @ shard(0)) {
    dispatch(x, ids) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(probs)
}"""


class MoELayer(_Parallel, StockMoE):
    """``dispatch -> grouped_gemm -> swiglu -> grouped_gemm -> combine`` in one kernel, over the ranks of expert parallelism.

    Router, shared experts and the parameters of ``SequentialMLP`` or ``GroupedMLP`` are Megatron's; those of ``SequentialMLP`` are copied to mk's
    layout at each call. Of one expert-parallel rank the stock layer runs.
    """

    def __init__(self, config, submodules=None, **more):
        gated = config.gated_linear_unit and config.activation_func is torch.nn.functional.silu
        latent, capturing = getattr(config, "moe_latent_size", None), getattr(config, "cuda_graph_impl", "none") == "local"
        kind = getattr(submodules.experts, "module", None)
        _refuse("MoELayer", config, activation_func=not gated and "experts are gated by silu", add_bias_linear=config.add_bias_linear and "no biases",
                moe_latent_size=latent and "no latent projections", cuda_graph_impl=capturing and "parts of it are not captured",
                moe_apply_probs_on_input=config.moe_apply_probs_on_input and "results are weighted, and not tokens",
                moe_shared_expert_overlap=config.moe_shared_expert_overlap and "shared experts run beside no dispatcher: set it to False",
                expert_tensor_parallel_size=config.expert_tensor_parallel_size > 1 and "experts are whole on their ranks: set it to 1",
                experts=kind not in (SequentialMLP, GroupedMLP) and f"the spec's are {getattr(kind, '__name__', kind)}: use SequentialMLP or GroupedMLP")
        super().__init__(config, submodules, **more)
        self.tp_group = self.ep_group  # whose world `_compiled` takes

    def _weights(self):
        if isinstance(self.experts, GroupedMLP):
            own = self.num_local_experts, self.config.hidden_size
            return self.experts.weight1.view(*own, 2, -1), self.experts.weight2.view(own[0], -1, own[1])
        one = lambda name: torch.stack([getattr(e, name).weight for e in self.experts.local_experts])
        up = one("linear_fc1")
        return up.unflatten(1, (2, -1)).permute(0, 3, 1, 2).contiguous(), one("linear_fc2").mT.contiguous()

    def forward(self, hidden_states, intermediate_tensors=None, padding_mask=None):
        if self.ep_group.size() == 1:
            return super().forward(hidden_states, intermediate_tensors, padding_mask)
        if intermediate_tensors is not None:
            raise UnsupportedError("MoELayer of mk is one kernel, and goes on from no part of it\n  help: keep the stock layer there")
        padding_mask = None if padding_mask is None else padding_mask.transpose(0, 1).bool()

        def run(hidden, mask):
            shared = self.shared_experts_compute(hidden)
            probs, routed = self.route(hidden, mask)
            found, ids = routed.to(torch.int8).topk(self.config.moe_router_topk, -1)
            # Tokens that a capacity dropped have fewer experts.
            ids = torch.where(found > 0, ids, -1)
            weights = probs.gather(1, ids.clamp(min=0)).float()
            function = self._compiled(hidden.device, _EXPERTS)
            y = function(hidden.reshape(-1, hidden.shape[-1]), ids, weights, *self._weights()).view(hidden.shape)
            return y if shared is None else y + shared

        if self.moe_layer_recompute:
            return checkpoint(run, False, hidden_states, padding_mask), None
        return run(hidden_states, padding_mask), None


_OURS = {StockColumn: ColumnParallelLinear, StockRow: RowParallelLinear, StockMoE: MoELayer}


def layer_spec(spec):
    """A copy of a layer's ModuleSpec with these layers in the places of Megatron's own column- and row-parallel ones, and of experts.

    Raises UnsupportedError where there is none: specs of Transformer Engine have layers of its own.
    """
    spec, replaced = copy.deepcopy(spec), []

    def visit(item):
        for name, value in list(vars(item).items()):
            if value in _OURS if isinstance(value, type) else False:
                setattr(item, name, _OURS[value])
                replaced.append(name)
            elif isinstance(value, ModuleSpec):
                if isinstance(value.module, type) and value.module in _OURS:
                    value.module = _OURS[value.module]
                    replaced.append(name)
                # Experts keep their parameters: the layer around them computes with these.
                if value.submodules is not None and value.module not in (SequentialMLP, GroupedMLP):
                    visit(value.submodules)
    visit(spec.submodules)
    if not replaced:
        raise UnsupportedError("the spec has no ColumnParallelLinear or RowParallelLinear of megatron.core.tensor_parallel\n  help: start from "
                               "get_gpt_layer_local_spec()")
    return spec
