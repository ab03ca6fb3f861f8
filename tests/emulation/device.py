# SPDX-License-Identifier: Apache-2.0
"""
A chip's memory and command queue, as far as an address can tell.

Memory is one array; a tensor is an address in it. Freed ranges are given out again, lowest first,
with whatever they hold; memory that was never written is NaN. A trace is a list of ops bound to
addresses: replaying it reads and writes whatever lives there now. So a buffer that was allocated
where a trace writes, a stale view or a forgotten refresh gives a wrong number here, as it does on
silicon.
"""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
import itertools
import weakref

import torch

ALIGNMENT = 1024
N_BANKS = 12
BYTES = {'FLOAT32': 4.0, 'BFLOAT16': 2.0, 'BFLOAT8_B': 1.0625, 'BFLOAT4_B': 0.5625}
TRACE_BYTES_PER_OP = 4096


class Buffer:
    """A range of device memory; freed once, by hand or with its last owner."""

    def __init__(self, device: 'Device', address: int, size: int, n_bytes: int) -> None:
        self.device = device
        self.address = address
        self.size = size
        self.n_bytes = n_bytes
        self._free = weakref.finalize(self, device.free, address)

    @property
    def is_allocated(self) -> bool:
        return self._free.alive

    def free(self) -> None:
        self._free()


@dataclass
class Trace:
    """Recorded ops, and whether recording has ended."""

    ops: list[Callable[[], None]] = field(default_factory=list)
    is_complete: bool = False


@dataclass(frozen=True)
class GridSize:
    x: int
    y: int


class Device:
    """One emulated chip."""

    def __init__(self, trace_region_bytes: int = 1 << 30, grid: tuple[int, int] = (8, 8)) -> None:
        self.memory = torch.full((0,), torch.nan)
        self.live: dict[int, tuple[int, int]] = {}
        """(elements, bytes) by address."""
        self.traces: dict[int, Trace] = {}
        self.recording: Trace | None = None
        self.programs: set[object] = set()
        self.trace_region_bytes = trace_region_bytes
        self.is_open = True
        self.n_allocations = 0
        self.n_program_misses = 0
        self.n_replays = 0
        self.op_log: list[str] = []
        self.before_op: Callable[[str], None] = lambda name: None
        """For tests: sees every op as it is issued, and may raise."""
        self.after_replay: Callable[[], None] = lambda: None
        self._grid = GridSize(*grid)
        self._ids = itertools.count()

    def compute_with_storage_grid_size(self) -> GridSize:
        return self._grid

    def arch(self) -> str:
        return 'emulated'

    def allocate(self, size: int, dtype: str) -> Buffer:
        self.require_open()
        size = -(-size // ALIGNMENT) * ALIGNMENT
        address = self._lowest_gap(size)
        if address + size > len(self.memory):
            self._grow(max(address + size, 2 * len(self.memory)))
        n_bytes = round(size * BYTES[dtype])
        self.live[address] = (size, n_bytes)
        self.n_allocations += 1
        return Buffer(self, address, size, n_bytes)

    def free(self, address: int) -> None:
        self.live.pop(address, None)

    @property
    def n_bytes_in_use(self) -> int:
        return sum(n_bytes for _, n_bytes in self.live.values())

    def issue(self, name: str, program: object, op: Callable[[], None]) -> None:
        """Run an op now, or record it for later; its program must exist by then."""
        self.require_open()
        self.before_op(name)
        if (name, program) not in self.programs:
            if self.recording is not None:
                raise RuntimeError(f'TT_FATAL: {name}: writes are not supported during capture')
            self.programs.add((name, program))
            self.n_program_misses += 1
        if self.recording is not None:
            self.recording.ops.append(op)
            return
        self.op_log.append(name)
        op()

    def require_host_access(self, what: str) -> None:
        self.require_open()
        if self.recording is not None:
            raise RuntimeError(f'TT_FATAL: {what} is not supported during trace capture')

    def begin_trace(self) -> int:
        self.require_host_access('begin_trace_capture')
        trace_id = next(self._ids)
        self.recording = self.traces[trace_id] = Trace()
        return trace_id

    def end_trace(self, trace_id: int) -> None:
        if self.recording is None or self.recording is not self.traces.get(trace_id):
            raise RuntimeError('TT_FATAL: no such capture is under way')
        n_bytes = TRACE_BYTES_PER_OP * len(self.recording.ops)
        if n_bytes > self.trace_region_bytes:
            raise RuntimeError(
                f'TT_FATAL: Creating trace buffers of size {n_bytes}B on device 0, but only '
                f'{self.trace_region_bytes}B is allocated for trace region.'
            )
        self.recording.is_complete = True
        self.recording = None

    def execute_trace(self, trace_id: int) -> None:
        self.require_host_access('execute_trace')
        trace = self.traces.get(trace_id)
        if trace is None or not trace.is_complete:
            raise RuntimeError(f'TT_FATAL: trace {trace_id} does not exist')
        self.n_replays += 1
        for op in trace.ops:
            op()
        self.after_replay()

    def release_trace(self, trace_id: int) -> None:
        # As on silicon: the buffer goes, recording does not end.
        self.traces.pop(trace_id, None)

    def close(self) -> None:
        self.is_open = False

    def require_open(self) -> None:
        if not self.is_open:
            raise RuntimeError('TT_FATAL: the device is closed')

    def _grow(self, size: int) -> None:
        # Whoever allocates first, tests may write to memory by hand.
        with torch.inference_mode(mode=False):
            grown = torch.full((size,), torch.nan)
            grown[: len(self.memory)] = self.memory
            self.memory = grown

    def _lowest_gap(self, size: int) -> int:
        at = 0
        for address in sorted(self.live):
            if address - at >= size:
                break
            at = address + self.live[address][0]
        return at
