# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
import os
from pathlib import Path
import subprocess
import sys

import pytest

from alpamayo_node.chip import environment
from alpamayo_node.chip.environment import prepare_environment
from alpamayo_node.chip.environment import take_slot
from alpamayo_node.errors import ConfigError
from alpamayo_node.errors import SetupError

NAMES = ('TT_METAL_OPERATION_TIMEOUT_SECONDS', 'TT_METAL_CACHE')


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in NAMES:
        # Set before deleted, so that what the code sets is taken back.
        monkeypatch.setenv(name, '')
        monkeypatch.delenv(name)
    held = list(environment._held_locks)
    yield
    for lock in environment._held_locks[len(held) :]:
        lock.close()
    environment._held_locks[:] = held


def test_environment_is_set(tmp_path: Path) -> None:
    prepare_environment(tmp_path / 'kernels', 7.5)
    assert os.environ[NAMES[0]] == '7.5'
    assert os.environ[NAMES[1]] == str(tmp_path / 'kernels' / 'slot-0')
    assert (tmp_path / 'kernels' / 'slot-0').is_dir()


def test_environment_of_the_user_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, 'mine')
    prepare_environment(tmp_path / 'kernels', 5.0)
    assert [os.environ[name] for name in NAMES] == ['mine', 'mine']
    assert not (tmp_path / 'kernels').exists()


def test_slots_differ_between_processes_and_serve_again(tmp_path: Path) -> None:
    code = (
        'import sys, pathlib\n'
        'from alpamayo_node.chip.environment import take_slot\n'
        'print(take_slot(pathlib.Path(sys.argv[1])).name, flush=True)\n'
        'sys.stdin.read()\n'
    )
    command = [sys.executable, '-c', code, str(tmp_path)]
    root = Path(__file__).parents[2]
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'text': True, 'cwd': root}
    with (
        subprocess.Popen(command, **pipes) as first,  # type: ignore[call-overload]
        subprocess.Popen(command, **pipes) as second,  # type: ignore[call-overload]
    ):
        names = {process.stdout.readline().strip() for process in (first, second)}
        assert names == {'slot-0', 'slot-1'}
        assert take_slot(tmp_path).name == 'slot-2'
        first.kill()
        second.kill()
    assert take_slot(tmp_path).name == 'slot-0'


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('')
    with pytest.raises(ConfigError, match=r'^chip\.cache_directory = .*may write'):
        take_slot(tmp_path / 'file')


def test_all_slots_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, '_MAX_SLOTS', 1)
    take_slot(tmp_path)
    with pytest.raises(ConfigError, match='all of its 1 slots'):
        take_slot(tmp_path)


@pytest.mark.parametrize(
    ('versions', 'text'),
    [
        ({'ttnn': '0.80.9', 'numpy': '1.26.4'}, r'ttnn is 0\.80\.9, 0\.81\.1 or newer'),
        ({'ttnn': '0.81.1', 'numpy': '2.0.0'}, r'numpy is 2\.0\.0'),
        ({'ttnn': '0.81.1rc1', 'numpy': '1.26.4'}, 'or newer'),
        ({'numpy': '1.26.4'}, 'needs the package ttnn: pip install'),
    ],
)
def test_wrong_versions_are_refused_with_the_fix(
    versions: dict[str, str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(environment, 'version', version)
    with pytest.raises(SetupError, match=text):
        prepare_environment(tmp_path, 5.0)
    assert NAMES[0] not in os.environ


@pytest.mark.parametrize('ttnn', ['0.81.1', '0.81.2', '0.100.0', '1.0.0'])
def test_newer_versions_pass(ttnn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {'ttnn': ttnn, 'numpy': '1.26.4'}
    monkeypatch.setattr(environment, 'version', versions.__getitem__)
    prepare_environment(tmp_path, 5.0)
