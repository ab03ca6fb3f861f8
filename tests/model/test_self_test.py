# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from alpamayo_node.errors import BackendError
from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import SelfTestError
from alpamayo_node.model.attention import attend
from alpamayo_node.model.kv_cache import KvCache
from alpamayo_node.model.linear import Linear
from alpamayo_node.model.network import ExpertNetwork
from alpamayo_node.model.self_test import SyntheticContext
from alpamayo_node.model.self_test import _require_close
from tests.model.builders import load_expert
from tests.model.builders import never
from tests.model.builders import noise
from tests.model.builders import random_tensors
from tests.model.builders import text_config
from tests.model.builders import tiny_config
from tests.model.builders import write_checkpoint

CONFIG = tiny_config(
    expert=text_config(n_layers=5), vlm=text_config(n_layers=5, hidden=128, n_heads=8)
)
PRECISIONS = ['float32', 'bfloat16']


@pytest.fixture(scope='module')
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp('checkpoint'), CONFIG)


@pytest.mark.parametrize('precision', PRECISIONS)
@pytest.mark.parametrize('max_rows', [1, 4, 5, 48, 256])
def test_healthy_expert_passes(precision: str, max_rows: int, directory: Path) -> None:
    expert = load_expert(directory, precision=precision, max_rows=max_rows)
    report = expert.self_test(never)
    assert report.startswith('layers 0, 2, 4 of 5 agree')
    assert report == expert.self_test(never)


def test_no_context_is_loaded_afterwards(directory: Path) -> None:
    expert = load_expert(directory)
    expert.self_test(never)
    with pytest.raises(BackendError, match='no context'):
        expert.velocity(noise(), 0.0)


def stored(name: str) -> torch.Tensor:
    return random_tensors(CONFIG)[f'expert.expert.layers.{name}_proj.weight']


def fused(i_layer: int, *names: str) -> torch.Tensor:
    return torch.cat([stored(f'{i_layer}.{name}') for name in names])


def replace_linear(network: ExpertNetwork, i_layer: int, name: str, weight: torch.Tensor) -> None:
    is_narrow = network.cache.visible(0)[0].dtype == torch.bfloat16
    packed = Linear(weight.bfloat16() if is_narrow else weight.float(), 64)
    setattr(network.layers[i_layer], name, packed)


def swap_key_and_value(network: ExpertNetwork) -> None:
    names = ('self_attn.q', 'self_attn.v', 'self_attn.k')
    replace_linear(network, 0, 'qkv', fused(0, *names))


def swap_gate_and_up(network: ExpertNetwork) -> None:
    layer = network.layers[2]
    layer.gate, layer.up = layer.up, layer.gate


def take_another_layer(network: ExpertNetwork) -> None:
    network.layers[4] = network.layers[3]


def flip_the_top_exponent_bit(network: ExpertNetwork) -> None:
    weight = fused(4, 'mlp.down').clone()
    weight.view(torch.int16)[3, 5] ^= 1 << 14
    replace_linear(network, 4, 'down', weight)


def spoil_a_norm(network: ExpertNetwork) -> None:
    network.layers[2]._qk_norm[1] *= 1.5


def spoil_the_frequencies(network: ExpertNetwork) -> None:
    network.in_proj._freqs[3] *= 1.01


def poison_the_last_norm(network: ExpertNetwork) -> None:
    network._norm[0] = torch.nan


FAULTS = [
    swap_key_and_value,
    swap_gate_and_up,
    take_another_layer,
    flip_the_top_exponent_bit,
    spoil_a_norm,
    spoil_the_frequencies,
    poison_the_last_norm,
]


@pytest.mark.parametrize('precision', PRECISIONS)
@pytest.mark.parametrize('fault', FAULTS)
def test_faulty_weights_are_caught(
    fault: Callable[[ExpertNetwork], None], precision: str, directory: Path
) -> None:
    expert = load_expert(directory, precision=precision)
    fault(expert._network)
    with pytest.raises(SelfTestError, match='self-test'):
        expert.self_test(never)


def lose_the_last_context_row(cache: KvCache, i_layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    window = torch.arange(cache._left_pad, cache._n_rows + cache._n_own)
    window = window[window != cache._n_rows - 1]
    keys, values = cache._layers[i_layer]
    return keys[:, window], values[:, :, window]


def show_a_hidden_row(cache: KvCache, i_layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    window = slice(cache._left_pad - 1, cache._n_rows + cache._n_own)
    keys, values = cache._layers[i_layer]
    return keys[:, window], values[:, :, window]


@pytest.mark.parametrize('precision', PRECISIONS)
@pytest.mark.parametrize('fault', [lose_the_last_context_row, show_a_hidden_row])
def test_window_off_by_a_row_is_caught(
    fault: Callable[..., object], precision: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expert = load_expert(directory, precision=precision)
    monkeypatch.setattr(KvCache, 'visible', fault)
    with pytest.raises(SelfTestError):
        expert.self_test(never)


@pytest.mark.parametrize('precision', PRECISIONS)
def test_kernel_that_miscomputes_is_caught(
    precision: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expert = load_expert(directory, precision=precision)

    def faulty(*args: torch.Tensor) -> torch.Tensor:
        mixed = attend(*args)
        mixed[:, :32] = mixed[:, 32:64].clone()
        return mixed

    monkeypatch.setattr('alpamayo_node.model.layers.attend', faulty)
    with pytest.raises(SelfTestError, match='layer 0'):
        expert.self_test(never)


def test_context_of_the_test_hides_nan(directory: Path) -> None:
    checkpoint = load_expert(directory)._checkpoint
    poison = SyntheticContext(checkpoint, 256, is_poison=True)
    assert poison.shape.left_pad == 0
    assert all(torch.isnan(part).all() for part in poison.layer(0))
    context = SyntheticContext(checkpoint, 256)
    keys, values = context.layer(0)
    assert context.shape.left_pad == 5
    for part in (keys, values):
        assert torch.isnan(part[:, :5]).all()
        assert torch.isfinite(part[:, 5:]).all()


@pytest.mark.parametrize('n_polls', [1, 3, 6, 11, 16, 18])
def test_self_test_stops_when_asked(n_polls: int, directory: Path) -> None:
    expert = load_expert(directory)
    polls = iter(range(1, 100))
    with pytest.raises(Cancelled):
        expert.self_test(lambda: next(polls) >= n_polls)


def test_difference_that_is_not_a_number_is_no_agreement() -> None:
    with pytest.raises(SelfTestError, match='layer 0'):
        _require_close('layer 0', float('nan'), 1.0)
