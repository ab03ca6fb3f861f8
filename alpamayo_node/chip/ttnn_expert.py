# SPDX-License-Identifier: Apache-2.0
"""
The action expert on one Tenstorrent chip.

The same flow as `model.torch_expert`: the Euler steps, the projections and the checks of contexts
are the same code; layers and final norm run on the chip, recorded once and replayed per step.

Axes: N waypoints, A action channels (2: acceleration, curvature; normalised), S context rows.
"""

from collections.abc import Callable
from typing import Any
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
import torch

from alpamayo_node.chip.context import Window
from alpamayo_node.chip.network import ChipNetwork
from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.chip.self_test import TOLERANCES
from alpamayo_node.chip.self_test import require_equal_replay
from alpamayo_node.chip.trace import first_line
from alpamayo_node.chip.weight_cache import WeightCache
from alpamayo_node.contracts import EulerStep
from alpamayo_node.contracts import ExpertInfo
from alpamayo_node.contracts import KvSource
from alpamayo_node.errors import AlpamayoError
from alpamayo_node.errors import BackendError
from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import ConfigError
from alpamayo_node.model.buffers import round_action_space
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.fitting import require_fitting
from alpamayo_node.model.fitting import require_layer_shape
from alpamayo_node.model.flow import integrate
from alpamayo_node.model.self_test import run_self_test


class OpenedChip(Protocol):
    """A chip that this process owns; see `device`."""

    @property
    def handle(self) -> Any:
        """The device as ttnn knows it."""

    def close(self) -> None:
        """Give the chip back; safe to call twice."""


