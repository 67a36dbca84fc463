"""Refuses a job that this computer cannot run, before anything is started: a plan and a run ask the same questions.

The job's values are checked where it is loaded, price and memory by its plan. Here are the run that it starts from,
the requester's port and the disk.
"""

from __future__ import annotations

import socket
from pathlib import Path

from farflung.core.errors import NetworkError, PolicyError
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Bytes, format_bytes
from farflung.host.io.machine_probe import disk_bytes
from farflung.job import terms_file
from farflung.job.spec import JobSpec
from farflung.local.jobs import base_run
from farflung.net.io.listen_errors import cannot_listen
from farflung.peers.network.published_model import PREFIX, query_of
from farflung.peers.rundir.bounded_read import read_file
from farflung.plan.run_disk import least_disk

LOOPBACK = "127.0.0.1"
SECONDS = 5.0  # for this computer to answer itself


def check(spec: JobSpec, base: Path, root: Path, layout: TensorLayout | None, dataset_bytes: int) -> None:
    """`base`: where the job's relative paths start; `root`: where the run's folder will be; `layout`: None while it is
    unknown.

    Raises SpecError FF-APP-350 (no run to start from), FF-APP-352 (its tensors do not fit), VersionError FF-CORE-095
    (another farflung wrote it), NetworkError FF-NET-040, FF-NET-041 (port), FF-APP-489 (no loopback), PolicyError
    FF-APP-495 (disk).
    """
    check_loopback()
    if spec.model.start:
        check_start(spec, base, layout)
    if spec.network.port:
        check_port(spec.network.port)
    if layout is not None:
        check_disk(root, least_disk(spec, layout, dataset_bytes))


def check_start(spec: JobSpec, base: Path, layout: TensorLayout | None) -> None:
    """Whether the run that `model.start` names is there, and has the tensors of this model.

    Of a published model (`net:NAME`) only its name is checked: it is fetched when the run begins.
    """
    if spec.model.start.startswith(PREFIX):
        query_of(spec.model.start)
        return
    parent = base_run.find_exported(spec.model.start, base)
    terms = terms_file.read(read_file(parent.export / "terms.bin", terms_file.BYTES))
    if layout is not None:
        base_run.check_layout(layout, terms.layout)


def check_loopback(host: str = LOOPBACK) -> None:
    """Whether processes of this computer reach each other."""
    try:
        with socket.create_server((host, 0)) as server:
            socket.create_connection(server.getsockname(), SECONDS).close()
    except OSError as error:
        raise NetworkError(
            "FF-APP-489",
            f"processes of this computer cannot reach each other at {host}",
            cause=error.strerror or str(error),
            hint="bring the loopback interface up (Linux: `ip link set lo up`); `farflung check` tests it",
        ) from error


def check_port(port: int) -> None:
    """Whether the requester can listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError as error:
            raise cannot_listen(LOOPBACK, port, error) from error


def check_disk(root: Path, need: Bytes) -> None:
    """Whether the run's folder has room for what the run holds at least."""
    free = disk_bytes(root.absolute())
    if free < need:
        raise PolicyError(
            "FF-APP-495",
            f"the run needs {format_bytes(need)} of disk at least, {format_bytes(free)} are free in {root}",
            cause="the data, public states and what providers keep until a lease ends lie in the run's folder",
            hint="farflung run --out FOLDER, on a disk with more room; or a smaller model, or less data",
        )
