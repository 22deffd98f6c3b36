"""Attention whose logarithms and sinks have gradients, too: kernels with torch's operations between them."""

from __future__ import annotations

import torch

from ._attend import call


class Attention(torch.autograd.Function):
    """On ``[B, S, H, D]``; ``texts`` are those of forward and backward."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, documents, texts, at):
        documents = [] if documents is None else [documents]
        given = [] if sinks is None else [sinks.float().contiguous()]
        o, logs = call(texts.forward, at, [q, k, v, *documents, *given])
        ctx.save_for_backward(q, k, v, sinks, o, logs, *documents)
        ctx.texts, ctx.at = texts, at
        return o, logs

    @staticmethod
    def backward(ctx, d_o, d_logs):
        q, k, v, sinks, o, logs, *documents = ctx.saved_tensors
        d_o = d_o.contiguous()
        stats, = call(ctx.texts.stats, ctx.at, [o, d_o, logs])
        # Of weights w, and of a sum's logarithm: w (do v - delta) + w dlogs.
        delta = stats[..., 1] - d_logs
        stats = torch.stack([stats[..., 0], delta, stats[..., 2], stats[..., 3]], 3)
        operands = [q, d_o, stats, k, v, *documents]
        dq = dk = dv = d_sinks = None
        if ctx.needs_input_grad[0]:
            dq, = call(ctx.texts.queries, ctx.at, operands)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            dk, dv = call(ctx.texts.keys, ctx.at, operands)
        if ctx.needs_input_grad[3]:
            weights = (sinks.float()[None, :, None] - logs).exp()
            d_sinks = -(weights * delta).sum((0, 2)).to(sinks.dtype)
        return dq, dk, dv, d_sinks, None, None, None
