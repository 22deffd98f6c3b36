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


def experts(case, rank, ranks, shared=None, recompute=False):
    """Megatron's layer of experts, each rank with its own tokens and experts, beside the stock layer of all experts."""
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec
    from mk.integrations import megatron

    n, device = 8, torch.get_default_device()
    class Router(TopKRouter):
        """Megatron's moves its weights to a GPU."""

        def gating(self, input):
            return torch.nn.functional.linear(input.float(), self.weight.float())

    layer = get_moe_module_spec(use_te=False, num_experts=n)
    layer.submodules.router = Router
    whole = ModuleSpec(module=object, submodules=TransformerLayerSubmodules(mlp=layer))
    spec = megatron.layer_spec(whole).submodules.mlp
    case.assertIs(spec.module, megatron.MoELayer)
    more = {"num_moe_experts": n, "moe_router_topk": 3, "moe_ffn_hidden_size": 48, "moe_token_dispatcher_type": "allgather",
            "moe_router_load_balancing_type": "none", "moe_shared_expert_intermediate_size": shared, "sequence_parallel": False}
    if recompute:
        more |= {"recompute_granularity": "selective", "recompute_modules": ["moe"]}
    make = lambda spec, ep: spec.module(config(1, expert_model_parallel_size=ep, **more), spec.submodules, pg_collection=groups(ep)).to(device)
    alone = dist.new_subgroups_by_enumeration([[r] for r in range(ranks)])[0]

    def groups(ep):
        found = ProcessGroupCollection()
        found.tp = found.expt_tp = found.tp_cp = found.tp_dp_cp = found.cp = found.dp = found.expt_dp = found.tp_ep = alone
        found.ep = found.tp_ep = dist.group.WORLD if ep > 1 else alone
        return found

    mine, stock = make(spec, ranks), make(whole.submodules.mlp, 1)
    torch.manual_seed(0)
    with torch.no_grad():
        for p in stock.parameters():
            p.normal_(0, 0.1)
        own = {f"experts.local_experts.{i}.": f"experts.local_experts.{rank * n // ranks + i}." for i in range(n // ranks)}
        pairs = {}
        for name, p in mine.named_parameters():
            there = next((name.replace(a, b) for a, b in own.items() if name.startswith(a)), name)
            pairs[name] = stock.get_parameter(there)
            p.copy_(pairs[name])
    x = torch.randn(ranks, 5, 2, 64).bfloat16()
    x_mine = x[rank].clone().requires_grad_()
    got, bias = mine(x_mine)
    case.assertIsNone(bias)
    got.float().square().sum().backward()
    x.requires_grad_()
    want = torch.stack([stock(part)[0] for part in x])
    want.float().square().sum().backward()
    close(case, "experts", got, want[rank])
    close(case, "experts' x", x_mine.grad, x.grad[rank])
    for name, there in pairs.items():
        grad = mine.get_parameter(name).grad.clone()
        if not name.startswith("experts."):
            dist.all_reduce(grad)
        close(case, name, grad, there.grad)


def refusals(case, ranks):
    from megatron.core.transformer.moe.experts import SequentialMLP
    from mk.integrations import megatron

    make = lambda kind, more=None, **given: kind(64, 64, config=config(ranks, **(more or {})), init_method=torch.nn.init.zeros_, **given)
    row = {"bias": False, "input_is_parallel": True, "skip_bias_add": True}
    spec = lambda kind: type("Submodules", (), {"experts": type("Spec", (), {"module": kind})})
    moe = lambda kind=SequentialMLP, **more: megatron.MoELayer(config(1, num_moe_experts=8, sequence_parallel=False, **more), spec(kind))
    for call, words in [
        (lambda: moe(torch.nn.Linear), "does not take experts: the spec's are Linear"),
        (lambda: moe(add_bias_linear=True), "does not take add_bias_linear"),
        (lambda: moe(gated_linear_unit=False), "experts are gated by silu"),
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
        # Megatron's checkpoints want a GPU: gpu_adoption.py.
        for shared in (None, 32):
            experts(unittest.TestCase(), rank, ranks, shared)
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
