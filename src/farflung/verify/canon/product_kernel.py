"""Provides the compiled twin of matmul in verify.canon.tensor_kernels: importing this module imports llvmlite.

LLVM makes it directly, without numba (which brings llvmlite along): each node needs this one loop for one step, and
numba takes five times as long to load as the step's products. A tile of ROWS rows and COLUMNS columns stays in
registers while k ascends; every product and every sum is rounded by itself, as no instruction has a licence to fuse
them. Matrices are padded to whole tiles, and what comes of the padding is cut off.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from llvmlite import binding, ir

from farflung.core.tensor_layout import Float32

ROWS: Final = 4
LANES: Final = 8  # numbers in one register of most processors
COLUMNS: Final = 2 * LANES

_F32, _I64, _POINTER = ir.FloatType(), ir.IntType(64), ir.PointerType()
_LANES = ir.VectorType(_F32, LANES)


class Product:
    """The loop for one kind of processor; `cpu` and `features` as LLVM names them, empty: this machine's."""

    def __init__(self, cpu: str = "", features: str = "") -> None:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        own = cpu or binding.get_host_cpu_name(), features if cpu else binding.get_host_cpu_features().flatten()
        self._machine = binding.Target.from_default_triple().create_target_machine(*own, opt=3)
        self._module = binding.parse_assembly(str(_module()))
        options = binding.create_pipeline_tuning_options(speed_level=2)
        builder = binding.create_pass_builder(self._machine, options)
        builder.getModulePassManager().run(self._module, builder)
        self._engine = binding.create_mcjit_compiler(self._module, self._machine)
        self._engine.finalize_object()
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)  # other threads go on
        self._call = kind(self._engine.get_function_address("product"))

    def inspect_asm(self) -> dict[str, str]:
        """The machine code by the function's name, as numba's loops tell it."""
        return {"product": str(self._machine.emit_assembly(self._module))}

    def __call__(self, left: Float32, right: Float32) -> Float32:
        """Twin of tensor_kernels.matmul."""
        batches, rows, inner = left.shape
        columns = right.shape[2]
        tall, wide = -(-rows // ROWS), -(-columns // COLUMNS)
        left = _padded(left, tall * ROWS, inner)
        panels = _padded(right, inner, wide * COLUMNS).reshape(batches, inner, wide, COLUMNS)
        panels = np.ascontiguousarray(panels.transpose(0, 2, 1, 3))
        out = np.empty((batches, tall * ROWS, wide * COLUMNS), np.float32)
        for batch in range(batches):
            places = (each[batch].ctypes.data for each in (out, left, panels))
            self._call(*places, tall, inner, wide)
        return np.ascontiguousarray(out[:, :rows, :columns])


def _padded(matrices: Float32, rows: int, columns: int) -> Float32:
    more = [(0, 0), (0, rows - matrices.shape[1]), (0, columns - matrices.shape[2])]
    return np.ascontiguousarray(np.pad(matrices, more) if any(map(any, more)) else matrices)


def _module() -> ir.Module:
    """product(out, left, panels, tiles of rows, inner, tiles of columns): one matrix, whole tiles."""
    module = ir.Module()
    module.triple = binding.get_default_triple()
    kind = ir.FunctionType(ir.VoidType(), [_POINTER] * 3 + [_I64] * 3)
    function = ir.Function(module, kind, "product")
    b = ir.IRBuilder(function.append_basic_block())
    out, left, panels, tall, inner, wide = function.args
    for each in (out, left, panels):
        each.add_attribute("noalias")
    width, panel = b.mul(wide, _I64(COLUMNS)), b.mul(inner, _I64(COLUMNS))
    # A panel of `right` is gone through by all rows while it is in the processor's cache.
    with _counted(b, wide) as column, _counted(b, tall) as row:
        first = b.gep(left, [b.mul(b.mul(row, _I64(ROWS)), inner)], source_etype=_F32)
        sums = _tile(b, first, b.gep(panels, [b.mul(column, panel)], source_etype=_F32), inner)
        for index, line in enumerate(sums):
            start = b.add(b.mul(b.add(b.mul(row, _I64(ROWS)), _I64(index)), width), b.mul(column, _I64(COLUMNS)))
            for lanes, held in enumerate(line):
                place = b.gep(out, [b.add(start, _I64(lanes * LANES))], source_etype=_F32)
                b.store(b.load(held, typ=_LANES), place, align=4)
    b.ret_void()
    return module


def _tile(b: Any, left: Any, right: Any, inner: Any) -> list[list[Any]]:
    """Where the sums of a tile are: from +0.0, with k ascending."""
    with b.goto_entry_block():
        sums = [[b.alloca(_LANES) for _ in range(COLUMNS // LANES)] for _ in range(ROWS)]
    for held in (each for line in sums for each in line):
        b.store(ir.Constant(_LANES, [0.0] * LANES), held)
    with _counted(b, inner) as k:
        line = b.gep(right, [b.mul(k, _I64(COLUMNS))], source_etype=_F32)
        places = [b.gep(line, [_I64(at)], source_etype=_F32) for at in range(0, COLUMNS, LANES)]
        factors = [b.load(place, typ=_LANES, align=4) for place in places]
        for index, row in enumerate(sums):
            place = b.gep(left, [b.add(b.mul(_I64(index), inner), k)], source_etype=_F32)
            one = b.insert_element(ir.Constant(_LANES, ir.Undefined), b.load(place, typ=_F32, align=4), _I64(0))
            all_lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            splat = b.shuffle_vector(one, ir.Constant(_LANES, ir.Undefined), all_lanes)
            for held, factor in zip(row, factors, strict=True):
                b.store(b.fadd(b.load(held, typ=_LANES), b.fmul(splat, factor)), held)
    return sums


@contextmanager
def _counted(b: Any, stop: Any) -> Iterator[Any]:
    """A loop from 0 until `stop`; yields its number."""
    with b.goto_entry_block():
        held = b.alloca(_I64)
    b.store(_I64(0), held)
    head, body, after = (b.append_basic_block() for _ in range(3))
    b.branch(head)
    b.position_at_end(head)
    at = b.load(held, typ=_I64)
    b.cbranch(b.icmp_signed("<", at, stop), body, after)
    b.position_at_end(body)
    yield at
    b.store(b.add(at, _I64(1)), held)
    b.branch(head)
    b.position_at_end(after)


def load(_cache: str) -> dict[str, Any]:
    """The loop, compiled and run: it takes less time than to keep it. Raises what LLVM raises where it cannot."""
    product, one = Product(), np.ones((1, 1, 1), np.float32)
    if product(one, one)[0, 0, 0] != one[0, 0, 0]:
        raise RuntimeError("the compiler is broken")
    return {"matmul": product}
