"""One element of a value is that element of its tile, and asks for no more than the tile does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core_canon_cases import GRAPHS, inputs_of

from farflung.core.canon.array_operations import DTYPES, canonical_bytes
from farflung.core.canon.operation_rules import TensorType
from farflung.core.canon.tiles import Places, box, compute, element, matrix, places_of, tile_count


@pytest.mark.parametrize("name", GRAPHS)
def test_an_element_is_that_of_its_tile(name: str):
    graph = GRAPHS[name]
    held = zip(inputs_of(graph), graph.inputs, strict=True)
    values: list[Any] = [np.array(each, DTYPES[of.kind]) for each, of in held]
    for at, node in enumerate(graph.nodes):
        args = [TensorType(graph.value(arg).kind, graph.value(arg).shape) for arg in node.args]
        asked: set[tuple[int, int]] = set()

        def fetch(which: int, places: Places, node: Any = node, asked: Any = asked) -> Any:
            asked.update((which, int(place)) for place in places.reshape(-1))
            return np.asarray(values[node.args[which]]).reshape(-1)[places]

        tiles = []
        for tile in range(tile_count(node.shape)):
            asked.clear()
            made = compute(graph, len(graph.inputs) + at, tile, fetch)
            needed = set(asked)
            places = places_of(node.shape, box(node.shape, tile))
            for row, column in {(0, 0), (made.shape[0] - 1, made.shape[1] - 1), (made.shape[0] // 2, 0)}:
                asked.clear()
                one = element(node, args, int(places[row, column]), fetch)
                assert one.shape == (1, 1)
                assert canonical_bytes(one) == canonical_bytes(made[row, column])
                assert asked <= needed
            tiles.append((places, made))
        whole = np.zeros(places_total(node.shape), tiles[0][1].dtype)
        for places, made in tiles:
            whole[places] = made
        values.append(whole.reshape(node.shape))


def places_total(shape: tuple[int, ...]) -> int:
    rows, columns = matrix(shape)
    return rows * columns
