"""Computes the one disputed element of one value from proved data alone.

The referee then rules which of the two tiles has it right.

Two trees of tiles (`core.canon.tile_tree`) have the same leaves before `leaf`, and differ there. Whoever wants an end
shows an `ElementProof`; what counts in it stands under the program's roots, under the accused's borders, or is a leaf
before the disputed one, of which both trees have the same. The first element in which the two tiles differ is computed
with the kernels of `core.canon.tiles`, or, of an input, read from its source. Then the bits are compared.

Pure and total: any bytes give an answer or a ProtocolError, and nothing is allocated by a number that was not checked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farflung.core import limits, merkle
from farflung.core.canon import input_roots, tile_tree, tiles
from farflung.core.canon import program as programs
from farflung.core.canon.array_operations import DTYPES, canonical_bytes
from farflung.core.canon.graph import GraphNode
from farflung.core.canon.input_roots import InputLeafProof
from farflung.core.canon.operation_rules import F32, I64, KINDS, OperationCall, TensorType, infer, is_shape
from farflung.core.canon.program import CanonicalProgram, LeafPosition, ProgramEntry, SegmentSteps
from farflung.core.canon.tiles import Places
from farflung.core.canon.window_order import starts
from farflung.core.codec import Wire, decode, encode
from farflung.core.commitments import BorderRoots
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash

PARAMS = "params"


class EntryProof(Wire, frozen=True):
    """The entry at `index` under a program's listing, and its way there."""

    index: int
    entry: ProgramEntry
    path: tuple[Hash, ...]


class TileProof(Wire, frozen=True):
    """The tile at leaf `leaf` of either tree, and its way to that tree's root."""

    leaf: int
    data: bytes
    path: tuple[Hash, ...]


class ElementProof(Wire, frozen=True):
    """What is shown. `value`: in whose tile the leaf lies; `args`: its arguments in their order.

    `tiles`: of the disputed leaf, the accused's first. `opened`: tiles of arguments that the element needs. `pieces`:
    an input's element under its source; an input that is a step's value has that value as its one argument.
    """

    value: EntryProof
    args: tuple[EntryProof, ...]
    tiles: tuple[bytes, bytes]
    opened: tuple[TileProof, ...]
    pieces: tuple[InputLeafProof, ...]


class RefereeCase(NamedTuple):
    """What is fixed before anything is shown: the program, which steps of which round and seat, and both trees.

    `nodes`: the hashes of the disputed leaf; `seat`: the accused's number among those that train.
    """

    program: CanonicalProgram
    round: int
    seat: int
    run: SegmentSteps
    start: BorderRoots
    claimed: BorderRoots
    roots: tuple[Hash, Hash]
    leaf: int
    nodes: tuple[Hash, Hash]


class RefereeRuling(NamedTuple):
    """Which of the two tiles has the true element."""

    accused: bool
    challenger: bool


class RefereeFinding(NamedTuple):
    """The one element that was looked at, `flat` in row-major order, of value `number` of the listing.

    `step` of the segment; where it is the number of its steps: of the judging part. `said` are the canonical bytes of
    the element in the two tiles, empty in one that has not the size of its place; `law`: what the element is.
    """

    number: int
    entry: ProgramEntry
    step: int
    flat: int
    said: tuple[bytes, bytes]
    law: bytes

    @property
    def ruling(self) -> RefereeRuling:
        """Who is right."""
        return RefereeRuling(*(each == self.law for each in self.said))


def read(data: bytes) -> ElementProof:
    """An exhibit from its bytes. Raises ProtocolError FF-CORE-020 to -022, FF-CORE-075 (too much in it)."""
    exhibit = decode(data, ElementProof, limits.EXHIBIT_BYTES)
    if len(exhibit.opened) > limits.EXHIBIT_TILES or len(exhibit.args) > limits.EXHIBIT_ENTRIES:
        raise ProtocolError("FF-CORE-075", "an exhibit with too many tiles or arguments")
    return exhibit


def ruling(case: RefereeCase, exhibit: ElementProof) -> RefereeRuling:
    """Who is right. Raises what `finding` raises."""
    return finding(case, exhibit).ruling


