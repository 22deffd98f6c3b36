"""Graphs of torch.fx as ``mk.inductor`` reads them: products, collectives and activations behind the views around them."""

from __future__ import annotations

import operator

import torch

from ._fake import Unknown, number

aten, prims = torch.ops.aten, torch.ops.prims
_RESHAPES = {aten.reshape.default, aten.view.default, aten._unsafe_view.default}
_GATHER = torch.ops._c10d_functional.all_gather_into_tensor.default
_SCATTER = torch.ops._c10d_functional.reduce_scatter_tensor.default
_SUM = torch.ops._c10d_functional.all_reduce.default
_WAIT = torch.ops._c10d_functional.wait_tensor.default


def value(node):
    """The tensor without contents that a node makes, or None."""
    found = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None


def sizes(node):
    """Sizes as numbers: of symbolic ones, what they were when the graph was traced."""
    return tuple(map(number, value(node).shape))


def is_call(node, *targets):
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target in targets


def unreshaped(node):
    """What a node is a reshape of, with the same last dimension: the same rows in the same order."""
    while is_call(node, *_RESHAPES) and value(node).dim() and value(node.args[0]).dim():
        source = node.args[0]
        if value(source).shape[-1] != value(node).shape[-1]:
            break
        node = source
    return node


def is_whole(tensor):
    """Whether a tensor lies row by row."""
    step = 1
    for n, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if number(n) != 1 and number(stride) != step:
            return False
        step *= number(n)
    return True


def stored(node):
    """The matrix that an operand of a product is, or is the transpose of: ``(node, transposed)``."""
    turned = False
    while is_call(node, aten.permute.default, aten.t.default, aten.transpose.int) and value(node).dim() == 2:
        swaps = is_call(node, aten.t.default) or tuple(d % 2 for d in node.args[1:]) in ((0, 1), (1, 0)) if not is_call(
            node, aten.permute.default) else tuple(d % 2 for d in node.args[1]) == (1, 0)
        turned, node = turned != bool(swaps), node.args[0]
    return node, turned


class Product:
    """A product of matrices: ``left`` by ``right``, with ``bias`` or None; ``node`` is ``[M, N]``, or ``[B, S, N]`` of a ``bmm``."""

    def __init__(self, node, left, right, bias=None):
        self.node, self.left, self.right, self.bias = node, left, right, bias


def product(node):
    """The product that a node is, or None."""
    if is_call(node, aten.mm.default):
        return Product(node, *node.args[:2])
    if is_call(node, aten.addmm.default):
        bias, left, right = node.args[:3]
        if value(bias) is not None and value(bias).dim() == 1 and node.kwargs.get("beta", 1) == 1 == node.kwargs.get("alpha", 1):
            return Product(node, left, right, bias)
    if is_call(node, aten.bmm.default):
        # A matrix that every batch is multiplied by.
        right = node.args[1]
        while is_call(right, *_RESHAPES, aten.expand.default) and value(right.args[0]).dim() >= 2:
            right = right.args[0]
        if value(right).dim() == 2 and sizes(right) == sizes(node.args[1])[1:]:
            return Product(node, node.args[0], right)
    return None


class Collective:
    """``node`` is what comes of it, ``source`` what goes in, both with the dimension ``dim`` in place; ``parts`` are its nodes."""

    def __init__(self, kind, node, source, dim, group, parts, mean=False):
        self.kind, self.node, self.source, self.dim, self.group, self.parts, self.mean = kind, node, source, dim, group, parts, mean


def _pieces(cat, dim):
    """What ``cat`` joins along ``dim``, if those are equal parts of one tensor, all of them and in order: ``(tensor, its dimension, nodes)``."""
    if not is_call(cat, aten.cat.default) or (cat.args[1] if len(cat.args) > 1 else 0) != dim:
        return None
    items = list(cat.args[0])
    if not items or len({sizes(i) for i in items}) != 1:
        return None
    if all(is_call(i, operator.getitem) and i.args[0] is items[0].args[0] and i.args[1] == at for at, i in enumerate(items)):
        split = items[0].args[0]
        if not is_call(split, aten.split.Tensor) or len(split.meta.get("val", ())) != len(items):
            return None
        base, of = split.args[0], (split.args[2] if len(split.args) > 2 else split.kwargs.get("dim", 0))
        return base, of % value(base).dim(), [split, *items]
    if not all(is_call(i, aten.slice.Tensor) and i.args[0] is items[0].args[0] and i.args[1:2] == items[0].args[1:2] for i in items):
        return None
    base, of = items[0].args[0], items[0].args[1] if len(items[0].args) > 1 else 0
    of %= value(base).dim()
    each = sizes(items[0])[of]
    starts = [_number(i.args[2]) if len(i.args) > 2 and i.args[2] is not None else 0 for i in items]
    if starts != [at * each for at in range(len(items))] or each * len(items) != sizes(base)[of] or any(len(i.args) > 4 for i in items):
        return None
    return base, of, items


def _number(argument):
    return number(argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument)


