"""Every kind of synchronisation as changes to a small job: what engines and audits are tested with."""

from farflung.job.job_loader import load as load_job
from farflung.job.spec import OptimizerSpec, SyncSpec

GRADIENT = OptimizerSpec(name="gradient", lr=1e-2)


def _sync(method: str, key: str, value: str) -> SyncSpec:
    return load_job(None, flags={"sync.method": method, key: value}).spec.sync


METHODS = [
    {},
    {"optimizer": OptimizerSpec(name="sgd", lr=0.1)},
    {"sync": SyncSpec(method="diloco", codec="dense", steps=5, outer_lr=0.7, outer_momentum=0.9)},
    {"sync": SyncSpec(method="diloco", codec="dense", value_bits=32, steps=2)},
    {"sync": SyncSpec("sparse_loco", 3, "topk", topk=32, chunk=256, fragments=3)},
    {"sync": SyncSpec("muloco", 3, delay=1)},
    {"sync": _sync("demo", "sync.chunk", "256"), "optimizer": GRADIENT},
    {"sync": _sync("dgc", "sync.chunk", "256"), "optimizer": GRADIENT},
    {"sync": _sync("powersgd", "sync.rank", "2"), "optimizer": GRADIENT},
]
