"""Attention whose logarithms and sinks have gradients, too."""

from __future__ import annotations

import torch

from ._attend import call


class Attention(torch.autograd.Function):
    """On ``[B, S, H, D]``; ``texts`` are those of forward and backward. Returns logarithms where ``logged``."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, documents, texts, at, logged):
        documents = [] if documents is None else [documents]
        given = [] if sinks is None else [sinks.float().contiguous()]
        o, logs = call(texts.forward, at, [q, k, v, *documents, *given])
        ctx.save_for_backward(q, k, v, sinks, o, logs, *documents)
        ctx.texts, ctx.at = texts, at
        return (o, logs) if logged else o

    @staticmethod
    def backward(ctx, d_o, d_logs=None):
        q, k, v, sinks, o, logs, *documents = ctx.saved_tensors
        d_o = d_o.contiguous()
        stats, = call(ctx.texts.stats, ctx.at, [o, d_o, logs])
        if d_logs is not None:
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
            d_sinks, = call(ctx.texts.sinks, ctx.at, [stats, sinks.float().contiguous()])
            d_sinks = d_sinks[0].to(sinks.dtype)
        return dq, dk, dv, d_sinks, None, None, None, None
