"""Models as their authors write them, by functional collectives and no word of mk; and ways to compile them. Needs torch."""

import torch
import torch.distributed._functional_collectives as fc
import torch.nn as nn
import torch.nn.functional as F


def linear(i, o, bias=False):
    return nn.Linear(i, o, bias=bias, dtype=torch.bfloat16)


class Norm(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(h, dtype=torch.bfloat16))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class Llama(nn.Module):
    """A block with sequence parallelism: tokens are shared along ``dim`` outside of its layers: ``[S, B, H]`` or ``[B, S, H]``."""

    def __init__(self, group, ranks, h=64, f=96, head=16, dim=0):
        super().__init__()
        self.group, self.head, self.dim = group, head, dim
        self.wq, self.wk, self.wv, self.wo = linear(h, h // ranks), linear(h, h // ranks), linear(h, h // ranks), linear(h // ranks, h)
        self.w1, self.w3, self.w2 = linear(h, f // ranks), linear(h, f // ranks), linear(f // ranks, h)
        self.n1, self.n2 = Norm(h), Norm(h)

    def gather(self, x):
        return fc.all_gather_tensor_autograd(x, self.dim, self.group)

    def scatter(self, x):
        return fc.reduce_scatter_tensor_autograd(x, "sum", self.dim, self.group)

    def attention(self, x):
        x = self.gather(x)
        q, k, v = (w(x).unflatten(-1, (-1, self.head)) for w in (self.wq, self.wk, self.wv))
        order = (1, 2, 0, 3) if self.dim == 0 else (0, 2, 1, 3)
        back = (2, 0, 1, 3) if self.dim == 0 else (0, 2, 1, 3)
        o = F.scaled_dot_product_attention(*(t.permute(order) for t in (q, k, v)), is_causal=True)
        return self.scatter(self.wo(o.permute(back).flatten(2)))

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        y = self.gather(self.n2(x))
        return x + self.scatter(self.w2(F.silu(self.w1(y)) * self.w3(y)))


class MLP(nn.Module):
    """With biases and an activation by name; sums by ``all_reduce`` where ``whole``."""

    def __init__(self, group, ranks, act, h=64, f=96, bias=True, whole=False):
        super().__init__()
        self.group, self.act, self.whole = group, act, whole
        self.up, self.down = linear(h, f // ranks, bias), linear(f // ranks, h)

    def forward(self, x):
        x = self.act(self.up(x if self.whole else fc.all_gather_tensor_autograd(x, 0, self.group)))
        if self.whole:
            return fc.all_reduce(self.down(x), "sum", self.group)
        return fc.reduce_scatter_tensor_autograd(self.down(x), "sum", 0, self.group)


class Alone(nn.Module):
    """A gather that no product follows."""

    def __init__(self, group):
        super().__init__()
        self.group = group

    def forward(self, x):
        return fc.all_gather_tensor(x, 0, self.group) * 2


def backend(graphs=None):
    """Inductor's graphs through its pass, and then run node by node: no C++ is compiled."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor import config
    from torch._inductor.decomposition import select_decomp_table

    def compiler(gm, inputs):
        config.post_grad_custom_pre_pass(gm.graph)
        gm.graph.lint()
        gm.recompile()
        if graphs is not None:
            graphs.append(gm)
        return gm

    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=select_decomp_table,
                        partition_fn=min_cut_rematerialization_partition)
