"""The command, whose runs end without a report: drawing one takes a second of a processor.

Of what a report shows: tests/app/test_app_views_report_page.py. That a run leaves one: test_app_screen.py.
"""

from __future__ import annotations

from farflung.app.cli.main import main
from farflung.app.views import report_page
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import EventEmitter


def keep(_folder: RunFolder, _journal: EventEmitter) -> None:
    """Draws nothing."""


report_page.keep = keep

if __name__ == "__main__":
    main()
