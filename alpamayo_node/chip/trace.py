# SPDX-License-Identifier: Apache-2.0
"""
Record a step's commands once, and replay them.

A recording holds addresses: of every buffer that it reads and writes, and of its intermediate
results, which lie in memory that was free while it was recorded. Two rules follow. A recording is
good only for the buffers it was made with. And nothing may be allocated on the chip while it
lives: a new buffer could lie where a replay writes. The second rule is checked before each replay,
by the amount of device memory in use.

An exception while recording always ends the recording, or the chip would take every later command
for a part of it. If that fails too, the chip is not used again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import ttnn

from alpamayo_node.chip import formats
from alpamayo_node.errors import BackendError

type Key = tuple[int, ...]
"""Addresses that a recording depends on."""

_QUEUE = 0


@dataclass(frozen=True)
class _Recording:
    trace_id: object
    output: ttnn.Tensor
    key: Key
    n_dram_bytes: int


class StepTrace:
    """At most one recording, and the chip's state after a failure."""

    def __init__(self, device: ttnn.Device) -> None:
        """
        :param device: the chip
        """
        self._device = device
        self._recording: _Recording | None = None
        self._failure = ''

    @property
    def is_recorded(self) -> bool:
        """Whether there is something to replay."""
        return self._recording is not None

    def require_usable(self) -> None:
        """
        Refuse a chip that may still be recording.

        :raises BackendError: an earlier recording could not be ended
        """
        if self._failure:
            raise BackendError(f'the chip is not used any more: {self._failure}; restart')

    def record(self, key: Key, step: Callable[[], ttnn.Tensor]) -> None:
        """
        Run the step once, which compiles its programs, and record it the second time.

        :param key: addresses that the step depends on
        :param step: issues the ops and gives its result
        :raises BackendError: the step failed, or the region for recordings is too small
        """
        self.require_usable()
        self.release()
        step().deallocate()
        ttnn.synchronize_device(self._device)
        trace_id = ttnn.begin_trace_capture(self._device, cq_id=_QUEUE)
        try:
            output = step()
        except BaseException:
            self._abandon(trace_id)
            raise
        try:
            ttnn.end_trace_capture(self._device, trace_id, cq_id=_QUEUE)
        except Exception as error:
            self._failure = f'a recording could not be ended ({first_line(error)})'
            raise BackendError(
                f'{self._failure}; if it names the size of the trace region, raise '
                'chip.trace_region_bytes to what it asks for'
            ) from error
        ttnn.synchronize_device(self._device)
        n_bytes = formats.dram_bytes_in_use(self._device)
        self._recording = _Recording(trace_id, output, key, n_bytes)

    def replay(self, key: Key) -> ttnn.Tensor:
        """
        Run the recorded step.

        :param key: addresses as they are now
        :return: the step's result, at the address that it always has; read it with a blocking read
        :raises BackendError: nothing recorded for these addresses, or memory was allocated since
        """
        self.require_usable()
        recording = self._recording
        if recording is None or recording.key != key:
            raise BackendError('no step is recorded for these buffers')
        n_bytes = formats.dram_bytes_in_use(self._device)
        if n_bytes > recording.n_dram_bytes:
            raise BackendError(
                f'{n_bytes - recording.n_dram_bytes} bytes were allocated on the chip after the '
                'step was recorded; a replay may overwrite them: allocate before recording'
            )
        ttnn.execute_trace(self._device, recording.trace_id, cq_id=_QUEUE, blocking=False)
        return recording.output

    def matches(self, key: Key) -> bool:
        """
        Tell whether the recording is good for these addresses.

        :param key: addresses as they are now
        :return: whether `replay` would take them
        """
        return self._recording is not None and self._recording.key == key

    def release(self) -> None:
        """Forget the recording and free its memory; safe without one."""
        if self._recording is not None:
            recording, self._recording = self._recording, None
            ttnn.release_trace(self._device, recording.trace_id)
            recording.output.deallocate()

    def _abandon(self, trace_id: object) -> None:
        try:
            ttnn.end_trace_capture(self._device, trace_id, cq_id=_QUEUE)
            ttnn.release_trace(self._device, trace_id)
        except Exception as error:
            # The step's own error is on its way and says more.
            self._failure = f'a failed recording could not be ended ({first_line(error)})'


def first_line(error: BaseException) -> str:
    """
    Shorten an error of ttnn, which carries a backtrace, to what it says.

    :param error: the error
    :return: its first line and the one below `info:`, if there are such; or its type
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    info = lines.index('info:') + 1 if 'info:' in lines[:-1] else 0
    return f'{lines[0]}: {lines[info]}' if info else lines[0]
