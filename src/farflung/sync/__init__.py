"""Exports the sync methods for a user's own training loop under the name that people import."""

from farflung.sync.address_book import Peer, new_key, unsafe_key
from farflung.sync.ddp_hooks import GradientSync, compress_islands, ddp_hook
from farflung.sync.demo import DeMo
from farflung.sync.mesh_group import Mesh, connect
from farflung.sync.methods import DGC, DiLoCo, LocalSGD, MuLoCo, PowerSGD, SparseLoCo
from farflung.sync.muon import Muon
from farflung.sync.round_report import RoundReport
from farflung.sync.synchronizer import Synchroniser

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
