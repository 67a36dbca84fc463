"""The sync methods for your own training loop (farflung.app.sync), under the name that people import."""

from farflung.app.sync.base import Synchroniser
from farflung.app.sync.book import Peer, new_key, unsafe_key
from farflung.app.sync.demo import DeMo
from farflung.app.sync.hooks import GradientSync, compress_islands, ddp_hook
from farflung.app.sync.mesh import Mesh, connect
from farflung.app.sync.methods import DGC, DiLoCo, LocalSGD, MuLoCo, PowerSGD, SparseLoCo
from farflung.app.sync.muon import Muon
from farflung.app.sync.report import RoundReport

__all__ = [
    "DGC",
    "DeMo",
    "DiLoCo",
    "GradientSync",
    "LocalSGD",
    "Mesh",
    "MuLoCo",
    "Muon",
    "Peer",
    "PowerSGD",
    "RoundReport",
    "SparseLoCo",
    "Synchroniser",
    "compress_islands",
    "connect",
    "ddp_hook",
    "new_key",
    "unsafe_key",
]
