"""Attention and the parts of its backward as torch operations, in float32, on what this rank holds: queries meet all keys of a ring."""

from __future__ import annotations

import math


def _documents(torch, begins, at):
    """The number of the document at each place; of no document, less than 0."""
    number = torch.searchsorted(begins, at.to(begins), right=True)
    return torch.where((number > 0) & (number < begins.numel()), number, -1)


def _scores(torch, value, values, q, k, at_q, at_k):
    """Scaled and capped scores ``[B, H, S, T]``, -inf where a query does not see a key; and their slopes by products."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    scale = value["scale"] if value["scale"] is not None else 1 / math.sqrt(q.shape[3])
    scores = torch.einsum("bshd,bthd->bhst", q.float(), k.float()) * scale
    slope = scale
    if value["softcap"] is not None:
        tanh = (scores / value["softcap"]).tanh()
        scores, slope = value["softcap"] * tanh, scale * (1 - tanh * tanh)
    if value["causal"]:
        behind = at_q[:, None] - at_k[None, :]
        hidden = behind < 0
        if value["window"] is not None:
            hidden = hidden | (behind >= value["window"])
        scores = scores.masked_fill(hidden, -math.inf)
    if value["packed"]:
        # Places are from the end on, of all tokens, which one side has.
        tokens = max(q.shape[1], k.shape[1])
        of, its = (_documents(torch, values[value["inputs"][-1]].contiguous(), at + tokens) for at in (at_q, at_k))
        scores = scores.masked_fill((of[:, None] != its[None, :]) | (of < 0)[:, None], -math.inf)
    return scores, slope


def _weights(torch, scores, logs):
    """Of rows that see nothing, 0."""
    seen = logs[..., None] > -math.inf
    return torch.where(seen, (scores - logs[..., None].nan_to_num(neginf=0.0)).exp(), torch.zeros_like(scores))


def _met(all_values, value, values, sequence, dims, passed):
    """Operands by place, all of those whose place is ``passed``, with the places of their rows."""
    inputs = value["inputs"][: len(dims)]
    return [sequence(values[i], all_values[i], dims[n], value["ring"] and n in passed) for n, i in enumerate(inputs)]


def _attention(torch, all_values, value, values, sequence, beside):
    (q, at_q), (k, at_k), (v, _) = _met(all_values, value, values, sequence, (1, 1, 1), (1, 2))
    scores, _ = _scores(torch, value, values, q, k, at_q, at_k)
    logs = scores.logsumexp(-1)
    if value["sinks"]:
        logs = torch.logaddexp(logs, values[value["inputs"][3]].float()[None, :, None])
    beside[len(values)] = logs
    v = v.repeat_interleave(q.shape[2] // v.shape[2], 2)
    return torch.einsum("bhst,bthd->bshd", _weights(torch, scores, logs), v.float())


def _other(torch, all_values, value, values, sequence, beside):
    return beside[value["inputs"][0]]


def _stats(torch, all_values, value, values, sequence, beside):
    o, d, logs = (values[i].float() for i in value["inputs"])
    delta = (o * d).sum(3).transpose(1, 2)
    return torch.stack([logs, delta, torch.zeros_like(delta), torch.zeros_like(delta)], 3)


def _dsinks(torch, all_values, value, values, sequence, beside):
    stats, sinks = (values[i].float() for i in value["inputs"])
    weights = _weights(torch, sinks[None, :, None, None].expand(*stats.shape[:3], 1), stats[..., 0])
    return -(weights[..., 0] * stats[..., 1]).sum((0, 2))[None]


def _gradients(torch, value, values, q, d, stats, k, v, at_q, at_k):
    """Weights, and gradients of scores before they are scaled."""
    scores, slope = _scores(torch, value, values, q, k, at_q, at_k)
    weights = _weights(torch, scores, stats[..., 0].float())
    v = v.repeat_interleave(q.shape[2] // v.shape[2], 2)
    back = torch.einsum("bshd,bthd->bhst", d.float(), v.float())
    return weights, slope * weights * (back - stats[..., 1:2].float())


def _dq(torch, all_values, value, values, sequence, beside):
    (q, at_q), (d, _), (stats, _), (k, at_k), (v, _) = _met(all_values, value, values, sequence, (1, 1, 2, 1, 1), (3, 4))
    _, ds = _gradients(torch, value, values, q, d, stats, k, v, at_q, at_k)
    return torch.einsum("bhst,bthd->bshd", ds, k.repeat_interleave(q.shape[2] // k.shape[2], 2).float())


def _dk(torch, all_values, value, values, sequence, beside):
    (k, at_k), (v, _), (q, at_q), (d, _), (stats, _) = _met(all_values, value, values, sequence, (1, 1, 1, 1, 2), (2, 3, 4))
    weights, ds = _gradients(torch, value, values, q, d, stats, k, v, at_q, at_k)
    # Sums over the heads that share one of keys.
    shared = lambda x: x.unflatten(2, (k.shape[2], -1)).sum(3)
    beside[len(values)] = shared(torch.einsum("bhst,bshd->bthd", weights, d.float()))
    return shared(torch.einsum("bhst,bshd->bthd", ds, q.float()))


OPS = {
    "attention": _attention,
    "lse": _other,
    "attention_stats": _stats,
    "attention_dq": _dq,
    "attention_dk": _dk,
    "attention_dv": _other,
    "attention_dsinks": _dsinks,
}
