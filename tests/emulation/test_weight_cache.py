# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest
import torch
import ttnn

from alpamayo_node.chip import formats
from alpamayo_node.chip import weight_cache
from alpamayo_node.chip.weight_cache import WeightCache
from tests.emulation.experts import chip_expert
from tests.emulation.experts import device_of
from tests.model.builders import tiny_config
from tests.model.builders import write_checkpoint

VALUES = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))


class Conversions:
    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> ttnn.Tensor:
        self.n += 1
        return formats.to_host_tile(VALUES, 'bfp8')


def open_cache(
    root: Path, fingerprint: str = 'sha256:' + 'a' * 64
) -> tuple[WeightCache, list[str]]:
    said: list[str] = []
    return WeightCache(root, fingerprint, said.append), said


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob('*') if path.is_file())


def test_second_start_converts_nothing(tmp_path: Path) -> None:
    convert = Conversions()
    first = open_cache(tmp_path)[0].get('w', 'bfp8', convert)
    cache, said = open_cache(tmp_path)
    second = cache.get('w', 'bfp8', convert)
    assert convert.n == 1
    assert said == []
    assert (cache.n_from_disk, cache.n_converted) == (1, 0)
    assert torch.equal(ttnn.to_torch(first), ttnn.to_torch(second))


def test_second_start_of_an_expert_converts_nothing(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / 'checkpoint', tiny_config())
    experts = [chip_expert(directory, cache=tmp_path / 'cache') for _ in range(2)]
    n_files = len(files(tmp_path / 'cache'))
    assert n_files == 2 * (2 * 9 + 1)
    assert experts[0] is not experts[1]
    tokens = torch.randn(64, 64)
    first, second = (expert.network.run_layers(tokens, [0, 1]) for expert in experts)
    assert torch.equal(first, second)
    assert device_of(experts[0]) is not device_of(experts[1])
    chip_expert(directory, cache=tmp_path / 'cache', weights='bf16')
    assert len(files(tmp_path / 'cache')) == n_files + 2 * 2 * 5


def test_caches_of_other_checkpoints_and_formats_are_apart(tmp_path: Path) -> None:
    convert = Conversions()
    open_cache(tmp_path)[0].get('w', 'bfp8', convert)
    open_cache(tmp_path, 'sha256:' + 'b' * 64)[0].get('w', 'bfp8', convert)
    open_cache(tmp_path)[0].get('w', 'bf16', convert)
    assert convert.n == 3


def test_cache_of_another_ttnn_is_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert = Conversions()
    open_cache(tmp_path)[0].get('w', 'bfp8', convert)
    monkeypatch.setattr(weight_cache, 'version', lambda name: '9.9.9')
    open_cache(tmp_path)[0].get('w', 'bfp8', convert)
    assert convert.n == 2


@pytest.mark.parametrize('damage', ['flip', 'cut', 'empty', 'sum', 'no sum'])
def test_damaged_file_is_made_again(damage: str, tmp_path: Path) -> None:
    convert = Conversions()
    open_cache(tmp_path)[0].get('w', 'bfp8', convert)
    path, sum_path = files(tmp_path)
    content = path.read_bytes()
    if damage == 'flip':
        path.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    elif damage == 'cut':
        path.write_bytes(content[:-1])
    elif damage == 'empty':
        path.write_bytes(b'')
    elif damage == 'sum':
        sum_path.write_bytes(b'\xff')
    else:
        sum_path.unlink()
    cache, said = open_cache(tmp_path)
    tensor = cache.get('w', 'bfp8', convert)
    assert convert.n == 2
    assert torch.equal(ttnn.to_torch(tensor), ttnn.to_torch(Conversions()()))
    assert len(said) == (0 if damage == 'no sum' else 1)
    # And it is whole again.
    cache, said = open_cache(tmp_path)
    cache.get('w', 'bfp8', convert)
    assert (convert.n, said) == (2, [])


def test_whole_file_that_ttnn_does_not_read_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = Conversions()
    open_cache(tmp_path)[0].get('w', 'bfp8', convert)

    def fail(path: str) -> None:
        raise RuntimeError('TT_THROW: unknown version')

    monkeypatch.setattr(ttnn, 'load_tensor', fail)
    cache, said = open_cache(tmp_path)
    cache.get('w', 'bfp8', convert)
    assert convert.n == 2
    assert 'unknown version' in said[0]


def test_folder_that_cannot_be_written_costs_no_start(tmp_path: Path) -> None:
    blocked = tmp_path / 'file'
    blocked.write_text('not a folder')
    cache, said = open_cache(blocked)
    convert = Conversions()
    for name in ('a', 'b'):
        cache.get(name, 'bfp8', convert)
    assert convert.n == 2
    assert sum('cannot keep' in text for text in said) == 1


def test_crash_while_writing_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(path: str, tensor: ttnn.Tensor) -> None:
        Path(path).write_bytes(b'half')
        raise KeyboardInterrupt

    monkeypatch.setattr(ttnn, 'dump_tensor', crash)
    with pytest.raises(KeyboardInterrupt):
        open_cache(tmp_path)[0].get('w', 'bfp8', Conversions())
    monkeypatch.undo()
    convert = Conversions()
    open_cache(tmp_path)[0].get('w', 'bfp8', convert)
    assert convert.n == 1
    assert str(os.getpid()) not in ''.join(path.name for path in files(tmp_path))


def test_progress_says_how_much_and_how_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, said = open_cache(tmp_path)
    cache.account('layer 1 of 64', 40_000_000)
    assert said == []
    monkeypatch.setattr(weight_cache, '_REPORT_PERIOD_S', 0.0)
    cache.account('layer 2 of 64', 40_000_000)
    assert len(said) == 1
    assert said[0].startswith('layer 2 of 64: 0.08 GB of weights at ')
    assert 'MB/s' in said[0]
