"""Megatron-Core's ModuleSpec with mk's layers, over gloo, beside the same layer in plain torch. Needs torch and megatron-core."""

import datetime
import importlib.util
import os
import tempfile
import unittest

import mk

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    HAS_TORCH = hasattr(torch, "library") and hasattr(torch, "compile")
except ImportError:
    HAS_TORCH = False

HAS_MEGATRON = HAS_TORCH and importlib.util.find_spec("megatron") is not None


def config(ranks, **more):
    from megatron.core.transformer.transformer_config import TransformerConfig

    given = {"num_layers": 1, "hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4, "tensor_model_parallel_size": ranks,
             "use_cpu_initialization": True, "params_dtype": torch.bfloat16, "bf16": True, "sequence_parallel": True, "gated_linear_unit": True,
             "activation_func": torch.nn.functional.silu, "add_bias_linear": False, "bias_activation_fusion": False,
             "gradient_accumulation_fusion": False}
    return TransformerConfig(**{**given, **more})


def close(case, name, got, want, limit=1.5e-2):
    case.assertLess(((got.double() - want.double()).norm() / want.double().norm()).item(), limit, name)


def mlp(case, rank, ranks, sequence_parallel):
    """Megatron's MLP, with its own forward, on mk's layers."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.mlp import MLP
    from mk.integrations import megatron

    spec = megatron.layer_spec(get_gpt_layer_local_spec()).submodules.mlp
    layer = MLP(config(ranks, sequence_parallel=sequence_parallel), spec.submodules, ffn_hidden_size=96).to(torch.get_default_device())
    case.assertIs(type(layer.linear_fc1), megatron.ColumnParallelLinear)
    case.assertIs(type(layer.linear_fc2), megatron.RowParallelLinear)
    torch.manual_seed(0)
    gate, up, down = (torch.randn(s).bfloat16() * 0.1 for s in ((96, 64), (96, 64), (64, 96)))
    whole = [t.requires_grad_() for t in (gate, up, down)]
    mine = lambda t, dim: t.detach().chunk(ranks, dim)[rank]
    with torch.no_grad():
        layer.linear_fc1.weight.copy_(torch.cat([mine(gate, 0), mine(up, 0)]))
        layer.linear_fc2.weight.copy_(mine(down, 1))
    x = torch.randn(8 * ranks, 2, 64).bfloat16().requires_grad_()
    part = (lambda t: mine(t, 0)) if sequence_parallel else (lambda t: t.detach())
    x_mine = part(x).clone().requires_grad_()
    got, bias = layer(x_mine)
    case.assertIsNone(bias)
    got.float().square().sum().backward()
    want = torch.nn.functional.linear(torch.nn.functional.silu(x @ whole[0].t()) * (x @ whole[1].t()), whole[2])
    want.float().square().sum().backward()
    close(case, "y", got, part(want))
    close(case, "x", x_mine.grad, part(x.grad))
    close(case, "fc1", layer.linear_fc1.weight.grad, torch.cat([mine(gate.grad, 0), mine(up.grad, 0)]))
    close(case, "fc2", layer.linear_fc2.weight.grad, mine(down.grad, 1))


def refusals(case, ranks):
    from mk.integrations import megatron

    make = lambda kind, more=None, **given: kind(64, 64, config=config(ranks, **(more or {})), init_method=torch.nn.init.zeros_, **given)
    row = {"bias": False, "input_is_parallel": True, "skip_bias_add": True}
    for call, words in [
        (lambda: make(megatron.ColumnParallelLinear, gather_output=True), "does not take gather_output"),
        (lambda: make(megatron.ColumnParallelLinear, is_expert=True), "does not take is_expert"),
        (lambda: make(megatron.ColumnParallelLinear, {"gradient_accumulation_fusion": True}), "does not take gradient_accumulation_fusion"),
        (lambda: make(megatron.ColumnParallelLinear, {"params_dtype": torch.float32, "bf16": False}), "products take bfloat16"),
        (lambda: make(megatron.RowParallelLinear, **{**row, "input_is_parallel": False}), "does not take input_is_parallel"),
    ]:
        with case.assertRaisesRegex(mk.UnsupportedError, words):
            call()


def on_ranks(rank, ranks, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=300))
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(ranks)
    try:
        for sequence_parallel in (True, False):
            mlp(unittest.TestCase(), rank, ranks, sequence_parallel)
        refusals(unittest.TestCase(), ranks)
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
@unittest.skipUnless(HAS_MEGATRON or not HAS_TORCH, "megatron-core is not installed")
class Megatron(unittest.TestCase):
    def test_two_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(on_ranks, (2, os.path.join(folder, "store")), nprocs=2)

    def test_specs_without_such_layers_are_refused(self):
        from megatron.core.transformer.mlp import MLPSubmodules
        from megatron.core.transformer.spec_utils import ModuleSpec
        from mk.integrations import megatron

        with self.assertRaisesRegex(mk.UnsupportedError, "get_gpt_layer_local_spec"):
            megatron.layer_spec(ModuleSpec(module=object, submodules=MLPSubmodules()))


if __name__ == "__main__":
    unittest.main()