def finding(case: RefereeCase, exhibit: ElementProof) -> RefereeFinding:
    """What the law computes. Raises ProtocolError FF-CORE-063 to -066, -070, -072 to -074, -076 to -079."""
    place = programs.place_of(case.program, case.run.steps, case.leaf)
    entry, index = _listed(case.program, exhibit.value), exhibit.value.index
    box = tiles.box(entry.shape, programs.tile_at(case.program, index, entry, place))
    for node, tile in zip(case.nodes, exhibit.tiles, strict=True):
        if tile_tree.leaf_hash(case.leaf, tile) != node:
            raise ProtocolError("FF-CORE-076", "a tile is not the one that its player committed to")
    item = DTYPES[entry.kind].itemsize
    at = _first_difference(exhibit.tiles, item, box.shape[0] * box.shape[1])
    row, column = divmod(at, box.shape[1])
    flat = (box.top + row) * tiles.matrix(entry.shape)[1] + box.left + column
    truth = _ElementReferee(case, exhibit, place, entry).truth(flat)
    whole = box.shape[0] * box.shape[1] * item
    ours, theirs = (t[at * item : (at + 1) * item] if len(t) == whole else b"" for t in exhibit.tiles)
    return RefereeFinding(index, entry, place.step, flat, (ours, theirs), truth)


def _first_difference(pair: tuple[bytes, bytes], item: int, count: int) -> int:
    """The first element in which tiles differ; 0 where one has not the size of a tile, which makes it wrong."""
    if not len(pair[0]) == len(pair[1]) == count * item:
        return 0
    left, right = (np.frombuffer(tile, np.uint8).reshape(count, item) for tile in pair)
    return int(np.argmax((left != right).any(axis=1)))


def _listed(program: CanonicalProgram, shown: EntryProof) -> ProgramEntry:
    """An entry that stands under the listing. Raises ProtocolError FF-CORE-077."""
    entry = shown.entry
    count = program.values + program.judged
    if not merkle.holds(program.listing, count, shown.index, encode(entry), shown.path):
        raise ProtocolError("FF-CORE-077", f"entry {shown.index} does not stand under the program's listing")
    if entry.kind not in KINDS or not is_shape(entry.shape) or entry.first < 0:
        raise impossible(f"entry {shown.index} has no kind, shape or place")
    return entry


