"""Provides hashes, keys, signatures and sealing.

Each use has its own namespace, so that no byte string serves twice.

Hash: BLAKE3-256. Signatures: Ed25519 (RFC 8032), judged everywhere under the ZIP-215 rules by one library
(ed25519-zebra): libraries differ in the edge cases, and a ledger that mixes them splits.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

import ed25519_zebra
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from farflung.core.errors import VerificationError
from farflung.core.ids import ID_BYTES, SIGNATURE_BYTES, Hash, PeerId, Signature
from farflung.core.mapped_pages import walked

# Namespaces. One line each; a new use gets a new line.
NS_TX: Final = "farflung/tx/1"
NS_TX_ID: Final = "farflung/tx-id/1"
NS_HEADER: Final = "farflung/header/1"
NS_GENESIS: Final = "farflung/genesis/1"
NS_TABLES: Final = "farflung/tables/1"
NS_VOTE: Final = "farflung/vote/1"
NS_SEAT: Final = "farflung/seat/1"
NS_MOTION: Final = "farflung/motion/1"
NS_LAW: Final = "farflung/law/1"
NS_OFFER: Final = "farflung/offer/1"
NS_TURN: Final = "farflung/turn/1"
NS_CAPABILITIES: Final = "farflung/capabilities/1"
NS_ENDPOINT: Final = "farflung/endpoint/1"
NS_COORDINATOR: Final = "farflung/coordinator/1"
NS_LEAVING: Final = "farflung/leaving/1"
NS_ADVERTISEMENT: Final = "farflung/advertisement/1"
NS_NODE_OWNER: Final = "farflung/node-owner/1"
NS_SLOT_KEY: Final = "farflung/slot-key/1"
NS_SPEC: Final = "farflung/spec/1"
NS_LAYOUT: Final = "farflung/layout/1"
NS_TENSOR_CHUNK: Final = "farflung/tensor-chunk/1"
NS_STATE: Final = "farflung/public-state/1"
NS_PAYLOAD: Final = "farflung/payload/1"
NS_COMMITMENT: Final = "farflung/commitment/1"
NS_PLANTED: Final = "farflung/planted/1"
NS_CANARY: Final = "farflung/canary/1"
NS_NONCE: Final = "farflung/nonce/1"
NS_LOG: Final = "farflung/run-log/1"
NS_ROUND_ROOT: Final = "farflung/round-root/1"
NS_ACK: Final = "farflung/ack/1"
NS_OBJECT: Final = "farflung/object/1"
NS_MANIFEST: Final = "farflung/manifest/1"
NS_CHUNK: Final = "farflung/chunk/1"
NS_OBJECT_KEY: Final = "farflung/object-key/1"
NS_JOB_KEY: Final = "farflung/job-key/1"
NS_DATA_ORDER: Final = "farflung/data-order/1"
NS_DATA_SPLIT: Final = "farflung/data-split/1"
NS_QUERY: Final = "farflung/query/1"
NS_SECTIONS: Final = "farflung/sections/1"
NS_LOCAL_KEY: Final = "farflung/local-key/1"
NS_OUTPUT: Final = "farflung/output/1"
NS_DRAW: Final = "farflung/draw/1"
NS_REEXECUTION: Final = "farflung/reexecution/1"
NS_TRIAL: Final = "farflung/trial/1"
NS_AUDIT: Final = "farflung/audit/1"
NS_SCORES: Final = "farflung/scores/1"
NS_SIMULATION: Final = "farflung/simulation/1"
NS_VERDICT: Final = "farflung/verdict/1"
NS_EVIDENCE: Final = "farflung/evidence/1"
NS_ATTESTATION: Final = "farflung/attestation/1"
NS_IMAGE: Final = "farflung/image/1"
NS_TAMPERING: Final = "farflung/tampering/1"
NS_TALLY: Final = "farflung/tally/1"
NS_ATTEST: Final = "farflung/attest/1"
NS_TICKET: Final = "farflung/ticket/1"
NS_TOLL: Final = "farflung/pass/1"
NS_RECEIPT: Final = "farflung/receipt/1"
NS_NODE_KEY: Final = "farflung/node-key/1"
NS_GROUP: Final = "farflung/group/1"
NS_ROSTER: Final = "farflung/roster/1"
NS_FAN_JOIN: Final = "farflung/fan-join/1"
NS_GROUP_KEY: Final = "farflung/group-key/1"
NS_STREAM_KEY: Final = "farflung/stream-key/1"
NS_LEASE_KEY: Final = "farflung/lease-key/1"
NS_SHARD_OWNER: Final = "farflung/shard-owner/1"
NS_STORED: Final = "farflung/stored/1"
NS_VOTE_LOG: Final = "farflung/vote-log/1"
NS_GRAPH: Final = "farflung/graph/1"
NS_TERMS: Final = "farflung/terms/1"
NS_TRACED: Final = "farflung/traced/1"
NS_TILE: Final = "farflung/tile/1"
NS_TILES: Final = "farflung/tiles/1"
NS_BRIEF: Final = "farflung/brief/1"
NS_INVITATION: Final = "farflung/invitation/1"
NS_NETWORK_CARD: Final = "farflung/network-card/2"
NS_MODEL_RECORD: Final = "farflung/model-record/1"
NS_GRANT: Final = "farflung/grant/1"
NS_LEAF: Final = "farflung/merkle-leaf/1"
NS_NODE: Final = "farflung/merkle-node/1"
NS_ROOT: Final = "farflung/merkle-root/1"

# Up to here parts are copied into one piece: given one by one, a chunk of 16 KiB takes BLAKE3 twice as long.
JOINED_BYTES: Final = 1 << 18


def digest(namespace: str, *parts: bytes | memoryview) -> Hash:
    """BLAKE3-256 over the namespace and length-prefixed parts: no two part lists share a preimage."""
    pieces: list[bytes | memoryview] = [namespace.encode(), b"\0"]
    for part in parts:
        pieces += (len(part).to_bytes(8, "little"), part)
    if sum(map(len, pieces)) <= JOINED_BYTES:
        return Hash(blake3(b"".join(pieces)).digest())
    hasher = blake3()
    for piece in pieces:
        for part in walked(piece):
            hasher.update(part)
    return Hash(hasher.digest())


class PieceDigest:
    """`digest` of one part, whose `size` is known, and which comes piece by piece."""

    def __init__(self, namespace: str, size: int) -> None:
        self._hasher = blake3(namespace.encode() + b"\0" + size.to_bytes(8, "little"))

    def update(self, piece: bytes | memoryview) -> None:
        """The next piece."""
        for part in walked(piece):
            self._hasher.update(part)

    def value(self) -> Hash:
        """The hash, when all pieces have come."""
        return Hash(self._hasher.digest())


def digests(namespace: str, parts: Iterable[bytes | memoryview]) -> list[Hash]:
    """`digest` of each part alone; for many small ones."""
    space = namespace.encode() + b"\0"
    return [Hash(blake3(b"".join((space, len(p).to_bytes(8, "little"), p))).digest()) for p in parts]


def derive(namespace: str, secret: bytes, *parts: bytes, length: int = 32, seek: int = 0) -> bytes:
    """Bytes that only the holder of a 32-byte `secret` can compute (keyed BLAKE3 as an extendable PRF).

    `length` of them, from number `seek` on.
    """
    hasher = blake3(namespace.encode() + b"\0", key=secret)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little") + part)
    return hasher.digest(length, seek=seek)


class SigningKey:
    """An Ed25519 key pair. `repr` never shows the secret."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != ID_BYTES:
            raise ValueError("an Ed25519 seed has 32 bytes")
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self._seed = seed
        self.public = PeerId(self._private.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public.hex()[:8]})"

    @property
    def seed(self) -> bytes:
        """The secret itself: for handing a local network's key to the one process that acts for it."""
        return self._seed

    @property
    def private(self) -> Ed25519PrivateKey:
        """The library's own key object, for TLS certificates."""
        return self._private

    def sign(self, namespace: str, *parts: bytes) -> Signature:
        """Signs the digest of `parts` under `namespace`."""
        return Signature(self._private.sign(digest(namespace, *parts)))

    def secret(self, namespace: str, *parts: bytes) -> bytes:
        """32 bytes that only this key's holder can derive, for nonces that must survive a crash."""
        return derive(namespace, self._seed, *parts)


