"""Gives OpenSSL a private key: Python's `ssl` reads keys from files only, so the file is one in memory.

On Linux a memfd is written once a process and key (no name, gone with the process). Elsewhere a private temporary
file exists for the duration of each load.
"""

from __future__ import annotations

import os
import ssl
import tempfile

from farflung.core.crypto import SigningKey
from farflung.net.certificates import Credential, credential_of
from farflung.net.tls_identity import certificate, pem


class FileTlsCredentials:
    """A node key that `TlsSession` can prove. Implements `TlsCredentials`; `repr` shows nothing secret."""

    def __init__(self, own: SigningKey | Credential) -> None:
        self._own = credential_of(own)
        self.certificate = certificate(self._own)
        self._memory = _memory_file(pem(self._own))

    def load(self, context: ssl.SSLContext) -> None:
        """Loads certificate and key into `context`."""
        if self._memory is not None:
            context.load_cert_chain(f"/proc/self/fd/{self._memory}")
            return
        file, path = tempfile.mkstemp(prefix="farflung-")  # mode 0600
        try:
            with os.fdopen(file, "wb") as handle:
                handle.write(pem(self._own))
            context.load_cert_chain(path)
        finally:
            os.unlink(path)

    def close(self) -> None:
        """Forgets the file in memory; a handshake that comes to it late goes through a file on the disk."""
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    def __repr__(self) -> str:
        return f"FileCredentials({self._own.node!r})"


def _memory_file(data: bytes) -> int | None:
    """A descriptor of an unnamed file in memory holding `data`; None where the system has none."""
    if not hasattr(os, "memfd_create") or not os.path.isdir("/proc/self/fd"):
        return None
    file = os.memfd_create("farflung", os.MFD_CLOEXEC)
    os.write(file, data)
    return file
