# SPDX-License-Identifier: Apache-2.0
"""Count events by name, from any thread."""

from collections import Counter
from threading import Lock


class Counters:
    """Named totals that only grow; names appear in `snapshot` once they were counted."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._totals: Counter[str] = Counter()

    def count(self, name: str, n: int = 1) -> None:
        """Add `n` events of this name."""
        with self._lock:
            self._totals[name] += n

    def __getitem__(self, name: str) -> int:
        """Total so far; 0 for a name that was never counted."""
        with self._lock:
            return self._totals[name]

    def snapshot(self) -> tuple[tuple[str, int], ...]:
        """All totals at one instant, sorted by name."""
        with self._lock:
            return tuple(sorted(self._totals.items()))