def is_signed(public: bytes, signature: bytes, namespace: str, *parts: bytes) -> bool:
    """Whether `signature` is `public`'s over `parts` under `namespace` (ZIP-215)."""
    if len(public) != ID_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        return bool(ed25519_zebra.ed_verify(signature, digest(namespace, *parts), public))
    except (ValueError, TypeError):
        return False


_P: Final = 2**255 - 19  # of the field of edwards25519 (RFC 8032, section 5.1), as its _D
_D: Final = -121665 * pow(121666, -1, _P) % _P


def is_small_order(public: bytes) -> bool:
    """Whether a key is one of the 8 points whose order divides 8, in any encoding that ZIP-215 reads.

    One signature can fit many messages under such a key: anybody signs for it. It is refused where a key is taken on.
    """
    return len(public) == ID_BYTES and int.from_bytes(public, "little") % 2**255 % _P in _small_orders()


@cache
def _small_orders() -> frozenset[int]:
    """The y of these points; each of the two signs of x, and y + p where it fits, encodes one of them.

    Doubling (x, y) gives y' = (y^2 + x^2) / (1 - d x^2 y^2). Orders 1, 2 and 4: y = 1, -1, 0. Order 8: y' = 0, hence
    x^2 = -y^2, and with the curve's -x^2 + y^2 = 1 + d x^2 y^2: d y^4 + 2 y^2 - 1 = 0.
    """
    half = _root(1 + _D)
    squares = [(sign * half - 1) * pow(_D, -1, _P) % _P for sign in (1, -1) if half is not None]
    eighths = [root for square in squares if (root := _root(square)) is not None]
    return frozenset({0, 1, _P - 1, *eighths, *(_P - root for root in eighths)})


def _root(square: int) -> int | None:
    """A square root modulo p, or None (RFC 8032, section 5.1.3: p = 5 modulo 8)."""
    root = pow(square, (_P + 3) // 8, _P)
    for candidate in (root, root * pow(2, (_P - 1) // 4, _P) % _P):
        if candidate * candidate % _P == square % _P:
            return candidate
    return None


def check_signed(public: bytes, signature: bytes, namespace: str, *parts: bytes) -> None:
    """Raises VerificationError FF-CORE-030 unless `is_signed`."""
    if not is_signed(public, signature, namespace, *parts):
        raise VerificationError(
            "FF-CORE-030",
            "wrong signature",
            cause=f"{namespace} is not signed by {public[:4].hex()}",
            hint="ask the sender for a fresh copy; if it fails again the sender is not who it claims to be",
        )


def local_key(seed: int, role: str, index: int = 0) -> SigningKey:
    """A key of a *local* network, from the run's seed: reproducible and therefore unsafe anywhere else."""
    return SigningKey(digest(NS_LOCAL_KEY, seed.to_bytes(8, "little"), role.encode(), index.to_bytes(4, "little")))