class _ElementReferee:
    """One value of one leaf's step, and what is shown of its arguments."""

    def __init__(self, case: RefereeCase, exhibit: ElementProof, place: LeafPosition, entry: ProgramEntry) -> None:
        self._case, self._exhibit, self._place, self._entry = case, exhibit, place, entry
        self._tiles = {each.leaf: each for each in exhibit.opened}
        self._total = programs.leaf_count(case.program, case.run.steps)

    def truth(self, flat: int) -> bytes:
        """The canonical bytes of element `flat`."""
        if self._entry.op in programs.SOURCES:
            return input_roots.canonical(self._entry.kind, self._read(flat))
        return self._computed(flat)

    def _computed(self, flat: int) -> bytes:
        """By its operation, which is checked against its arguments as a graph's node is."""
        entry, own = self._entry, self._exhibit.value.index
        args = [self._arg(which, arg) for which, arg in enumerate(entry.args)]
        stated = TensorType(entry.kind, entry.shape)
        tensors = tuple(TensorType(arg.kind, arg.shape) for arg in args)
        if infer(OperationCall(own, entry.op, tensors, entry.attrs, stated)) != stated:
            raise impossible(f"entry {own} is not what its operation makes")
        base = self._place.step * self._case.program.leaves

        def fetch(which: int, places: Places) -> NDArray[Any]:
            return self._fetched(args[which], base, places)

        node = GraphNode(entry.op, entry.args, entry.kind, entry.shape, entry.attrs)
        return canonical_bytes(tiles.element(node, tensors, flat, fetch))

    def _arg(self, which: int, value: int, *, is_judged: bool | None = None) -> ProgramEntry:
        """The entry of argument `which`, which is value `value` of this part's graph unless another part is named."""
        part = self._place.is_judged if is_judged is None else is_judged
        shown = self._exhibit.args[which : which + 1]
        if not shown or shown[0].index != programs.entry_index(self._case.program, value, is_judged=part):
            raise ProtocolError("FF-CORE-079", f"what is shown as argument {which} is another value or missing")
        return _listed(self._case.program, shown[0])

    def _fetched(self, arg: ProgramEntry, base: int, places: Places) -> NDArray[Any]:
        """These elements of a value, whose part's leaves begin at `base`, from opened tiles."""
        made = np.zeros(places.shape, DTYPES[arg.kind])
        numbers = tiles.tile_of(arg.shape, places)
        for number in np.unique(numbers):
            mask = numbers == number
            box = tiles.box(arg.shape, int(number))
            rows, columns = np.divmod(places[mask], tiles.matrix(arg.shape)[1])
            made[mask] = self._tile(arg, base + arg.first + int(number), box)[rows - box.top, columns - box.left]
        return made

    def _tile(self, arg: ProgramEntry, leaf: int, box: tiles.TileBounds) -> NDArray[Any]:
        """An opened tile, proved: both trees have the same leaves before the disputed one."""
        shown, dtype = self._tiles.get(leaf), DTYPES[arg.kind]
        is_proved = (
            shown is not None
            and leaf < self._case.leaf
            and len(shown.data) == box.shape[0] * box.shape[1] * dtype.itemsize
            and any(tile_tree.holds(r, self._total, leaf, shown.data, shown.path) for r in self._case.roots)
        )
        if shown is None or not is_proved:
            raise input_roots.unproved(f"leaf {leaf} is not shown, or is in neither tree before the disputed one")
        raw = np.frombuffer(shown.data, np.uint8 if dtype == np.bool_ else dtype).astype(dtype)
        return raw.reshape(box.shape)

    def _read(self, flat: int) -> bytes:
        """An input's element, from where its entry says that it comes."""
        case, entry, step = self._case, self._entry, self._place.step
        name = entry.name.removeprefix(f"{entry.op}/")
        match entry.op:
            case programs.STATE if step:
                return self._earlier(flat, step - 1)
            case programs.FINAL:
                return self._earlier(flat, case.run.steps - 1)
            case programs.STATE | programs.START:
                return self._stored(_under(case.start, name), name, flat)
            case programs.CLAIMED:
                return self._stored(_under(case.claimed, name), name, flat)
            case programs.BUFFER:
                return self._stored(case.program.buffers, name, flat)
            case programs.BATCH:
                return self._token(flat)
        return self._rate()

    def _stored(self, root: Hash, name: str, flat: int) -> bytes:
        """An element of a tensor under a root."""
        of = TensorType(self._entry.kind, self._entry.shape)
        return input_roots.tensor_element(root, name, of, flat, self._exhibit.pieces)

    def _earlier(self, flat: int, step: int) -> bytes:
        """The same element of a value of a step before."""
        arg = self._arg(0, self._attr(0), is_judged=False)
        if (arg.kind, arg.shape) != (self._entry.kind, self._entry.shape):
            raise impossible("an input is not what the step's value is")
        return canonical_bytes(self._fetched(arg, step * self._case.program.leaves, np.array([flat], np.int64)))

    def _token(self, flat: int) -> bytes:
        """The token that the data order gives this place of the batch, or the one behind it."""
        case, (row, column) = self._case, divmod(flat, self._case.program.context)
        if self._entry.kind != I64 or not row < case.program.rows:
            raise impossible("an input is no batch")
        step, fixed = case.run.first + self._place.step, (case.program.seed, case.round, case.seat)
        begin = starts(*fixed, step, 1, case.program.places, first=row)[0]
        token = input_roots.token_at(case.program.tokens, begin + column + self._attr(0), self._exhibit.pieces)
        return token.to_bytes(8, "little")

    def _rate(self) -> bytes:
        """An element of a table, by the step of the run or by what the optimizer has counted."""
        case, of_run = self._case, self._entry.op == programs.BY_STEP
        done = case.round * case.program.round_steps + case.run.first if of_run else case.start.steps
        if (self._entry.kind, self._entry.shape) != (F32, ()):
            raise impossible("an input is no rate")
        root = case.program.by_step if of_run else case.program.by_count
        return input_roots.table_element(root, done + self._place.step, self._attr(0), self._exhibit.pieces)

    def _attr(self, which: int) -> int:
        """An attribute of an input. Raises ProtocolError FF-CORE-078: the terms give none, or a negative one."""
        if not 0 <= which < len(self._entry.attrs) or not 0 <= self._entry.attrs[which] <= limits.ELEMENTS:
            raise impossible("an input without its attribute")
        return self._entry.attrs[which]


def _under(border: BorderRoots, name: str) -> Hash:
    """The root that holds `section/tensor` at a border."""
    return border.params if name.partition("/")[0] == PARAMS else border.optimizer


def impossible(cause: str) -> ProtocolError:
    """The error for an entry that stands under the listing, and describes nothing that can be computed."""
    return ProtocolError("FF-CORE-078", "the terms list a value that cannot be", cause=cause)
