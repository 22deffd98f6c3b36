"""Megatron-Core 0.16: its column- and row-parallel linear layers, whose collectives mk folds into the products.

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
from megatron.core.transformer.spec_utils import ModuleSpec

from .._errors import UnsupportedError
from .._function import compile
from ..nn import _DTYPES, _options
from ._worlds_of import world_of

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "layer_spec"]


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


_OURS = {StockColumn: ColumnParallelLinear, StockRow: RowParallelLinear}


def layer_spec(spec):
    """A copy of a layer's ModuleSpec with these layers in the places of Megatron's own column- and row-parallel ones.

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
                if value.submodules is not None:
                    visit(value.submodules)
    visit(spec.submodules)
    if not replaced:
        raise UnsupportedError("the spec has no ColumnParallelLinear or RowParallelLinear of megatron.core.tensor_parallel\n  help: start from "
                               "get_gpt_layer_local_spec()")
    return spec
