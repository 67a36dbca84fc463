"""Codes symbols of known probabilities by interleaved range ANS (asymmetric numeral systems), many lanes at a
time.

rANS (Duda 2013, arXiv 1311.2540, section 2.3), interleaved (Giesen 2014, arXiv 1402.3392). A symbol that has the share
[start, start + freq) of [0, 2^bits) turns a state x into

    x' = ((x div freq) << bits) + start + x mod freq            and back:  freq * (x' >> bits) + (x' mod 2^bits) - start

States lie in [2^24, 2^40); 16-bit words go out below and come in again. Symbol t belongs to lane t mod lanes. The
encoder starts every lane at 2^24 and works from the last symbol to the first; the decoder starts from the encoder's
last states, reads words in the order of the symbols, and must end at 2^24 in every lane with no word left. Encoder and
decoder are inverse maps, so a list of symbols has one stream, and a stream that is accepted has one list of symbols.
A lane costs 40 bits and holds about 8 to 16 of them: `lanes_of` gives few lanes to few symbols.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farflung.compress.kernels import compiled
from farflung.core.errors import ProtocolError

Uint16 = NDArray[np.uint16]
Uint32 = NDArray[np.uint32]
Uint64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]

STATE_BITS: Final = 24  # a state's lower end
WORD_BITS: Final = 16
STATE_BYTES: Final = 5
MOST_BITS: Final = 18  # of a probability: a state then loses less than 2^-6 of a symbol's freedom
LANES: Final = 256  # at most
SPARE: Final = LANES + 2  # zeros after the words of a stream that is read: whoever reads on is told so later
SLOWER: Final = 1 << 12  # a step of all lanes takes NumPy as long as so many elements of an ordinary array

_LOW: Final = np.uint64(1 << STATE_BITS)
_TWICE: Final = np.uint64(1 << (STATE_BITS - WORD_BITS))  # below it a state takes two words
_WORD: Final = np.uint64(WORD_BITS)
_WORD_MASK: Final = np.uint64((1 << WORD_BITS) - 1)


def lanes_of(count: int, share: int) -> int:
    """Lanes of a stream of about `count` symbols: a power of two, at least 1, one for every `share` symbols."""
    lanes = 1
    while lanes < LANES and 2 * lanes * share <= count:
        lanes *= 2
    return lanes


def encode(starts: Uint32, freqs: Uint32, bits: int, lanes: int) -> bytes:
    """States (5 bytes a lane) and words (2 bytes each) of symbols given by their shares of 2^bits, shape (count,)."""
    return joined(*encoded(starts, freqs, bits, lanes))


def joined(states: Uint64, words: Uint16) -> bytes:
    """A stream's states and words as bytes."""
    return _state_bytes(states) + words.astype("<u2", copy=False).tobytes()


