"""Divides the upload rate of one line among those that send over it: max-min fair, and never more than there is.

Nobody gets more than it wants while another has less than it wants; what nobody wants is spread over all, so that
whoever begins to send finds some. Who uses what it was given wants everything; who uses less than three quarters of it,
a third more than it uses: more would be kept from others, and less could not show that it wants more.

Rates are whole bytes a second. Source: Bertsekas and Gallager, Data Networks, section 6.5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

KEPT: Final = 0.95  # of a line, for its owner's sake: with TCP's and IP's headers it is 98 % of what goes out
_QUIET: Final = 8  # all that send nothing keep one part in so many, together


def kept_rate(mbit: float) -> int:
    """Bytes a second that may be sent over a line of `mbit` Mbit/s upload."""
    return max(1, int(mbit * 1e6 / 8 * KEPT))


def wanted(used: int, share: int, rate: int, count: int) -> int:
    """What one of `count` wants of `rate`, after it used `used` of its `share`."""
    if 4 * used >= 3 * share:
        return rate
    return max(-(-4 * used // 3), rate // (_QUIET * count))


def divide(rate: int, wants: Sequence[int]) -> list[int]:
    """The shares, in the order of `wants`. Their sum is at most `rate`, and less by fewer than there are shares."""
    shares, left = [0] * len(wants), rate
    for place, index in enumerate(sorted(range(len(wants)), key=wants.__getitem__)):
        shares[index] = min(wants[index], left // (len(wants) - place))
        left -= shares[index]
    spare = left // max(1, len(wants))
    return [share + spare for share in shares]