class TtnnExpert:
    """Implements `contracts.Expert`; used by one thread at a time, the one that owns the chip."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        info: ExpertInfo,
        options: ChipOptions,
        chip: OpenedChip,
        network: ChipNetwork,
    ) -> None:
        """Not for callers: `from_checkpoint` loads what this keeps."""
        self._checkpoint = checkpoint
        self._info = info
        self._options = options
        self._chip: OpenedChip | None = chip
        self._network = network
        self._is_loaded = False

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        chip: OpenedChip,
        options: ChipOptions,
        weight_cache: WeightCache,
        *,
        buffer_rounding: str,
        max_rows: int,
        fingerprint: str,
        progress: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> 'TtnnExpert':
        """
        Load the weights, reserve cache and step inputs.

        :param checkpoint: opened; the self-test reads it again
        :param chip: opened; this closes it, also when loading fails
        :param options: how the expert runs
        :param weight_cache: of tilised tensors
        :param buffer_rounding: 'bf16' as the released model runs, or 'none'
        :param max_rows: largest S, at least 1
        :param fingerprint: of the checkpoint, for the record
        :param progress: receives progress in words
        :param should_stop: polled between layers
        :return: ready for `self_test` and `load`
        :raises ConfigError: a setting is impossible, or the model does not fit the chip's tiles
        :raises CheckpointError: a file has changed since the checkpoint was opened
        :raises Cancelled: `should_stop` became true
        :raises BackendError: ttnn or the chip failed, or the chip's memory is too small
        """
        try:
            if max_rows < 1:
                raise ConfigError('max_rows', max_rows, 'must be at least 1')
            config = checkpoint.config
            info = ExpertInfo(
                backend='ttnn',
                precision=options.describe(),
                buffer_rounding=buffer_rounding,
                model_fingerprint=fingerprint,
                n_layers=config.expert.n_layers,
                n_kv_heads=config.expert.n_kv_heads,
                head_dim=config.expert.head_dim,
                max_rows=max_rows,
                action_space=round_action_space(config.action_space, buffer_rounding),
            )
            network = _translate(
                'loading the weights',
                lambda: ChipNetwork(
                    checkpoint,
                    chip.handle,
                    options,
                    weight_cache,
                    buffer_rounding=buffer_rounding,
                    max_rows=max_rows,
                    progress=progress,
                    should_stop=should_stop,
                ),
            )
        except BaseException:
            chip.close()
            raise
        return cls(checkpoint, info, options, chip, network)

    @property
    def info(self) -> ExpertInfo:
        """What was loaded."""
        return self._info

    @property
    def network(self) -> ChipNetwork:
        """
        The network itself, for benchmarks, single layers, and a text model's own caches.

        :raises BackendError: the expert has been closed
        """
        if self._chip is None:
            raise BackendError('the expert has been closed')
        return self._network

    def load(self, source: KvSource, should_stop: Callable[[], bool]) -> None:
        """
        Copy a context into the chip's cache; all other rows become zeros.

        After an error no context is loaded.

        :param source: opened context
        :param should_stop: polled between layers
        :raises Refusal: the cache does not fit this expert
        :raises Cancelled: `should_stop` became true
        :raises BackendError: the chip failed, or the expert has been closed
        """
        network, shape = self.network, source.shape
        self._is_loaded = False
        require_fitting(shape, self._info)
        window = Window(shape.n_rows, shape.left_pad, shape.rope_delta)

        def copy() -> None:
            network.set_window(window)
            for i_layer in range(shape.n_layers):
                if should_stop():
                    raise Cancelled('stopped while loading a context')
                keys, values = source.layer(i_layer)
                require_layer_shape(i_layer, shape, keys, values)
                network.load_layer_cache(i_layer, keys, values)

        _translate('loading a context', copy)
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
        :param should_stop: polled before every step
        :param on_step: receives each step's t, x and v
        :return: (N, A) float32
        :raises ConfigError: noise of another shape or dtype, or no steps
        :raises Cancelled: `should_stop` became true
        :raises BackendError: no context is loaded, the chip failed, or the expert has been closed
        """
        network = self._require_context()
        _translate('writing a context', network.refresh_window)
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
        Evaluate the network once on the loaded context: one step.

        :param x: (N, A) float32
        :param t: time of the flow, in [0, 1)
        :param should_stop: polled before the step
        :return: (N, A) float32
        :raises ConfigError: x of another shape or dtype
        :raises Cancelled: `should_stop` became true
        :raises BackendError: no context is loaded, the chip failed, or the expert has been closed
        """
        network = self._require_context()
        shape = (self._info.action_space.n_waypoints, 2)
        if x.shape != shape or x.dtype != np.float32:
            raise ConfigError('x', f'{x.dtype} {list(x.shape)}', f'must be float32 {list(shape)}')
        with torch.inference_mode():
            v = _translate('a step', lambda: network.velocity(torch.from_numpy(x), t, should_stop))
        result: NDArray[np.float32] = v.numpy()
        return result

    def self_test(self, should_stop: Callable[[], bool]) -> str:
        """
        Warm up, record the step, and prove both against the plain form and against each other.

        :param should_stop: polled between layers
        :return: one line that says what was compared and how well it agreed
        :raises SelfTestError: it did not agree
        :raises Cancelled: `should_stop` became true
        :raises BackendError: the chip failed, or the expert has been closed
        """
        network = self.network

        def test() -> str:
            with torch.inference_mode():
                layers = run_self_test(
                    network,
                    self._checkpoint,
                    max_rows=self._info.max_rows,
                    tolerance=TOLERANCES[self._options.weights.coarsest],
                    buffer_rounding=self._info.buffer_rounding,
                    load=lambda source: self.load(source, should_stop),
                    should_stop=should_stop,
                )
                if not self._options.is_traced:
                    return layers
                return f'{layers}; {require_equal_replay(network)}'

        try:
            return _translate('the self-test', test)
        finally:
            self._is_loaded = False

    def close(self) -> None:
        """Release the recording and close the chip; safe to call twice."""
        if self._chip is None:
            return
        chip, self._chip = self._chip, None
        try:
            _translate('releasing the recorded step', self._network.release)
        finally:
            chip.close()

    def _require_context(self) -> ChipNetwork:
        network = self.network
        if not self._is_loaded:
            raise BackendError('no context is loaded')
        return network


def _translate[Result](what: str, act: Callable[[], Result]) -> Result:
    """Run something that uses ttnn; its errors become ours."""
    try:
        return act()
    except AlpamayoError:
        raise
    except RuntimeError as error:
        raise BackendError(f'{what} failed on the chip: {first_line(error)}') from error
