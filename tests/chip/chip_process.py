# SPDX-License-Identifier: Apache-2.0
"""
A process in which ttnn is the real library: on a mocked chip, or on silicon.

ttnn reads its environment when it is imported and may end its process, so it never runs in
pytest's own. The parent sends a function's name and arguments as a line of JSON, the child answers
with a line. The lines have pipes of their own: ttnn writes to the ordinary ones.
"""

from collections.abc import Mapping
import importlib
import json
import os
from pathlib import Path
import select
import subprocess
import sys
from typing import Any
from typing import Self

_ROOT = Path(__file__).parents[2]
_N_LOG_CHARS = 3000


class RemoteError(Exception):
    """What a function in the child raised."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f'{kind}: {text}')
        self.kind = kind
        self.text = text


class ChipProcessDied(Exception):
    """The child ended, or did not answer in time; carries the end of its log."""


class ChipProcess:
    """One child, answering one call at a time."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """
        :param folder: exists; the child's working folder and log
        :param environment: in addition to our own
        """
        self._log = folder / 'log.txt'
        to_child, requests = os.pipe()
        answers, from_child = os.pipe()
        # As files: a number could be another file's once it is closed.
        self._requests = os.fdopen(requests, 'wb', buffering=0)
        self._answers = os.fdopen(answers, 'rb', buffering=0)
        paths = [str(_ROOT), os.environ.get('PYTHONPATH', '')]
        with self._log.open('wb') as log:
            self._process = subprocess.Popen(
                [sys.executable, '-m', 'tests.chip.chip_process', str(to_child), str(from_child)],
                cwd=folder,
                env={**os.environ, **environment, 'PYTHONPATH': os.pathsep.join(paths)},
                pass_fds=(to_child, from_child),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(to_child)
        os.close(from_child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: str, *, timeout_s: float = 280.0, **arguments: Any) -> Any:
        """
        Run a function in the child.

        :param function: 'module:name'
        :param arguments: what JSON can carry; so must be the result
        :raises RemoteError: it raised
        :raises ChipProcessDied: the child ended or did not answer; it is gone now
        """
        line = json.dumps([function, arguments]) + '\n'
        try:
            if self._requests.closed:
                raise EOFError('the child was ended before')
            self._requests.write(line.encode())
            answer = self._read_line(timeout_s)
        except (BrokenPipeError, EOFError, TimeoutError) as error:
            self.close()
            code = self._process.returncode
            tail = self._log.read_text(errors='replace')[-_N_LOG_CHARS:]
            raise ChipProcessDied(f'{function}: {error!r}, exit code {code}\n{tail}') from error
        kind, value = json.loads(answer)
        if kind:
            raise RemoteError(kind, value)
        return value

    def close(self) -> None:
        """End the child; safe to call twice."""
        self._process.kill()
        self._process.wait()
        self._requests.close()
        self._answers.close()

    def _read_line(self, timeout_s: float) -> str:
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b'\n'):
            if not select.select([self._answers], [], [], timeout_s)[0]:
                raise TimeoutError(f'no answer in {timeout_s:g} s')
            part = self._answers.read(1 << 16)
            if not part:
                self._process.wait()
                raise EOFError('the child ended')
            parts.append(part)
        return b''.join(parts).decode()


def _serve(requests: int, answers: int) -> None:
    with os.fdopen(requests) as lines, os.fdopen(answers, 'w') as out:
        for line in lines:
            name, arguments = json.loads(line)
            try:
                module, _, function = name.partition(':')
                result = ['', getattr(importlib.import_module(module), function)(**arguments)]
            except Exception as error:
                result = [type(error).__name__, str(error)]
            out.write(json.dumps(result) + '\n')
            out.flush()
    # ttnn's own destructors have nothing to give back on a mocked chip, and may wait for it.
    os._exit(0)


if __name__ == '__main__':
    _serve(int(sys.argv[1]), int(sys.argv[2]))
