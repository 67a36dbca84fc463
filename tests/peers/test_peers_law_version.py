"""Under a law that this farflung does not know a client signs nothing, a seat does not begin, and nobody moves it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from farflung.app.cli import network_upgrade
from farflung.app.cli.ledger_motion import law as law_command
from farflung.core.crypto import local_key
from farflung.core.errors import RunError, UsageError
from farflung.core.release import LAW
from farflung.ledger.block import Genesis
from farflung.ledger.motions import AdoptLaw, Motion
from farflung.ledger.params import LedgerParams
from farflung.ledger.transactions import Transfer
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient, serve_nothing
from farflung.peers.ledger_client.connect import reaches_of
from farflung.peers.validator.service import ValidatorConfig, ValidatorService

SEAT, PAYER = (local_key(73, name) for name in ("seat", "payer"))
NEWER = LAW + 1


def test_a_client_and_a_seat_of_an_older_program_stop_and_say_which_law_they_lack(tmp_path: Path) -> None:
    genesis = Genesis(
        "law",
        int(time.time() * 1000) - 1000,
        ((SEAT.public, 10**9), (PAYER.public, 10**9)),
        (SEAT.public,),
        LedgerParams(epoch_blocks=1),
    )
    config = ValidatorConfig(SEAT, genesis, tmp_path)

    async def whole() -> None:
        service = ValidatorService(config, ByteCounter(), lambda: None)
        service.chain.law = NEWER  # the seat's program is a newer one
        endpoint = Endpoint(PAYER, serve_nothing, ByteCounter())
        try:
            host, port = await service.open({})
            reaches = reaches_of([(SEAT.public, host, port)], endpoint)
            operator, payer = (LedgerClient(reaches, key, genesis) for key in (SEAT, PAYER))
            await payer.submit(Transfer(SEAT.public, 1))
            assert await payer.law() == LAW
            await operator.submit(Motion(AdoptLaw(NEWER), service.chain.state.time + 60_000))
            height = service.chain.head.height
            with pytest.raises(RunError, match="FF-LEDG-270") as refused:
                await payer.submit(Transfer(SEAT.public, 1))
            assert f"law {NEWER} holds from block {height + 1} on" in refused.value.cause
            assert service.chain.head.height == height  # nothing was signed
            assert await LedgerClient(reaches, PAYER, genesis).law() == NEWER  # reading goes on
        finally:
            await endpoint.close()
            await service.close()
        with pytest.raises(RunError, match="FF-LEDG-270"):
            ValidatorService(config, ByteCounter(), lambda: None)

    asyncio.run(whole())


def test_nobody_moves_a_law_that_the_installed_program_does_not_know() -> None:
    ended = CliRunner().invoke(law_command, [str(NEWER)])
    assert isinstance(ended.exception, UsageError)
    assert ended.exception.code == "FF-APP-720"
    assert "network upgrade" in ended.exception.hint


@pytest.mark.parametrize(("held", "known", "told"), [(0, 1, ""), (1, 1, "1 holds, and this"), (1, 2, "motion law 2")])
def test_an_upgrade_says_which_law_holds_and_how_the_next_one_begins(held: int, known: int, told: str) -> None:
    lines = network_upgrade.law_lines(held, known)
    assert told in "\n".join(lines)
    assert bool(lines) == bool(held)
