# SPDX-License-Identifier: Apache-2.0
"""
Open a chip, and give it back on every way out.

A chip that a crash left in the middle of something may never answer, so opening runs in a thread
that is watched. Nothing here ever resets a chip: others may be using the board.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
import threading
import time
from typing import Any

import ttnn

from alpamayo_node.chip.owner import wait_until_free
from alpamayo_node.chip.trace import first_line
from alpamayo_node.errors import BackendError
from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import ConfigError

_POLL_PERIOD_S = 0.05


@dataclass(frozen=True)
class DeviceConfig:
    """Which chip, and what is set apart on it."""

    chip_id: int = 0
    trace_region_bytes: int = 128 << 20
    open_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.chip_id < 0:
            raise ConfigError('chip.id', self.chip_id, 'must be 0 or more')
        if self.trace_region_bytes <= 0:
            rule = 'must be positive: without a region, recordings are not kept apart'
            raise ConfigError('chip.trace_region_bytes', self.trace_region_bytes, rule)
        if not self.open_timeout_s > 0:
            raise ConfigError('chip.open_timeout_s', self.open_timeout_s, 'must be positive')


class ChipDevice:
    """One opened chip."""

    def __init__(self, handle: Any) -> None:
        """
        :param handle: ttnn's device, opened; closed by this
        """
        self._handle: Any | None = handle

    @classmethod
    def open(
        cls,
        config: DeviceConfig,
        should_stop: Callable[[], bool],
        report: Callable[[str], None],
    ) -> 'ChipDevice':
        """
        Wait until the chip is free, and open it.

        :param config: which chip; the timeout holds for the wait, and again for the opening
        :param should_stop: polled meanwhile
        :param report: hears who holds the chip
        :return: the chip, for one thread at a time
        :raises BackendError: it is held by another process, does not answer, or ttnn refuses
        :raises Cancelled: `should_stop` became true
        """
        wait_until_free(config.chip_id, config.open_timeout_s, should_stop, report)
        opening = _Opening(config)
        deadline_s = time.monotonic() + config.open_timeout_s
        while not opening.is_done.wait(_POLL_PERIOD_S):
            if should_stop():
                opening.abandon()
                raise Cancelled('stopped while opening the chip')
            if time.monotonic() >= deadline_s:
                opening.abandon()
                raise BackendError(
                    f'chip {config.chip_id} did not open within {config.open_timeout_s:g} s; this '
                    'process never resets a chip: stop all that use the board, then run tt-smi -r'
                )
        return cls(opening.result())

    @property
    def handle(self) -> Any:
        """
        The device as ttnn knows it.

        :raises BackendError: the chip has been closed
        """
        if self._handle is None:
            raise BackendError('the chip has been closed')
        return self._handle

    def close(self) -> None:
        """
        Wait for what runs, and close; safe to call twice.

        :raises BackendError: ttnn failed to; the chip was asked to close all the same
        """
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        failures = []
        for step in (ttnn.synchronize_device, ttnn.close_device):
            try:
                step(handle)
            except RuntimeError as error:
                failures.append(first_line(error))
        if failures:
            raise BackendError(f'the chip did not close in order: {"; ".join(failures)}')


class _Opening:
    """A thread that opens a chip, and closes it at once if nobody waits any more."""

    def __init__(self, config: DeviceConfig) -> None:
        self.is_done = threading.Event()
        self._config = config
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._handle: Any | None = None
        self._error: Exception | None = None
        # A thread that never returns must not keep the process from ending.
        threading.Thread(target=self._run, name='open_chip', daemon=True).start()

    def abandon(self) -> None:
        """Give up; a chip that opens now or later is closed."""
        with self._lock:
            self._is_abandoned = True
            self._close_if_abandoned()

    def result(self) -> Any:
        if self._error is not None:
            raise BackendError(
                f'chip {self._config.chip_id} cannot be opened: {first_line(self._error)}'
            ) from self._error
        return self._handle

    def _run(self) -> None:
        try:
            handle = ttnn.open_device(
                device_id=self._config.chip_id,
                trace_region_size=self._config.trace_region_bytes,
            )
        except Exception as error:
            self._error = error
        else:
            with self._lock:
                self._handle = handle
                self._close_if_abandoned()
        self.is_done.set()

    def _close_if_abandoned(self) -> None:
        if self._is_abandoned and self._handle is not None:
            handle, self._handle = self._handle, None
            with suppress(RuntimeError):
                ttnn.close_device(handle)
