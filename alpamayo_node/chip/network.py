# SPDX-License-Identifier: Apache-2.0
"""
The expert's network on the chip: weights, cache and step inputs, run op by op or replayed.

Layers and final norm run on the chip; the two projections, 0.05 % of the work, on the host in
float32. All device memory is allocated here, before anything is recorded.

Axes: N waypoints, A action channels (2: acceleration, curvature; normalised), H hidden channels.
"""

from collections.abc import Callable
from collections.abc import Sequence

import torch
import ttnn

from alpamayo_node.chip import formats
from alpamayo_node.chip.context import StepInputs
from alpamayo_node.chip.context import Window
from alpamayo_node.chip.kv_cache import DeviceKvCache
from alpamayo_node.chip.layer import DecoderLayer
from alpamayo_node.chip.layer import LayerFunction
from alpamayo_node.chip.layer import Run
from alpamayo_node.chip.layer import run_once
from alpamayo_node.chip.options import TILE
from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.chip.programs import Grid
from alpamayo_node.chip.trace import Key
from alpamayo_node.chip.trace import StepTrace
from alpamayo_node.chip.weight_cache import WeightCache
from alpamayo_node.chip.weights import load_final_norm
from alpamayo_node.chip.weights import load_layer
from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import ConfigError
from alpamayo_node.model.action_proj import ActionInProj
from alpamayo_node.model.action_proj import ActionOutProj
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.config import ModelConfig


