"""A plain reading of the canonical operations, whole tensors at a time: slow, and nobody's referee."""

import math

import numpy as np

DTYPES = {"f32": np.float32, "i64": np.int64, "bool": np.bool_}


def run(graph, inputs):
    """Outputs by name."""
    values = []
    for entry in graph.inputs:
        array = np.asarray(inputs[entry.name])
        assert (array.shape, array.dtype) == (entry.shape, DTYPES[entry.kind]), entry
        values.append(array)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            args = [values[arg] for arg in node.args]
            value = np.asarray(compute(node, args))
            assert value.shape == node.shape, (node, value.shape)
            assert value.dtype == DTYPES[node.kind], (node, value.dtype)
            values.append(value)
    return {output.name: values[output.value] for output in graph.outputs}


def compute(node, args):
    return OPERATIONS[node.op](node, *args)


def const(node):
    if node.kind == "f32":
        return np.full(node.shape, np.array(node.attrs, np.uint32).view(np.float32)[0])
    return np.full(node.shape, node.attrs[0], DTYPES[node.kind])


def move(node, x):
    offset, *strides = node.attrs
    at = np.full(node.shape, offset, np.int64)
    for side, (n, stride) in enumerate(zip(node.shape, strides, strict=True)):
        steps = np.arange(n) * stride
        at += steps.reshape([-1 if s == side else 1 for s in range(len(node.shape))])
    assert 0 <= at.min() <= at.max() < x.size, node
    return x.reshape(-1)[at]


def place(node, base, piece):
    whole = base.copy()
    whole[tuple(slice(s, s + n) for s, n in zip(node.attrs, piece.shape, strict=True))] = piece
    return whole


def take(node, table, index):
    return table[index]


def put_add(node, index, rows):
    result = np.zeros(node.shape, np.float32)
    np.add.at(result, index, rows)
    return result


def summed(node, x):
    assert x.shape[-1] <= 4096
    return x.astype(np.float64).sum(-1).astype(np.float32)


def highest(node, x):
    assert x.shape[-1] <= 4096
    return x.max(-1)


def matmul(node, a, b):
    assert a.shape[2] == b.shape[1] <= 4096
    return (a.astype(np.float64) @ b).astype(np.float32)


def in_double(function):
    return lambda node, x: function(x.astype(np.float64)).astype(np.float32)


def same_kind(function):
    def call(node, a, b):
        assert a.dtype == b.dtype, node
        return function(a, b)

    return call


OPERATIONS = {
    "const": const,
    "iota": lambda node: np.arange(node.shape[0]),
    "neg": lambda node, x: -x,
    "sign": lambda node, x: np.sign(x),
    "abs": lambda node, x: np.abs(x),
    "sqrt": lambda node, x: np.sqrt(x),
    "exp": in_double(np.exp),
    "log": in_double(np.log),
    "tanh": in_double(np.tanh),
    "erf": in_double(np.vectorize(math.erf, otypes=[np.float64])),
    "add": same_kind(np.add),
    "sub": same_kind(np.subtract),
    "mul": same_kind(np.multiply),
    "div": same_kind(np.divide),
    "iadd": same_kind(np.add),
    "isub": same_kind(np.subtract),
    "imul": same_kind(np.multiply),
    "lt": same_kind(np.less),
    "le": same_kind(np.less_equal),
    "eq": same_kind(np.equal),
    "and": same_kind(np.logical_and),
    "or": same_kind(np.logical_or),
    "not": lambda node, x: np.logical_not(x),
    "select": lambda node, c, a, b: np.where(c, a, b),
    "convert": lambda node, x: x.astype(DTYPES[node.kind]),
    "sum": summed,
    "max": highest,
    "matmul": matmul,
    "move": move,
    "place": place,
    "take": take,
    "put_add": put_add,
}
