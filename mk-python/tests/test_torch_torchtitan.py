"""torchtitan's override mechanism with mk's factories, and their layers beside its stock ones, over gloo. Needs torch and torchtitan 0.3."""

import contextlib
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

HAS_TITAN = HAS_TORCH and importlib.util.find_spec("torchtitan") is not None
NAMES = [f"mk.integrations.torchtitan.{name}" for name in ("qkv", "wo", "feed_forward")]


def config():
    from torchtitan.models.llama3 import model_registry

    return model_registry("debugmodel", tp_gemm_backend="dist_gemm")


def close(case, name, got, want, limit=1.5e-2):
    case.assertLess(((got.double() - want.double()).norm() / want.double().norm()).item(), limit, name)


def layers(case, rank, ranks, device="cpu"):
    """Each layer on its part of the parameters and of the sequence, beside the stock layer on all of both."""
    from torchtitan.distributed.spmd_types import set_current_spmd_mesh
    from torchtitan.models.common.attention import FusedQKVLinear
    from torchtitan.models.common.feed_forward import FeedForward
    from torchtitan.models.common.linear import Linear
    from mk.integrations import torchtitan as titan

    mesh = torch.distributed.device_mesh.init_device_mesh(device, (ranks,), mesh_dim_names=("tp",))
    linear = lambda i, o: Linear.Config(in_features=i, out_features=o)
    qkv = {"n_heads": 8, "n_kv_heads": 4, "wqkv": linear(64, 16 * 8), "head_dim": 8}
    ffn = {"w1": linear(64, 96), "w2": linear(96, 64), "w3": linear(64, 96)}
    pairs = [("qkv", FusedQKVLinear.Config(**qkv), titan.QKV.Config(**qkv), {"wqkv.weight": 0}, 1, 2),
             ("wo", linear(64, 64), titan.Output.Config(in_features=64, out_features=64), {"weight": 1}, 2, 1),
             ("ffn", FeedForward.Config(**ffn), titan.FeedForward.Config(**ffn), {"w1.weight": 0, "w3.weight": 0, "w2.weight": 1}, 1, 1)]
    for name, stock, ours, cuts, into, out in pairs:
        torch.manual_seed(0)
        whole, mine = stock.build().bfloat16(), ours.build().bfloat16()
        with torch.no_grad():
            for p in whole.parameters():
                p.normal_(0, 0.1)
        case.assertEqual(set(dict(whole.named_parameters())), set(dict(mine.named_parameters())))
        for key, dim in cuts.items():
            module, _, last = key.rpartition(".")
            part = whole.get_parameter(key).detach().chunk(ranks, dim)[rank].clone()
            setattr(mine.get_submodule(module), last, torch.nn.Parameter(part))
        x = torch.randn(2, 8 * ranks, 64).bfloat16().requires_grad_()
        x_mine = x.detach().chunk(ranks, into)[rank].contiguous().requires_grad_()
        with contextlib.ExitStack() as stack:
            context = set_current_spmd_mesh(mesh)
            if context is not None:
                stack.enter_context(context)
            got = mine(x_mine)
            both = lambda y: list(y) if isinstance(y, tuple) else [y]
            torch.stack([y.float().square().sum() for y in both(got)]).sum().backward()
        want = whole(x)
        torch.stack([y.float().square().sum() for y in both(want)]).sum().backward()
        for i, (a, b) in enumerate(zip(both(got), both(want))):
            case.assertEqual(a.shape, b.chunk(ranks, out)[rank].shape)
            close(case, f"{name} {i}", a, b.chunk(ranks, out)[rank])
        close(case, f"{name} x", x_mine.grad, x.grad.chunk(ranks, into)[rank])
        for key, dim in cuts.items():
            close(case, f"{name} {key}", mine.get_parameter(key).grad, whole.get_parameter(key).grad.chunk(ranks, dim)[rank])


