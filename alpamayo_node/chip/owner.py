# SPDX-License-Identifier: Apache-2.0
"""
Who holds a chip. One process at a time can; a second one would wait in ttnn without a word.

The kernel driver lists the processes that have a chip open in /proc/driver/tenstorrent/<n>/pids.
"""

from collections.abc import Callable
import os
from pathlib import Path
import time

from alpamayo_node.errors import BackendError
from alpamayo_node.errors import Cancelled

_PROC = Path('/proc')
_POLL_PERIOD_S = 0.1
_REPORT_PERIOD_S = 1.0


def owners_of(chip_id: int, proc: Path = _PROC) -> tuple[int, ...]:
    """
    Find the other processes that have a chip open.

    :param chip_id: number of the chip
    :param proc: where the kernel shows its state
    :return: process ids, without our own; none where the driver does not tell
    """
    try:
        text = (proc / 'driver' / 'tenstorrent' / str(chip_id) / 'pids').read_text()
    except OSError:
        return ()
    pids = {int(word) for word in text.split() if word.isdigit()}
    return tuple(sorted(pids - {os.getpid()}))


def wait_until_free(
    chip_id: int,
    timeout_s: float,
    should_stop: Callable[[], bool],
    report: Callable[[str], None],
    proc: Path = _PROC,
) -> None:
    """
    Wait until no other process has a chip open.

    :param chip_id: number of the chip
    :param timeout_s: how long at most
    :param should_stop: polled while waiting
    :param report: hears about once a second who is waited for
    :param proc: where the kernel shows its state
    :raises BackendError: it did not become free
    :raises Cancelled: `should_stop` became true
    """
    started_s = time.monotonic()
    reported_s = -_REPORT_PERIOD_S
    while owners := owners_of(chip_id, proc):
        if should_stop():
            raise Cancelled('stopped while waiting for the chip')
        waited_s = time.monotonic() - started_s
        named = ', '.join(f'{pid} ({_command(pid, proc)})' for pid in owners)
        if waited_s >= timeout_s:
            raise BackendError(
                f'chip {chip_id} is held by process {named}, waited {waited_s:.1f} s; stop it. '
                'One process owns a chip: a text model on it must share a process with the planner'
            )
        if waited_s - reported_s >= _REPORT_PERIOD_S:
            reported_s = waited_s
            report(f'waiting for chip {chip_id}, held by process {named}')
        time.sleep(_POLL_PERIOD_S)


def _command(pid: int, proc: Path) -> str:
    try:
        return (proc / str(pid) / 'comm').read_text().strip()
    except OSError:
        return 'unknown'