@compiled("ans_encode", lambda starts, freqs, bits, lanes: SLOWER // lanes * starts.size)
def encoded(starts: Uint32, freqs: Uint32, bits: int, lanes: int) -> tuple[Uint64, Uint16]:
    """The states after the first symbol, shape (lanes,), and the words in the order in which they are read."""
    wide_starts, wide_freqs = starts.astype(np.uint64), freqs.astype(np.uint64)
    limits = wide_freqs << np.uint64(STATE_BITS + WORD_BITS - bits)
    rests = np.uint64(1 << bits) - wide_freqs
    states = np.full(lanes, _LOW, np.uint64)
    parts: list[Uint16] = []
    for first in range((starts.size - 1) // lanes * lanes, -1, -lanes):
        place = slice(first, first + lanes)
        x = states[: starts.size - first]
        parts.append((_words_out if bits > WORD_BITS else _word_out)(x, limits[place]))
        whole = x // wide_freqs[place]
        whole *= rests[place]
        x += whole
        x += wide_starts[place]
    parts.reverse()
    return states, np.concatenate([np.empty(0, np.uint16), *parts])


def _word_out(x: Uint64, limits: Uint64) -> Uint16:
    """The word of each state that is too high, which then is not; with `bits` ≤ 16 no state gives two."""
    (takes,) = (x >= limits).nonzero()
    high = x[takes]
    x[takes] = high >> _WORD
    return high.astype(np.uint16)


def _words_out(x: Uint64, limits: Uint64) -> Uint16:
    """As `_word_out`, of states that may give two."""
    out = np.empty((x.size, 2), np.uint16)
    takes = np.empty((x.size, 2), np.bool_)
    for column in (1, 0):  # the word that goes out last is read first
        takes[:, column] = x >= limits
        out[:, column] = x & _WORD_MASK
        x[:] = np.where(takes[:, column], x >> _WORD, x)
    return out[takes]


class RansDecoder(NamedTuple):
    """A stream that is being read: what changes lies in arrays, so that compiled loops can go on with it.

    `words` has SPARE zeros more than the stream, so that nothing is read beyond its end; `cursor` holds the next word
    and the next symbol; symbols lie in [0, 2^bits).
    """

    states: Uint64
    words: Uint16
    cursor: Int64
    bits: int

    @classmethod
    def of(cls, data: memoryview, bits: int, lanes: int) -> RansDecoder:
        """Begins to read exactly the bytes that `encode` wrote.

        Raises ProtocolError FF-COMP-018 for a state out of range.
        """
        raw = np.zeros((lanes, 8), np.uint8)
        raw[:, :STATE_BYTES] = np.frombuffer(data[: STATE_BYTES * lanes], np.uint8).reshape(lanes, STATE_BYTES)
        states = raw.view("<u8").reshape(lanes).astype(np.uint64)
        if (states < _LOW).any():
            raise broken("a state is out of range")
        words = np.frombuffer(data[STATE_BYTES * lanes :], "<u2")
        padded = np.zeros(words.size + SPARE, np.uint16)
        padded[: words.size] = words
        return cls(states, padded, np.zeros(2, np.int64), bits)

    def close(self) -> None:
        """Raises ProtocolError FF-COMP-018 unless every word was read and every lane is where encoders start."""
        left = self.words.size - SPARE - int(self.cursor[0])
        if left:
            raise broken(f"{left} words are left")
        if (self.states != _LOW).any():
            raise broken("a lane does not end where encoders start")


def slots(states: Uint64, cursor: Int64, bits: int, count: int) -> tuple[Int64, Int64]:
    """The lanes of the next `count` ≤ lanes symbols, and where in [0, 2^bits) these lie."""
    lanes = (cursor[1] + np.arange(count)) & (states.size - 1)
    return lanes, (states[lanes] & np.uint64((1 << bits) - 1)).astype(np.int64)


def advance(states: Uint64, words: Uint16, cursor: Int64, bits: int, found: tuple[Int64, Int64, Int64, Int64]) -> bool:
    """Takes symbols off their lanes; `found`: lanes, slots, starts and shares. False when words run out."""
    lanes, slot, start, freq = found
    x = freq.astype(np.uint64) * (states[lanes] >> np.uint64(bits)) + (slot - start).astype(np.uint64)
    takes = (x < _LOW).astype(np.int64) + (x < _TWICE)
    ends = np.cumsum(takes) + cursor[0]
    if ends[-1] > words.size - SPARE:
        return False
    if ends[-1] > cursor[0]:
        at = ends - takes
        x = np.where(takes > 0, (x << _WORD) | words[at], x)
        x = np.where(takes > 1, (x << _WORD) | words[at + 1], x)
        cursor[0] = ends[-1]
    states[lanes] = x
    cursor[1] += lanes.size
    return True


def advance_block(
    states: Uint64, words: Uint16, cursor: Int64, bits: int, count: int, moves: tuple[Int64, Int64]
) -> Int64 | None:
    """As `advance`, of `count` symbols from every lane, lane 0 first: the slots of all of them, shape (count, lanes).

    `moves`: for each slot its share, and how far it lies from its share's start. `bits` ≤ 16: a state keeps 8 bits at
    least, so no lane takes two words. None when words run out.
    """
    freqs, offsets = moves
    found = np.empty((count, states.size), np.int64)
    x, end, most = states.astype(np.int64), int(cursor[0]), words.size - SPARE  # below 2^40: signed numbers hold it
    # NumPy converts a number in each operation, and an array without sides in none.
    shift, mask, low, word = map(np.asarray, (bits, (1 << bits) - 1, 1 << STATE_BITS, WORD_BITS))
    for slots in found:
        np.bitwise_and(x, mask, out=slots)
        x >>= shift
        x *= freqs.take(slots)
        x += offsets.take(slots)
        (takes,) = (x < low).nonzero()
        begin, end = end, end + takes.size
        if end > most:
            return None
        if takes.size:
            x[takes] = (x[takes] << word) | words[begin:end]
    states[:] = x.view(np.uint64)
    cursor[0] = end
    cursor[1] += found.size
    return found


def broken(cause: str) -> ProtocolError:
    """What is raised for a stream that no encoder wrote."""
    return ProtocolError("FF-COMP-018", "broken stream of symbols", cause=cause)


def _state_bytes(states: Uint64) -> bytes:
    return states.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :STATE_BYTES].tobytes()
