"""Keeps the account of the person who uses this computer, and derives the keys of its nodes from it."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from farflung.core.crypto import NS_SLOT_KEY, SigningKey
from farflung.core.ids import Hash
from farflung.peers.keys.files import is_there, new_account, read_account
from farflung.peers.process.user_dirs import state_folder


def account_file() -> Path:
    """Where the person's account lies."""
    return state_folder() / "account.key"


def chosen_account(file: Path | None) -> SigningKey:
    """The account in a file that the person names, or this computer's own. Raises what `read_account` raises."""
    return own_account() if file is None else read_account(file)


def own_account(path: Path | None = None) -> SigningKey:
    """The person's account, or the one in the file `path`; made, at random, where there is none yet.

    Two processes that make it at the same moment end with the same one. Raises what `read_account` raises, RunError
    FF-CORE-050.
    """
    file = path or account_file()
    if not is_there(file):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}.new")
        try:
            new_account(draft)
            with contextlib.suppress(FileExistsError):
                os.link(draft, file)
        finally:
            draft.unlink(missing_ok=True)
    return read_account(file)


def slot_key(account: SigningKey, chain: Hash, role: str, slot: int) -> SigningKey:
    """The key of one of the account's nodes, which follows from the account's: a copy of that brings all of them back.

    `role`: `lend` or `audit`. Each network has keys of its own, since a key is in one place at a relay.
    """
    return SigningKey(account.secret(NS_SLOT_KEY, chain, role.encode(), slot.to_bytes(2, "little")))
