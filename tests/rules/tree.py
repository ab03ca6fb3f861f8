# SPDX-License-Identifier: Apache-2.0
"""The files of this project, as git knows them, and what its modules import, as ast sees it."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
import subprocess

ROOT = Path(__file__).parents[2]
PACKAGE = 'alpamayo_node'


@dataclass(frozen=True)
class Import:
    """One import statement; `at_top` if nothing but the module encloses it."""

    name: str
    line: int
    at_top: bool


@cache
def project_files() -> tuple[Path, ...]:
    """Files that are tracked or would be at the next `git add`, in order of name."""
    command = ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard']
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = (ROOT / name for name in sorted(listed.split('\0')) if name)
    return tuple(path for path in paths if path.is_file())


def python_files(*folders: str) -> tuple[Path, ...]:
    return tuple(
        path
        for path in project_files()
        if path.suffix == '.py' and path.relative_to(ROOT).parts[0] in folders
    )


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def imports_of(source: str) -> tuple[Import, ...]:
    """
    List what a module imports, also by `importlib.import_module` or `__import__`.

    A relative import comes out with its leading dots, an import by a computed name as `?`.
    """
    tree = ast.parse(source)
    top = set(tree.body)
    found = []
    for node in ast.walk(tree):
        found += [Import(name, node.lineno, node in top) for name in _names(node)]
    return tuple(found)


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = '.' * node.level + (node.module or '')
        if module == PACKAGE or module.startswith(f'{PACKAGE}.'):
            # What is imported may be a module of its own.
            return [f'{module}.{alias.name}' for alias in node.names]
        return [module]
    if isinstance(node, ast.Call) and ast.unparse(node.func).split('.')[-1] in (
        'import_module',
        '__import__',
    ):
        name = node.args[0]
        return [str(name.value) if isinstance(name, ast.Constant) else '?']
    return []