def collective(wait):
    """The collective that a ``wait_tensor`` ends, or None."""
    if not is_call(wait, _WAIT):
        return None
    begin = wait.args[0]
    if is_call(begin, _GATHER):
        x, ranks, group = begin.args[:3]
        # Gathered along another dimension: cut where ranks meet, and joined there.
        joins = {u for user in wait.users for u in (user, *user.users, *(v for w in user.users for v in w.users)) if is_call(u, aten.cat.default)}
        for joined in joins:
            for dim in range(1, value(wait).dim()):
                pieces = _pieces(joined, dim)
                if pieces and pieces[0] is wait and pieces[1] == 0 and len(joined.args[0]) == ranks:
                    parts = [begin, wait, *pieces[2], joined]
                    if all(user in parts or is_call(user, aten.sym_size.int) for user in wait.users):
                        return Collective("gather", joined, x, dim, group, parts)
        return Collective("gather", wait, x, 0, group, [begin, wait])
    if is_call(begin, _SCATTER):
        x, op, ranks, group = begin.args[:4]
        if op not in ("sum", "avg"):
            return None
        pieces = _pieces(x, 0)
        if pieces and pieces[1] and len(x.args[0]) == ranks:
            return Collective("reduce_scatter", wait, pieces[0], pieces[1], group, [*pieces[2], x, begin, wait], op == "avg")
        return Collective("reduce_scatter", wait, x, 0, group, [begin, wait], op == "avg")
    if is_call(begin, _SUM):
        x, op, group = begin.args[:3]
        return Collective("all_reduce", wait, x, 0, group, [begin, wait], op == "avg") if op in ("sum", "avg") else None
    return None


# Activations as torch decomposes them, by the operation of mk: "x" is its input, the same wherever it stands.
_wide, _narrow = "wide", "narrow"
_X = (_wide, "x")
_NEG = (aten.neg.default, _X)
_SIGMOID = (aten.sigmoid.default, _X)
_CUBE = [(aten.mul.Tensor, (aten.mul.Tensor, _X, _X), _X), (aten.pow.Tensor_Scalar, _X, 3)]
_PATTERNS = {
    "silu": [(aten.div.Tensor, _X, (aten.add.Tensor, (aten.exp.default, _NEG), 1)), (aten.mul.Tensor, _X, _SIGMOID), (aten.silu.default, "x")],
    "gelu": [(aten.mul.Tensor, (aten.mul.Tensor, _X, 0.5), (aten.add.Tensor, (aten.erf.default, (aten.mul.Tensor, _X, 0.7071067811865476)), 1))],
    "gelu_tanh": [(aten.mul.Tensor, (aten.mul.Tensor, _X, 0.5), (aten.add.Tensor, (aten.tanh.default, (aten.mul.Tensor, inner, 0.7978845608028654)), 1))
                  for cube in _CUBE for inner in [(aten.add.Tensor, _X, (aten.mul.Tensor, cube, 0.044715))]],
    "relu": [(aten.relu.default, "x")],
}
_COMMUTE = {aten.mul.Tensor, aten.add.Tensor}


def _matches(pattern, node, found, nodes):
    if pattern == "x":
        # Reshapes may stand on either side.
        if not isinstance(node, torch.fx.Node):
            return False
        base = unreshaped(node)
        if "x" in found:
            return found["x"] is base
        found["x"] = base
        return True
    if not isinstance(pattern, tuple):
        return not isinstance(node, torch.fx.Node) and isinstance(node, (int, float)) and abs(node - pattern) < 1e-6
    if pattern[0] == _wide:
        if is_call(node, prims.convert_element_type.default) and node.args[1] == torch.float32:
            nodes.append(node)
            return _matches(pattern[1], node.args[0], found, nodes)
        return _matches(pattern[1], node, found, nodes)
    if not is_call(node, pattern[0]):
        return False
    orders = [node.args[: len(pattern) - 1]]
    if pattern[0] in _COMMUTE:
        orders.append(tuple(reversed(orders[0])))
    for args in orders:
        trial, seen = dict(found), list(nodes)
        if len(args) == len(pattern) - 1 and all(_matches(p, a, trial, seen) for p, a in zip(pattern[1:], args)):
            found.update(trial)
            nodes[:] = [*seen, node]
            return True
    return False


def activation(node):
    """``(name, input, nodes)`` where a node is an activation of another of the same dtype, else None."""
    nodes = []
    inner = node
    if is_call(node, prims.convert_element_type.default):
        nodes, inner = [node], node.args[0]
    elif is_call(node, aten.gelu.default):
        name = "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else "gelu"
        return name, unreshaped(node.args[0]), [node]
    for name, patterns in _PATTERNS.items():
        for pattern in patterns:
            found, seen = {}, list(nodes)
            if _matches(pattern, inner, found, seen) and value(found["x"]).dtype == value(node).dtype:
                return name, found["x"], seen
    return None


def emit(graph, target, *args):
    """A new node here, with its tensor without contents."""
    node = graph.call_function(target, args)
    tensors = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
    first = next((t for t in torch.utils._pytree.tree_leaves(tensors) if isinstance(t, torch.Tensor)), None)
    with first.fake_mode:
        node.meta["val"] = target(*tensors)
    return node


def shape_of(graph, node):
    """Sizes to reshape to, as arguments: numbers, nodes that make symbolic ones, and -1 in the place of one; None where no node does."""
    shape = list(value(node).shape)
    symbolic = [i for i, n in enumerate(shape) if not isinstance(n, int)]
    for i in symbolic[1:]:
        shape[i] = _node_of(graph, shape[i])
    for i in symbolic[:1]:
        shape[i] = -1
    return None if None in shape else shape


def _node_of(graph, size):
    """A placeholder that has a symbolic size, or a node that takes it from a placeholder."""
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    for node in inputs:
        found = node.meta.get("val")
        if isinstance(found, torch.SymInt) and found.node.expr == size.node.expr:
            return node
    for node in inputs:
        for dim, n in enumerate(value(node).shape if value(node) is not None else ()):
            if isinstance(n, torch.SymInt) and n.node.expr == size.node.expr:
                with graph.inserting_after(inputs[-1]):
                    made = graph.call_function(aten.sym_size.int, (node, dim))
                made.meta["val"] = n
                return made
    return None


__all__ = ["Unknown", "activation", "collective", "emit", "is_call", "is_whole", "product", "shape_of", "sizes", "stored", "unreshaped", "value"]
