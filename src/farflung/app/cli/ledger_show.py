"""Implements `ledger show`: prints a job, node, transaction or block after checking its proofs locally."""

from __future__ import annotations

import sys

import click
import msgspec

from farflung.app.cli.network_client import ON_LEDGER, source_of
from farflung.app.cli.receipt import hash_of
from farflung.app.explorer.lookup import place_of
from farflung.app.explorer.proofs import ProofChecker
from farflung.app.explorer.screens import facts, screen
from farflung.app.views.terminal import is_screen, print_rows, size_of
from farflung.core.ids import Hash

_COLUMNS = 120  # on a pipe, and at most on a terminal


@click.command(
    epilog="Example: farflung ledger show 3f9a --from http://127.0.0.1:7780",
    short_help="Show a job, node, transaction or block, its proofs checked.",
)
@click.argument("what", metavar="WHAT")
@click.option(
    "--from", "source", metavar="PLACE", help="A run, a ledger's file, an export, or a URL. Default: the newest run."
)
@ON_LEDGER
@click.option("--genesis", metavar="HASH", callback=hash_of, help="The ledger's genesis, known from elsewhere.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def show(what: str, source: str | None, on: str | None, genesis: Hash | None, as_json: bool) -> None:
    """Show what a ledger says of WHAT, once its proofs are checked here.

    WHAT: the id of a job or a transaction, the key of a node or an account, or the first
    digits of one (4 at least); a block's number; or head, validators, params.
    """
    held = source_of(source, on)
    checker = ProofChecker(held, genesis)
    place = place_of(held, what)
    if as_json:
        sys.stdout.write(msgspec.json.encode(facts(checker, place)).decode() + "\n")
        return
    columns = min(_COLUMNS, size_of(sys.stdout)[0]) if is_screen(sys.stdout) else _COLUMNS
    print_rows(screen(checker, place, columns), sys.stdout)
