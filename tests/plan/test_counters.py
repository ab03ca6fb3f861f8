# SPDX-License-Identifier: Apache-2.0
from threading import Thread

from alpamayo_node.plan.counters import Counters


def test_counters_from_many_threads_lose_nothing() -> None:
    counters = Counters()

    def count() -> None:
        for _ in range(2000):
            counters.count('received')

    threads = [Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters['received'] == 16_000


def test_counters_snapshot_is_sorted_and_detached() -> None:
    counters = Counters()
    counters.count('planned')
    counters.count('accepted', 3)
    before = counters.snapshot()
    counters.count('planned')
    assert before == (('accepted', 3), ('planned', 1))
    assert counters['planned'] == 2
    assert counters['never'] == 0
