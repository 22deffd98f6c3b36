"""mk in other projects, on GPUs: ``torchrun --nproc-per-node 2 mk-python/tests/gpu_adoption.py [--tokens 8192]``.

An unmodified block of Llama-3-8B's size under ``torch.compile``, with mk's pass, with async-TP, and with neither: results and gradients beside
eager's, then times, in turns. Then ``transformers`` with ``mk.nn.replace``, Megatron-Core's and torchtitan's layers, where those are installed;
a line says what is missing. The last line counts. Each case is collective; a rank that fails ends the run.
"""

import argparse
import datetime
import importlib.util
import os
import statistics
import sys
import unittest

os.environ.update({"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"})

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import mk  # noqa: E402
import mk.inductor  # noqa: E402
import mk.nn  # noqa: E402

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CASE = unittest.TestCase()
ROUNDS, STEPS = 7, 3


def say(*words):
    if RANK == 0:
        print(*words, flush=True)


def close(name, got, want, limit=1.5e-2):
    error = ((got.double() - want.double()).norm() / want.double().norm()).item()
    assert error < limit, f"rank {RANK}: {name}: relative error {error:.2e}"
    return error


def slowest(value):
    t = torch.tensor([value], device="cuda")
    dist.all_reduce(t, dist.ReduceOp.MAX)
    return t.item()


def timed(step):
    """Milliseconds of a step on the slowest rank."""
    dist.barrier()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(STEPS):
        step()
    end.record()
    end.synchronize()
    return slowest(begin.elapsed_time(end) / STEPS)


def compiled_with(name, model, world):
    """The model compiled in one way; what else it needs stays set."""
    from torch._inductor import config

    torch._dynamo.reset()
    mk.inductor.disable()
    config._micro_pipeline_tp = name == "async-TP"
    found = mk.inductor.enable(world, report=False) if name == "mk" else None
    return torch.compile(model, fullgraph=True), found


def inductor(world, tokens):
    import inductor_models as models
    from test_torch_inductor import step

    torch._inductor.config.force_disable_caches = True
    import torch.distributed._symmetric_memory as symm_mem

    symm_mem.enable_symm_mem_for_group(dist.group.WORLD.group_name)
    torch.manual_seed(RANK)
    # Not while it is compiled: Dynamo does not trace what a default device puts around methods.
    torch.set_default_device("cuda")
    model = models.Llama(dist.group.WORLD, SIZE, h=4096, f=14336, head=128)
    x = torch.randn(tokens // SIZE, 1, 4096).bfloat16().requires_grad_()
    torch.set_default_device(None)
    want = step(model, x)
    steps, table, worst = {}, None, 0.0
    for name in ("mk", "async-TP", "neither"):
        made, found = compiled_with(name, model, world)
        got = step(made, x)
        errors = [close(f"{name}: {key}", got[key], want[key], 2.5e-2) for key in want]
        if name == "mk":
            table, worst = found, max(errors)
        steps[name] = lambda made=made: step(made, x)
    mk.inductor.disable()
    steps["eager"] = lambda: step(model, x)
    for run in steps.values():
        timed(run)
    times = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, run in steps.items():
            times[name].append(timed(run))
    ms = {name: statistics.median(t) for name, t in times.items()}
    say(str(table))
    assert any(r.taken for r in table.rows), "nothing was taken"
    say(f"inductor: {tokens} tokens of a Llama-3-8B block on {SIZE}: worst error {worst:.1e}; ms a step: "
        + ", ".join(f"{name} {t:.2f}" for name, t in ms.items()))


def transformers(world, tokens):
    import copy

    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = dict(hidden_size=1024, intermediate_size=2816, num_attention_heads=16, num_key_value_heads=8, num_hidden_layers=4, vocab_size=4096,
                 max_position_embeddings=512, tie_word_embeddings=False)
    models = ((LlamaForCausalLM, LlamaConfig(**sizes), "tp", 4 * 5),
              (Qwen3MoeForCausalLM, Qwen3MoeConfig(**sizes, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=512), "ep", 4))

    def losses(m):
        optimizer, found = torch.optim.SGD(m.parameters(), lr=0.05), []
        ids = torch.randint(0, 4096, (2, 512), generator=torch.Generator("cuda").manual_seed(1))
        for _ in range(8):
            loss = m(input_ids=ids, labels=ids, use_cache=False).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    for kind, config, plan, n in models:
        torch.manual_seed(0)
        model = kind(config).bfloat16()
        whole = copy.deepcopy(model)
        done = mk.nn.replace(model, world, plan=plan)
        assert sum(1 for _, _, became, _ in done.rows if became) == n, str(done)
        got, want = losses(model), losses(whole)
        assert want[-1] < want[0] - 0.1, want
        for a, b in zip(got, want):
            assert abs(a - b) < 0.02 * b, (got, want)
        say(f"transformers, {kind.__name__}: losses of 8 steps {got[0]:.3f} to {got[-1]:.3f}, unmodified {want[0]:.3f} to {want[-1]:.3f}")


def megatron(world, tokens):
    from megatron.core import parallel_state
    from test_torch_megatron import experts, mlp

    parallel_state.initialize_model_parallel(SIZE)
    try:
        for sequence_parallel in (True, False):
            mlp(CASE, RANK, SIZE, sequence_parallel)
        for recompute in (False, True):
            experts(CASE, RANK, SIZE, 32, recompute)
    finally:
        parallel_state.destroy_model_parallel()
    say("megatron: results and gradients of an MLP, with sequence parallelism and without, and of experts, saved and computed again")


def torchtitan(world, tokens):
    from test_torch_torchtitan import experts, layers

    layers(CASE, RANK, SIZE, "cuda")
    say("torchtitan: results and gradients of the layers of three overrides")
    experts(CASE, RANK, SIZE, "cuda")
    say("torchtitan: results and gradients of experts")


CASES = {"inductor": (inductor, None), "transformers": (transformers, "transformers"), "megatron": (megatron, "megatron"),
         "torchtitan": (torchtitan, "torchtitan")}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--tokens", type=int, default=8192)
    p.add_argument("--only", choices=sorted(CASES))
    args = p.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=120), device_id=torch.device("cuda", torch.cuda.current_device()))
    world = mk.World.from_torch()
    ran, missing = 0, []
    for name, (case, package) in CASES.items():
        if args.only not in (None, name):
            continue
        if package is not None and importlib.util.find_spec(package) is None:
            missing.append(f"{package} is not installed")
            continue
        torch.set_default_device(None if case is inductor else "cuda")
        try:
            case(world, args.tokens)
        except ImportError as error:
            missing.append(f"{name}: torch {torch.__version__} lacks what it imports: {error}")
            continue
        ran += 1
    for line in missing:
        say(f"skipped: {line}")
    say(f"{ran} cases ran, {len(missing)} were skipped")
    dist.destroy_process_group()
    return 0 if ran else 1


if __name__ == "__main__":
    sys.exit(main())
