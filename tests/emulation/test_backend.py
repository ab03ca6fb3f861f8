# SPDX-License-Identifier: Apache-2.0
"""The way from a configuration to an expert on the chip, and the silicon tests' own code."""

from collections.abc import Iterator
import os
from pathlib import Path
from typing import Any

import pytest

from alpamayo_node.backend import BackendConfig
from alpamayo_node.backend import build_expert
from alpamayo_node.chip import environment
from alpamayo_node.chip.options import ChipConfig
from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import ConfigError
from tests.chip import silicon
from tests.chip.test_silicon import SWEEP
from tests.emulation.experts import sample
from tests.model.builders import RandomContext
from tests.model.builders import never
from tests.model.builders import noise
from tests.model.builders import tiny_config
from tests.model.builders import write_checkpoint

CONFIG = tiny_config()
NAMES = ('TT_METAL_OPERATION_TIMEOUT_SECONDS', 'TT_METAL_CACHE')


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in NAMES:
        monkeypatch.setenv(name, '')
        monkeypatch.delenv(name)
    n_held = len(environment._held_locks)
    yield
    while len(environment._held_locks) > n_held:
        environment._held_locks.pop().close()


@pytest.fixture
def rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the silicon jobs work in a folder of this test, on a small model."""
    directory = write_checkpoint(tmp_path / 'checkpoint', CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(silicon, 'checkpoint', lambda: directory)
    monkeypatch.setattr(silicon, 'MAX_ROWS', 448)
    return directory


def build(directory: Path, report: Any = print, should_stop: Any = never, **options: Any) -> Any:
    chip = ChipConfig(
        options=ChipOptions(**options), cache_directory=directory.parent / 'chip_cache'
    )
    config = BackendConfig(directory, backend='ttnn', max_rows=448, chip=chip)
    return build_expert(config, should_stop, report)


def test_backend_prepares_opens_loads_and_closes(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / 'checkpoint', CONFIG)
    said: list[str] = []
    expert = build(directory, said.append)
    root = tmp_path / 'chip_cache'
    assert os.environ[NAMES[0]] == '5'
    assert os.environ[NAMES[1]] == str(root / 'kernels' / 'slot-0')
    assert [text for text in said if text == 'opening chip 0']
    assert any('MB/s' in text for text in said)
    assert len(list((root / 'weights').iterdir())) == 1
    expert.load(RandomContext(CONFIG, 100), never)
    assert sample(expert, noise()).shape == (64, 2)
    device = expert.network.device
    expert.close()
    assert not device.is_open


def test_backend_that_is_stopped_while_loading_closes_the_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_checkpoint(tmp_path / 'checkpoint', CONFIG)
    opened: list[Any] = []
    from alpamayo_node.chip import device as device_module

    real = device_module.ttnn.open_device

    def open_device(**values: Any) -> Any:
        opened.append(real(**values))
        return opened[-1]

    monkeypatch.setattr(device_module.ttnn, 'open_device', open_device)
    with pytest.raises(Cancelled):
        build(directory, should_stop=lambda: bool(opened))
    assert [device.is_open for device in opened] == [False]


def test_backend_refuses_a_cache_folder_that_cannot_be_written(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / 'checkpoint', CONFIG)
    (tmp_path / 'chip_cache').write_text('')
    with pytest.raises(ConfigError, match=r'chip\.cache_directory'):
        build(directory)


@pytest.mark.parametrize('options', SWEEP, ids=str)
def test_rehearsal_of_the_silicon_sweep(options: dict[str, Any], rehearsal: Path) -> None:
    assert 'replays equal' in silicon.self_test(max_rows=448, **options)
    found = silicon.compare_with_cpu(200, max_rows=448, **options)
    assert 0 < found['velocity'] < 0.5
    times = silicon.times(200, max_rows=448, **options)
    assert len(times['ops_us']) == (21 if options.get('cache_dtype') == 'bfp8' else 19)


def test_rehearsal_of_the_soak(rehearsal: Path) -> None:
    found = silicon.soak(60, [127, 128, 129], max_rows=448)
    assert found['n_replays'] == 60


def test_rehearsal_of_the_soak_finds_another_action(
    rehearsal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = iter(range(100))
    monkeypatch.setattr(silicon, 'noise', lambda: noise(next(draws)))
    with pytest.raises(AssertionError, match='another action after 20 replays'):
        silicon.soak(60, [100], max_rows=448)
