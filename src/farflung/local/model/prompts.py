"""Converts prompts into tokens that the model can read, and its tokens into text that is safe to print."""

from __future__ import annotations

import codecs
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

from farflung.core import limits
from farflung.core.errors import PolicyError, UsageError
from farflung.local.model.load import SavedModel

PROMPT_BYTES: Final = 64 * limits.KIB
START: Final = "\n"  # what an empty prompt stands for: text begins after a line's end
_KEPT: Final = "\n\t"
_JOINERS: Final = "\u200c\u200d"  # parts of words and of emoji
_PICTURES: Final = 0x2400  # visible pictures of the control characters


def harmless(text: str) -> str:
    """Text that a terminal only shows: controls become their pictures, marks that turn text around become U+FFFD."""

    def shown(char: str) -> str:
        if char in _KEPT or char in _JOINERS or unicodedata.category(char) not in ("Cc", "Cf", "Co", "Cs"):
            return char
        code = ord(char)
        return chr(_PICTURES + code) if code < 32 else "\u2421" if code == 127 else "\ufffd"

    return "".join(map(shown, text))


def as_text(tokens: Iterable[int]) -> Iterator[str]:
    """Bytes as harmless text, each character as soon as it is whole."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        yield harmless(decoder.decode(bytes([token])))
    yield harmless(decoder.decode(b"", final=True))


def prompt_tokens(text: str, held: SavedModel) -> tuple[int, ...]:
    """A prompt as tokens. Raises UsageError FF-APP-171, PolicyError FF-APP-172."""
    if held.card.tokens != "bytes":
        raise PolicyError(
            "FF-APP-172",
            "this model outputs token IDs, not text",
            cause="it was trained on token IDs from a .npy or .safetensors file; decode them with your tokenizer",
            hint="farflung export --format hf, and use it with the tokenizer that made the tokens",
        )
    data = (text or START).encode("utf-8", "surrogateescape")
    if len(data) > PROMPT_BYTES:
        raise UsageError(
            "FF-APP-171",
            f"the prompt is too long: {len(data)} bytes",
            cause=f"a prompt has at most {PROMPT_BYTES} bytes, and the model sees the last {held.card.context}",
            hint="give its end only",
        )
    if max(data) >= held.card.vocabulary:
        raise UsageError(
            "FF-APP-171",
            f"the prompt has a byte {max(data)} that the model does not know",
            cause=f"its vocabulary ends at {held.card.vocabulary - 1}",
            hint="write the prompt without that character",
        )
    if len(data) > held.card.context:
        sys.stderr.write(f"note: the model sees the last {held.card.context} of the prompt's {len(data)} bytes\n")
    return tuple(data)
