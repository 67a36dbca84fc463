"""Maps each aten operation that has a canonical form to the function that writes it.

`lower` refuses anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from farflung.verify.canon import gather_scatter, matmul, pointwise, reductions, views

Rule = Callable[..., Any]  # (draft, what comes out, torch's own arguments) -> a GraphTensor, or a list of them

VIEWS: Final[dict[str, Rule]] = {
    **dict.fromkeys(("alias", "clone", "detach", "contiguous", "lift_fresh_copy", "lift_fresh"), views.same),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "view_as", "flatten"), views.viewed),
    "permute": views.permuted,
    "transpose": views.transposed,
    "t": views.transposed,
    "expand": views.expanded,
    "slice": views.sliced,
    "select": views.selected,
    "flip": views.flipped,
    "repeat": views.repeated,
    "split": views.split,
    "split_with_sizes": views.split,
    "unbind": views.unbound,
    "cat": views.joined,
    "slice_scatter": views.slice_scattered,
    "select_scatter": views.select_scattered,
    "constant_pad_nd": views.bordered,
    "full": views.full,
    "full_like": views.full,
    "new_full": lambda d, out, _x, _shape, fill, **_: views.full(d, out, None, fill),
    "scalar_tensor": views.scalar,
    **dict.fromkeys(
        ("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "empty_permuted", "new_empty", "new_empty_strided"),
        views.zeros,
    ),
    "ones": views.ones,
    "ones_like": views.ones,
    "copy": views.copied,
    "arange": lambda d, out, *a, **k: views.counted(d, out, *([0] if len(a) == 1 else []), *a, **k),
}

POINTWISE: Final[dict[str, Rule]] = {
    "add": pointwise.arithmetic("add"),
    "sub": pointwise.arithmetic("sub"),
    "rsub": lambda d, out, a, b, alpha=1: pointwise.arithmetic("sub")(d, out, b, a, alpha),
    "mul": pointwise.arithmetic("mul"),
    "div": pointwise.divided,
    "lt": pointwise.compared("lt", False, False),
    "gt": pointwise.compared("lt", True, False),
    "le": pointwise.compared("le", False, False),
    "ge": pointwise.compared("le", True, False),
    "eq": pointwise.compared("eq", False, False),
    "ne": pointwise.compared("eq", False, True),
    **dict.fromkeys(("logical_and", "bitwise_and"), pointwise.logical("and")),
    **dict.fromkeys(("logical_or", "bitwise_or"), pointwise.logical("or")),
    **dict.fromkeys(("logical_xor", "bitwise_xor"), pointwise.either),
    **dict.fromkeys(("logical_not", "bitwise_not"), pointwise.inverted),
    "where": pointwise.where,
    "maximum": pointwise.maximum,
    "minimum": pointwise.minimum,
    "clamp": pointwise.clamped,
    "clamp_min": pointwise.clamped,
    "clamp_max": lambda d, out, x, high: pointwise.clamped(d, out, x, None, high),
    "relu": pointwise.relu,
    "_to_copy": pointwise.converted,
    **{name: pointwise.function(name) for name in ("exp", "log", "erf", "tanh", "sqrt")},
    "neg": pointwise.turned,
    "abs": pointwise.magnitude,
    "sign": pointwise.sign,
    "reciprocal": pointwise.inverse,
    "rsqrt": pointwise.inverse_root,
    "sigmoid": pointwise.sigmoid,
    "silu": pointwise.silu,
    "gelu": pointwise.gelu,
    "pow": pointwise.power,
}

REDUCTIONS: Final[dict[str, Rule]] = {
    "sum": reductions.summed,
    "mean": reductions.averaged,
    "var": reductions.varied,
    "amax": reductions.highest,
    "amin": reductions.lowest,
    "any": reductions.some,
    "all": reductions.every,
    "linalg_vector_norm": reductions.norm,
    "_softmax": reductions.softmax,
    "_log_softmax": reductions.log_softmax,
    "native_layer_norm": reductions.layer_norm,
    "native_group_norm": reductions.group_norm,
}

PRODUCTS: Final[dict[str, Rule]] = {
    "bmm": matmul.batched,
    **dict.fromkeys(("mm", "mv", "dot"), matmul.plain),
    "addmm": matmul.added,
    "baddbmm": matmul.added,
}

PLACES: Final[dict[str, Rule]] = {
    "embedding": gather_scatter.embedding,
    "embedding_dense_backward": gather_scatter.embedding_gradient,
    "index": gather_scatter.indexed,
    "index_put": gather_scatter.index_put,
    "gather": gather_scatter.gather,
    "scatter": gather_scatter.scatter,
    "scatter_add": gather_scatter.scatter_add,
}

RULES: Final[dict[str, Rule]] = VIEWS | POINTWISE | REDUCTIONS | PRODUCTS | PLACES

# Forms of a known operation that mean something else: integer division, a transposition of storage.
ODD_FORMS: Final = frozenset({"div.Tensor_mode", "div.Scalar_mode", "pow.Scalar", "pow.Tensor_Tensor"})
