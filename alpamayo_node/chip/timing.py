# SPDX-License-Identifier: Apache-2.0
"""
Time a step, a layer and each op of a layer on a chip.

What is timed is recorded several times back to back and replayed, so that the host's time to issue
ops does not count. The ops are the very ones of `layer`, which passes each through a `Run`.

Times are wall time of the host around replays; on anything but a chip they mean nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
import time
from typing import Any

import torch
import ttnn

from alpamayo_node.chip.network import ChipNetwork
from alpamayo_node.chip.trace import StepTrace

_N_REPLAYS = 3


@dataclass(frozen=True)
class StepTime:
    """Wall time of one Euler step on the chip: upload, replay, read-back."""

    median_ms: float
    min_ms: float
    max_ms: float
    n_layers: int


class _Results:
    """What a recording of several calls leaves behind; frees all but the caches."""

    def __init__(self, network: ChipNetwork) -> None:
        self._protected = set(network.cache.addresses())
        self._tensors: list[ttnn.Tensor] = []

    def add(self, result: Any) -> None:
        tensors = result if isinstance(result, tuple | list) else [result]
        self._tensors += [t for t in tensors if t.buffer_address() not in self._protected]

    def deallocate(self) -> None:
        for tensor in self._tensors:
            tensor.deallocate()
        self._tensors.clear()


def time_step(network: ChipNetwork, n_steps: int = 10, n_warm_up: int = 2) -> StepTime:
    """
    Time whole steps, as a trajectory runs them.

    :param network: with a context in its cache
    :param n_steps: how many count
    :param n_warm_up: how many go before
    :return: the times
    :raises BackendError: recording failed
    """
    tokens = torch.randn((network.n_tokens, int(network.inputs.tokens.shape[3])))
    for _ in range(n_warm_up):
        network.hidden(tokens)
    times_ms = []
    for _ in range(n_steps):
        started_s = time.perf_counter()
        network.hidden(tokens)
        times_ms.append(1e3 * (time.perf_counter() - started_s))
    times_ms.sort()
    return StepTime(
        median_ms=times_ms[len(times_ms) // 2],
        min_ms=times_ms[0],
        max_ms=times_ms[-1],
        n_layers=len(network.layers_all),
    )


def time_layer(network: ChipNetwork, i_layer: int, n_calls: int = 8) -> float:
    """
    Time one layer without the host.

    Releases the network's own recording, which the next step makes again.

    :param network: with a context in its cache
    :param i_layer: index of the layer
    :param n_calls: calls in the recording
    :return: microseconds a call
    :raises BackendError: recording failed
    """
    return _time_calls(network, lambda: network.issue_layer(i_layer), n_calls)


def time_ops(network: ChipNetwork, i_layer: int, n_calls: int = 10) -> dict[str, float]:
    """
    Time each op of a layer by itself.

    Releases the network's own recording, which the next step makes again.

    :param network: with a context in its cache
    :param i_layer: index of the layer
    :param n_calls: calls in each op's recording
    :return: microseconds a call, by the op's name, in the order of the layer
    :raises BackendError: recording failed
    """
    times_us: dict[str, float] = {}

    def run(name: str, op: Callable[[], Any]) -> Any:
        times_us[name] = _time_calls(network, op, n_calls)
        return op()

    network.release()
    network.issue_layer(i_layer, run).deallocate()
    return times_us


def _time_calls(network: ChipNetwork, call: Callable[[], Any], n_calls: int) -> float:
    def calls() -> _Results:
        results = _Results(network)
        for _ in range(n_calls):
            results.add(call())
        return results

    network.release()
    trace = StepTrace(network.device)
    trace.record((), calls)
    try:
        trace.replay(())
        ttnn.synchronize_device(network.device)
        started_s = time.perf_counter()
        for _ in range(_N_REPLAYS):
            trace.replay(())
        ttnn.synchronize_device(network.device)
        return 1e6 * (time.perf_counter() - started_s) / (_N_REPLAYS * n_calls)
    finally:
        trace.release()
