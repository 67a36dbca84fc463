"""Writes systemd units that start a verb with the computer, for a user or for the system."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from farflung.core.io.durable_files import write_atomic
from farflung.peers.process.user_dirs import config_folder

_SYSTEM: Final = Path("/etc/systemd/system")


def user_units() -> Path:
    """Where the user's units lie."""
    return config_folder().parent / "systemd" / "user"


def installed_unit(name: str) -> tuple[str, bool] | None:
    """A unit that `write_unit` wrote before, and whether it is the user's; None: there is none."""
    for folder, is_users in ((user_units(), True), (_SYSTEM, False)):
        if (folder / f"{name}.service").is_file():
            return name, is_users
    return None


def write_unit(name: str, description: str, words: Sequence[str], folder: Path | None = None) -> list[str]:
    """Writes `name.service`, which runs `farflung` with these words; the lines that say what to type next.

    `folder`: of the unit; None: the system's for root, else the user's. Raises RunError FF-CORE-050.
    """
    is_system = folder is None and os.geteuid() == 0
    place = folder or (_SYSTEM if is_system else user_units())
    command = shlex.join([str(Path(sys.prefix) / "bin" / "farflung"), *words])
    text = f"""[Unit]
Description={description}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=10
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec=300
LimitNOFILE=16384

[Install]
WantedBy={"multi-user" if is_system else "default"}.target
"""
    place.mkdir(parents=True, exist_ok=True)
    write_atomic(place / f"{name}.service", text.encode(), "systemd.unit")
    who = "" if is_system else " --user"
    lines = [f"wrote {place / name}.service; to start it now and with the computer:"]
    lines += [f"  systemctl{who} daemon-reload && systemctl{who} enable --now {name}"]
    return lines if is_system else [*lines, "  loginctl enable-linger"]
