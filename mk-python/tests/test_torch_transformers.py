"""``mk.nn.replace`` in tiny models of ``transformers``, over gloo: losses as those of the unmodified model. Needs torch and transformers."""

import copy
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

HAS_TRANSFORMERS = HAS_TORCH and importlib.util.find_spec("transformers") is not None
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 128,
         "max_position_embeddings": 64, "tie_word_embeddings": False}
STEPS = 8


def make(kind, **more):
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **more})
    return getattr(transformers, f"{kind}ForCausalLM")(config).bfloat16()


def losses(model):
    torch.manual_seed(1)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.05), []
    ids = torch.randint(0, 128, (2, 16))
    for _ in range(STEPS):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def gradients(case, model, whole, ranks, world):
    """Those of layers that mk has, and of layers before, between and behind them."""
    ids = torch.randint(0, 128, (2, 16), generator=torch.Generator().manual_seed(3))
    for m in (model, whole):
        m.zero_grad()
        m(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    mine = lambda t, dim: t.chunk(ranks, dim)[world.rank]
    names = {"model.embed_tokens.weight": None, "model.layers.1.input_layernorm.weight": None, "lm_head.weight": None,
             "model.layers.0.self_attn.k_proj.weight": 0, "model.layers.1.self_attn.o_proj.weight": 1}
    for name, dim in names.items():
        got, want = model.get_parameter(name).grad.double(), whole.get_parameter(name).grad
        want = (want if dim is None else mine(want, dim)).double()
        case.assertLess(((got - want).norm() / want.norm()).item(), 0.05, name)


def trains(case, ranks, world):
    import mk.nn

    for kind, more in (("Llama", {}), ("Llama", {"hidden_act": "gelu", "attention_bias": True}), ("Qwen3", {"head_dim": 16})):
        model = make(kind, **more)
        whole = copy.deepcopy(model)
        done = mk.nn.replace(model, world, plan="tp")
        became = [b for _, _, b, _ in done.rows if b]
        per_layer = 5 if not more.get("hidden_act") else 7
        case.assertEqual(len(became), 2 * per_layer, str(done))
        case.assertIn("lm_head", str(done))
        # Copies hold the same world and functions.
        case.assertIs(copy.deepcopy(model).model.layers[1].self_attn.o_proj._world, world)
        # A checkpoint of the whole model, into the replaced one.
        model.load_state_dict(whole.state_dict())
        gradients(case, model, whole, ranks, world)
        got, want = losses(model), losses(whole)
        case.assertLess(want[-1], want[0] - 0.1)
        for a, b in zip(got, want):
            case.assertAlmostEqual(a, b, delta=0.02 * b)
        case.assertEqual(model.model.layers[0].self_attn.q_proj.weight.shape[0] * ranks, whole.model.layers[0].self_attn.q_proj.weight.shape[0])


def experts(case, ranks, world):
    import mk.nn

    for kind, more in (("Mixtral", {"num_local_experts": 7}), ("Qwen3Moe", {"num_experts": 8, "moe_intermediate_size": 48, "head_dim": 8})):
        model = make(kind, **more)
        ids = torch.randint(0, 128, (2, 15), generator=torch.Generator().manual_seed(2))
        whole = copy.deepcopy(model)
        done = mk.nn.replace(model, world, plan="ep")
        case.assertEqual([b for _, _, b, _ in done.rows if b], ["Experts"] * 2, str(done))
        # A checkpoint of the whole model, into the replaced one.
        model.load_state_dict(whole.state_dict())
        run = lambda m: m(input_ids=ids, labels=ids, use_cache=False).loss
        with torch.no_grad():
            case.assertAlmostEqual(run(model).item(), run(whole).item(), delta=0.01 * run(whole).item())
        for m in (model, whole):
            run(m).backward()
        layer, stock = model.model.layers[1].mlp, whole.model.layers[1].mlp
        each = -(-stock.experts.num_experts // ranks)
        mine = slice(world.rank * each, (world.rank + 1) * each)
        pairs = {
            "embed_tokens": (model.model.embed_tokens.weight.grad, whole.model.embed_tokens.weight.grad),
            "router": (layer.gate.weight.grad, stock.gate.weight.grad),
            "gate_up": (layer.experts.gate_up.grad, layer.experts._turned(stock.experts.gate_up_proj.grad[mine])),
            "down": (layer.experts.down.grad, stock.experts.down_proj.grad[mine].mT),
        }
        for name, (got, want) in pairs.items():
            case.assertLess(((got.double() - want.double()).norm() / want.double().norm()).item(), 0.05, f"{kind}: {name}")
        got, want = losses(model), losses(whole)
        case.assertLess(want[-1], want[0] - 0.1)
        for a, b in zip(got, want):
            case.assertAlmostEqual(a, b, delta=0.02 * b)
        # Experts stay torch's, and train, where attention alone is replaced.
        model = make(kind, **more)
        done = mk.nn.replace(model, world, plan="tp")
        case.assertIn("plan=\"ep\" takes experts", str(done))
        run(model).backward()


def refusals(case, ranks, world):
    import mk.nn

    with case.assertRaisesRegex(mk.ArgumentError, "has 3 heads, and 2 ranks have no equal parts"):
        mk.nn.replace(make("Llama", hidden_size=96, num_attention_heads=6, num_key_value_heads=3), world)
    with case.assertRaisesRegex(mk.ArgumentError, "plan is 'dp'"):
        mk.nn.replace(make("Llama"), world, plan="dp")
    with case.assertRaisesRegex(mk.UnsupportedError, "has nothing that plan='tp' replaces"):
        mk.nn.replace(torch.nn.Linear(4, 4), world)
    with case.assertRaisesRegex(mk.ArgumentError, "keep float32 copies"):
        mk.nn.replace(make("Llama").float(), world)


def on_ranks(rank, ranks, path):
    torch.set_num_threads(1)
    case, limit = unittest.TestCase(), datetime.timedelta(seconds=300)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks, timeout=limit)
    try:
        world = mk.World.reference()
        trains(case, ranks, world)
        experts(case, ranks, world)
        if ranks == 2:
            refusals(case, ranks, world)
    finally:
        dist.destroy_process_group()


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
@unittest.skipUnless(HAS_TRANSFORMERS or not HAS_TORCH, "transformers is not installed")
class Models(unittest.TestCase):
    def ranks(self, n):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(on_ranks, (n, os.path.join(folder, "store")), nprocs=n)

    def test_two_ranks(self):
        self.ranks(2)

    def test_four_ranks(self):
        self.ranks(4)


if __name__ == "__main__":
    unittest.main()
