# SPDX-License-Identifier: Apache-2.0
"""
The action expert on the CPU.

    load:   context (keys and values of all layers) -> cache
    sample: noise (N, A) at t = 0 -> Euler steps of the velocity -> action (N, A) at t = 1
    velocity: (x, t) -> in-projection -> layers, each attending to its cache -> norm -> velocity

The same context, noise and steps give the same bits in every process of one machine, as long as
the number of threads is the same. Other threads, processors or versions of torch may add up in
another order.

Axes: N waypoints, A action channels (2: acceleration, curvature; normalised), S context rows.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
import torch

from alpamayo_node.contracts import EulerStep
from alpamayo_node.contracts import ExpertInfo
from alpamayo_node.contracts import KvSource
from alpamayo_node.errors import BackendError
from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import ConfigError
from alpamayo_node.model.buffers import round_action_space
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.fitting import require_fitting
from alpamayo_node.model.fitting import require_layer_shape
from alpamayo_node.model.flow import integrate
from alpamayo_node.model.network import ExpertNetwork
from alpamayo_node.model.self_test import TOLERANCES
from alpamayo_node.model.self_test import run_self_test

PRECISIONS = {'bfloat16': torch.bfloat16, 'float32': torch.float32}


class TorchExpert:
    """Implements `contracts.Expert`; used by one thread at a time."""

    def __init__(self, checkpoint: Checkpoint, info: ExpertInfo, network: ExpertNetwork) -> None:
        """Not for callers: `from_checkpoint` loads what this keeps."""
        self._checkpoint = checkpoint
        self._info = info
        self._network: ExpertNetwork | None = network
        self._is_loaded = False

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        precision: str,
        buffer_rounding: str,
        max_rows: int,
        n_threads: int,
        fingerprint: str,
        progress: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> 'TorchExpert':
        """
        Load the weights, reserve the cache.

        :param checkpoint: opened; the self-test reads it again
        :param precision: 'bfloat16' (linear layers, attention and cache; the rest is float32), or
            'float32'
        :param buffer_rounding: 'bf16' as the released model runs, or 'none'
        :param max_rows: largest S, at least 1
        :param n_threads: threads of this process's torch; 0 leaves the choice to torch
        :param fingerprint: of the checkpoint, for the record
        :param progress: receives progress in words
        :param should_stop: polled between layers
        :return: ready for `self_test` and `load`
        :raises ConfigError: a setting is impossible
        :raises CheckpointError: a file has changed since the checkpoint was opened
        :raises Cancelled: `should_stop` became true
        """
        _require_settings(precision, max_rows, n_threads)
        config = checkpoint.config
        info = ExpertInfo(
            backend='torch',
            precision=precision,
            buffer_rounding=buffer_rounding,
            model_fingerprint=fingerprint,
            n_layers=config.expert.n_layers,
            n_kv_heads=config.expert.n_kv_heads,
            head_dim=config.expert.head_dim,
            max_rows=max_rows,
            action_space=round_action_space(config.action_space, buffer_rounding),
        )
        if n_threads:
            torch.set_num_threads(n_threads)
        network = ExpertNetwork(
            checkpoint,
            dtype=PRECISIONS[precision],
            buffer_rounding=buffer_rounding,
            max_rows=max_rows,
            progress=progress,
            should_stop=should_stop,
        )
        return cls(checkpoint, info, network)

    @property
    def info(self) -> ExpertInfo:
        """What was loaded."""
        return self._info

    def load(self, source: KvSource, should_stop: Callable[[], bool]) -> None:
        """
        Fill the context's rows of the cache.

        A cache of the other dtype is converted. After an error no context is loaded.

        :param source: opened context
        :param should_stop: polled between layers
        :raises Refusal: the cache does not fit this expert
        :raises Cancelled: `should_stop` became true
        :raises BackendError: the expert has been closed
        """
        network, shape = self._require_open(), source.shape
        self._is_loaded = False
        require_fitting(shape, self._info)
        network.set_window(shape.n_rows, shape.left_pad, shape.rope_delta)
        for i_layer in range(shape.n_layers):
            if should_stop():
                raise Cancelled('stopped while loading a context')
            keys, values = source.layer(i_layer)
            require_layer_shape(i_layer, shape, keys, values)
            network.cache.load(i_layer, keys, values)
        self._is_loaded = True

    def sample(
        self,
        noise: NDArray[np.float32],
        *,
        n_steps: int,
        should_stop: Callable[[], bool],
        on_step: Callable[[EulerStep], None] | None = None,
    ) -> NDArray[np.float32]:
        """
        Carry noise to a normalised action; the loaded context stays for further samples.

        :param noise: (N, A) float32, left unchanged
        :param n_steps: Euler steps, at least 1
        :param should_stop: polled in every layer
        :param on_step: receives each step's t, x and v
        :return: (N, A) float32
        :raises ConfigError: noise of another shape or dtype, or no steps
        :raises Cancelled: `should_stop` became true
        :raises BackendError: no context is loaded, or the expert has been closed
        """
        return integrate(
            lambda x, t: self.velocity(x, t, should_stop=should_stop), noise, n_steps, on_step
        )

    def velocity(
        self,
        x: NDArray[np.float32],
        t: float,
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> NDArray[np.float32]:
        """
        Evaluate the network once on the loaded context.

        :param x: (N, A) float32
        :param t: time of the flow, in [0, 1)
        :param should_stop: polled in every layer
        :return: (N, A) float32
        :raises ConfigError: x of another shape or dtype
        :raises Cancelled: `should_stop` became true
        :raises BackendError: no context is loaded, or the expert has been closed
        """
        network = self._require_open()
        if not self._is_loaded:
            raise BackendError('no context is loaded')
        shape = (self._info.action_space.n_waypoints, 2)
        if x.shape != shape or x.dtype != np.float32:
            raise ConfigError('x', f'{x.dtype} {list(x.shape)}', f'must be float32 {list(shape)}')
        with torch.inference_mode():
            v = network.velocity(torch.from_numpy(x), t, should_stop)
        result: NDArray[np.float32] = v.numpy()
        return result

    def self_test(self, should_stop: Callable[[], bool]) -> str:
        """
        Warm up, and hold the form that runs against the plain one; no context is loaded after.

        :param should_stop: polled between layers
        :return: one line that says what was compared and how well it agreed
        :raises SelfTestError: it did not agree
        :raises Cancelled: `should_stop` became true
        :raises BackendError: the expert has been closed
        """
        try:
            with torch.inference_mode():
                return run_self_test(
                    self._require_open(),
                    self._checkpoint,
                    max_rows=self._info.max_rows,
                    tolerance=TOLERANCES[self._info.precision],
                    buffer_rounding=self._info.buffer_rounding,
                    load=lambda source: self.load(source, should_stop),
                    should_stop=should_stop,
                )
        finally:
            self._is_loaded = False

    def close(self) -> None:
        """Release weights and cache; safe to call twice."""
        self._network = None

    def _require_open(self) -> ExpertNetwork:
        if self._network is None:
            raise BackendError('the expert has been closed')
        return self._network


def _require_settings(precision: str, max_rows: int, n_threads: int) -> None:
    if precision not in PRECISIONS:
        raise ConfigError('precision', precision, f'must be one of {", ".join(PRECISIONS)}')
    if max_rows < 1:
        raise ConfigError('max_rows', max_rows, 'must be at least 1')
    if n_threads < 0:
        raise ConfigError('n_threads', n_threads, 'must be 0 (the choice of torch) or more')