def experts(case, rank, ranks, device="cpu"):
    """The experts of a layer on this rank's part of them and its own tokens, beside the stock layer on all experts and all ranks' tokens."""
    from torchtitan.models.common.moe import GroupedExperts, RoutedExperts
    from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher, LocalTokenDispatcher
    from mk.integrations import torchtitan as titan

    n, top_k = 8, 3
    inner = lambda: GroupedExperts.Config(dim=64, hidden_dim=48, num_experts=n)
    stock = RoutedExperts.Config(inner_experts=inner(), token_dispatcher=LocalTokenDispatcher.Config(num_experts=n, top_k=top_k)).build()
    ours = titan.experts(RoutedExperts.Config(inner_experts=inner(), token_dispatcher=AllToAllTokenDispatcher.Config(num_experts=n, top_k=top_k)))
    mine, mesh = ours.build(), torch.distributed.device_mesh.init_device_mesh(device, (ranks,), mesh_dim_names=("ep",))
    mine.token_dispatcher.wire_meshes(ep_mesh=mesh)
    torch.manual_seed(0)
    stock, mine, names = stock.to(device).bfloat16(), mine.to(device).bfloat16(), ("w1_EFD", "w2_EDF", "w3_EFD")
    case.assertEqual([k for k, _ in mine.named_parameters()], [f"inner_experts.{name}" for name in names])
    for name in names:
        whole = getattr(stock.inner_experts, name)
        torch.nn.init.normal_(whole, 0, 0.1)
        setattr(mine.inner_experts, name, torch.nn.Parameter(whole.detach().chunk(ranks)[rank].clone()))
    tokens = (ranks, 2, 5)
    x = torch.randn(*tokens, 64).bfloat16().to(device).requires_grad_()
    scores, ids = torch.rand(*tokens, n).topk(top_k, -1, sorted=False)
    scores, ids = scores.to(device).requires_grad_(), ids.to(device)
    counts = lambda i: torch.bincount(i.flatten(), minlength=n)
    x_mine, s_mine = (t.detach()[rank].clone().requires_grad_() for t in (x, scores))
    got = mine(x_mine, s_mine, ids[rank], counts(ids[rank]))
    got.float().square().sum().backward()
    flat = lambda t: t.flatten(0, 1)
    want = stock(flat(x), flat(scores), flat(ids), counts(ids))
    want.float().square().sum().backward()
    close(case, "experts", got, want.unflatten(0, tokens[:2])[rank])
    close(case, "experts' x", x_mine.grad, x.grad[rank])
    close(case, "experts' scores", s_mine.grad, scores.grad[rank])
    for name in names:
        close(case, name, getattr(mine.inner_experts, name).grad, getattr(stock.inner_experts, name).grad.chunk(ranks)[rank])
    # Without expert parallelism the stock layer runs.
    case.assertIsNone(ours.build().token_dispatcher.ep_mesh)


def on_ranks(rank, ranks, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=300))
    try:
        layers(unittest.TestCase(), rank, ranks)
        experts(unittest.TestCase(), rank, ranks)
    finally:
        dist.destroy_process_group()


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
@unittest.skipUnless(HAS_TITAN or not HAS_TORCH, "torchtitan is not installed")
class Titan(unittest.TestCase):
    def test_overrides_replace_what_dist_gemm_selects(self):
        from torchtitan.config.override import OverrideConfig, apply_overrides, parse_cli_imports

        import mk.integrations.torchtitan as titan

        model = config().model
        lines = apply_overrides(OverrideConfig(imports=parse_cli_imports([",".join(NAMES)])), model)
        self.assertEqual(len(lines), 3 * len(model.layers))
        for layer in model.layers:
            self.assertIs(type(layer.attention.qkv_linear), titan.QKV.Config)
            self.assertIs(type(layer.attention.wo), titan.Output.Config)
            self.assertIs(type(layer.feed_forward), titan.FeedForward.Config)
        # A layer that is built has the stock layer's parameters.
        built = model.layers[0].feed_forward.build()
        self.assertEqual(sorted(dict(built.named_parameters())), ["w1.weight", "w2.weight", "w3.weight"])

    def test_experts_of_a_model(self):
        from torchtitan.config.override import OverrideConfig, apply_overrides
        from torchtitan.models.common.moe import GroupedExperts, RoutedExperts
        from torchtitan.models.common.token_dispatcher import DeepEPTokenDispatcher
        from torchtitan.models.deepseek_v3 import model_registry

        from mk.integrations import torchtitan as titan

        model = model_registry("debugmodel").model
        lines = apply_overrides(OverrideConfig(imports=["mk.integrations.torchtitan.experts"]), model)
        layers = [layer.moe.routed_experts for layer in model.layers if layer.moe is not None]
        self.assertEqual(len(lines), len(layers))
        self.assertTrue(layers)
        for layer in layers:
            self.assertIs(type(layer), titan.Experts.Config)
            self.assertIs(type(layer.inner_experts), titan.Inner.Config)
        other = DeepEPTokenDispatcher.Config(num_experts=8, top_k=2)
        config = RoutedExperts.Config(inner_experts=GroupedExperts.Config(dim=64, hidden_dim=48, num_experts=8), token_dispatcher=other)
        with self.assertRaisesRegex(mk.UnsupportedError, "DeepEPTokenDispatcher"):
            titan.experts(config)

    def test_two_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(on_ranks, (2, os.path.join(folder, "store")), nprocs=2)

    def test_four_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(on_ranks, (4, os.path.join(folder, "store")), nprocs=4)


if __name__ == "__main__":
    unittest.main()