class ChipNetwork:
    """Evaluates the velocity field that a context defines."""

    layer_function: LayerFunction
    """Runs one layer: the place to put a fused kernel, before anything is recorded."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: ttnn.Device,
        options: ChipOptions,
        weight_cache: WeightCache,
        *,
        buffer_rounding: str,
        max_rows: int,
        progress: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """
        Load all weights, allocate cache and step inputs.

        :param checkpoint: opened
        :param device: the chip
        :param options: how it runs
        :param weight_cache: of tilised tensors
        :param buffer_rounding: see `model.buffers`
        :param max_rows: largest context
        :param progress: receives progress in words
        :param should_stop: polled between layers
        :raises ConfigError: the model's sizes do not fit the chip's tiles or cores
        :raises CheckpointError: a file has changed since the checkpoint was opened
        :raises Cancelled: `should_stop` became true
        """
        config = checkpoint.config
        _require_tiles(config)
        text, n_tokens = config.expert, config.action_space.n_waypoints
        self._device = device
        self._text = text
        self._options = options
        self.n_tokens = n_tokens
        self.in_proj = ActionInProj(checkpoint, buffer_rounding=buffer_rounding)
        self._out_proj = ActionOutProj(checkpoint)
        cache_rows = options.cache_rows(max_rows, n_tokens)
        self.inputs = StepInputs(
            device,
            text,
            n_tokens=n_tokens,
            cache_rows=cache_rows,
            mask_rows=n_tokens * (text.n_groups if options.folds_heads else 1),
            mask_dtype=options.effective_mask_dtype,
        )
        size = device.compute_with_storage_grid_size()
        self._layer = DecoderLayer(
            text,
            options,
            Grid(size.x, size.y),
            self.inputs,
            n_tokens,
            cache_rows - n_tokens,
        )
        self.layer_function = self._layer
        self.weights = []
        for i_layer in range(text.n_layers):
            if should_stop():
                raise Cancelled('stopped while loading the weights')
            n_before = formats.dram_bytes_in_use(device)
            layer = load_layer(checkpoint, i_layer, options.weights, weight_cache, device)
            self.weights.append(layer)
            n_bytes = formats.dram_bytes_in_use(device) - n_before
            weight_cache.account(f'layer {i_layer + 1} of {text.n_layers}', n_bytes)
        self._norm = load_final_norm(checkpoint, weight_cache, device)
        progress(weight_cache.summary())
        self.cache = DeviceKvCache.allocate(
            device,
            n_layers=text.n_layers,
            n_kv_heads=text.n_kv_heads,
            head_dim=text.head_dim,
            cache_rows=cache_rows,
            n_own=n_tokens,
            dtype=options.cache_dtype,
        )
        self.trace = StepTrace(device)
        self._window = Window(n_rows=1, left_pad=0, rope_delta=0)

    def attach(self, cache: DeviceKvCache) -> None:
        """
        Use a cache that a text model in this process filled.

        Its rows outside [P, S) must be finite: the mask hides numbers, not NaN. Another cache than
        before means that the step is recorded again.

        :param cache: of this expert's shape, and of as many rows as the mask
        :raises ConfigError: it does not fit
        """
        expected = self.cache.shape
        if cache.shape != expected or len(cache.layers) != len(self.cache.layers):
            got = f'{len(cache.layers)} layers of {list(cache.shape)}'
            rule = f'must be {len(self.cache.layers)} layers of {list(expected)}'
            raise ConfigError('cache', got, rule)
        self.cache = cache

    def set_window(self, window: Window) -> None:
        """
        Choose rows and positions of the context, and write them to the chip.

        :param window: of the context; to be written anew for every trajectory
        """
        self._window = window
        self.refresh_window()

    def refresh_window(self) -> None:
        """
        Write rope tables and mask of the chosen context again; see `context`.

        :raises BackendError: the chip is not usable after a failed recording
        """
        self.trace.require_usable()
        self.inputs.write_window(self._window)

    def load_layer_cache(self, i_layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """
        Overwrite one layer of the cache with a context's rows.

        :param i_layer: index of the layer
        :param keys: (G, S, D), rotated
        :param values: (G, S, D)
        """
        kept = self.cache.load(i_layer, keys, values, self._window.left_pad)
        # The copies may still be under way, and read the host tensors.
        ttnn.synchronize_device(self._device)
        kept.clear()

    def prepare(self) -> None:
        """
        Record the step if it is to be replayed and is not recorded for the present buffers.

        :raises BackendError: recording failed
        """
        if self._options.is_traced and not self.trace.matches(self._key()):
            self.trace.record(self._key(), lambda: self._forward(_never, self.layers_all))

    @property
    def layers_all(self) -> range:
        """Indices of all layers."""
        return range(self._text.n_layers)

    def velocity(self, x: torch.Tensor, t: float, should_stop: Callable[[], bool]) -> torch.Tensor:
        """
        Run the whole network.

        :param x: (N, A) float32
        :param t: time of the flow, in [0, 1)
        :param should_stop: polled before the step; without a trace, in every layer
        :return: (N, A) float32
        :raises Cancelled: `should_stop` became true
        :raises BackendError: the recording is not usable
        """
        if should_stop():
            raise Cancelled('stopped while sampling')
        return self._out_proj(self.hidden(self.in_proj(x, t), should_stop))

    def hidden(
        self, tokens: torch.Tensor, should_stop: Callable[[], bool] = lambda: False
    ) -> torch.Tensor:
        """
        Run all layers and the final norm, replayed or op by op.

        :param tokens: (N, H) float32
        :param should_stop: polled in every layer where nothing is replayed
        :return: (N, H) float32
        :raises Cancelled: `should_stop` became true
        :raises BackendError: the recording is not usable
        """
        if not self._options.is_traced:
            return self._run_eagerly(tokens, self.layers_all, should_stop, has_norm=True)
        self.prepare()
        self.inputs.write_tokens(tokens)
        result = formats.read(self.trace.replay(self._key()))
        self.inputs.release_staged()
        return result.reshape(self.n_tokens, self._text.hidden)

    def run_layers(
        self, tokens: torch.Tensor, layers: Sequence[int], *, has_norm: bool = False
    ) -> torch.Tensor:
        """
        Run some layers op by op on the context in the cache.

        Needs device memory, so a recording is released first; the next replay records again.

        :param tokens: (N, H) float32
        :param layers: indices, in the order to run
        :param has_norm: whether the final norm follows
        :return: (N, H) float32
        :raises BackendError: the chip is not usable after a failed recording
        """
        return self._run_eagerly(tokens, layers, _never, has_norm=has_norm)

    def run_layer(self, i_layer: int, tokens: torch.Tensor) -> torch.Tensor:
        """
        Run one layer; see `run_layers`.

        :param i_layer: index of the layer
        :param tokens: (N, H) float32
        :return: (N, H) float32
        """
        return self.run_layers(tokens, [i_layer])

    def issue_layer(self, i_layer: int, run: Run = run_once) -> ttnn.Tensor:
        """
        Issue the ops of one layer on the tokens last written; for benchmarks.

        :param i_layer: index of the layer
        :param run: issues each op
        :return: the layer's result, to be freed
        """
        keys, values = self.cache.layers[i_layer]
        return self._layer(self.weights[i_layer], self.inputs.tokens, keys, values, run)

    @property
    def device(self) -> ttnn.Device:
        """The chip."""
        return self._device

    def release(self) -> None:
        """Release what was recorded; buffers go with the device."""
        self.trace.release()

    def _run_eagerly(
        self,
        tokens: torch.Tensor,
        layers: Sequence[int],
        should_stop: Callable[[], bool],
        *,
        has_norm: bool,
    ) -> torch.Tensor:
        self.trace.require_usable()
        self.trace.release()
        self.inputs.write_tokens(tokens)
        output = self._forward(should_stop, layers, has_norm=has_norm)
        result = formats.read(output)
        self.inputs.release_staged()
        if output is not self.inputs.tokens:
            output.deallocate()
        return result.reshape(self.n_tokens, self._text.hidden)

    def _forward(
        self, should_stop: Callable[[], bool], layers: Sequence[int], *, has_norm: bool = True
    ) -> ttnn.Tensor:
        """Issue the ops of a step; the result is a new tensor, or the tokens if there are none."""
        tokens = self.inputs.tokens
        x = tokens

        def free(tensor: ttnn.Tensor) -> None:
            if tensor is not tokens:
                tensor.deallocate()

        for i_layer in layers:
            if should_stop():
                free(x)
                raise Cancelled('stopped while sampling')
            keys, values = self.cache.layers[i_layer]
            after = self.layer_function(self.weights[i_layer], x, keys, values)
            free(x)
            x = after
        if not has_norm:
            return x
        normal = self._layer.normalise(x, self._norm)
        free(x)
        return normal

    def _key(self) -> Key:
        return (*self.inputs.addresses(), *self.cache.addresses())


def _never() -> bool:
    return False


def _require_tiles(config: ModelConfig) -> None:
    text = config.expert
    sizes = {
        'expert.hidden': text.hidden,
        'expert.intermediate': text.intermediate,
        'expert.head_dim': text.head_dim,
        'action_space.n_waypoints': config.action_space.n_waypoints,
    }
    for name, value in sizes.items():
        if value % TILE:
            raise ConfigError(name, value, f'must be a multiple of {TILE} to run on the chip')
