# SPDX-License-Identifier: Apache-2.0
"""
Write what follows from the parameter tables: `params/planner.yaml`, and the tables in the docs.

    python -m alpamayo_node.ros.document      (in the repository)
"""

from collections.abc import Sequence
import json
from pathlib import Path

from alpamayo_node.ros import stand_in
from alpamayo_node.ros.params import TABLE
from alpamayo_node.ros.params import Parameter

ROOT = Path(__file__).parents[2]
YAML = ROOT / 'params' / 'planner.yaml'
INTERFACE = ROOT / 'docs' / 'interface.md'
TABLES = {'planner': TABLE, 'stand-in': stand_in.TABLE}
BEGIN = '<!-- parameters of the {}: written by alpamayo_node.ros.document -->'
END = '<!-- end of parameters of the {} -->'


def yaml_text() -> str:
    """Render the table as a parameter file that fits any namespace and node name."""
    lines = [
        '# SPDX-License-Identifier: Apache-2.0',
        '# Every parameter of the planner, with its default. `alpamayo_node.ros.document`',
        '# writes this from the table in alpamayo_node/ros/params.py; change values in a copy.',
        '/**:',
        '  ros__parameters:',
    ]
    group = ''
    for row in TABLE:
        *_, name = row.name.split('.', 1)
        row_group = row.name.split('.')[0] if '.' in row.name else ''
        if row_group != group and row_group:
            lines.append(f'    {row_group}:')
        group = row_group
        indent = '      ' if group else '    '
        lines.append(f'{indent}# {_meaning(row)}')
        lines.append(f'{indent}{name}: {_value(row)}')
    return '\n'.join(lines) + '\n'


def markdown_table(table: Sequence[Parameter]) -> str:
    """Render a table for docs/interface.md."""
    lines = ['| parameter | default | accepted | meaning |', '|---|---|---|---|']
    for row in table:
        rule = row.rule().removeprefix('must be ').replace('|', '\\|')
        unit = f' {row.unit}' if row.unit else ''
        fixed = ' Fixed at start.' if row.is_fixed else ''
        lines.append(
            f'| `{row.name}` | `{_value(row)}`{unit} | {rule} | {row.description}{fixed} |'
        )
    return '\n'.join(lines)


def with_tables(document: str) -> str:
    """Put the current tables between the marks of a document."""
    for name, table in TABLES.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, rest = document.split(begin)
        _, after = rest.split(end)
        document = f'{before}{begin}\n{markdown_table(table)}\n{end}{after}'
    return document


def _meaning(row: Parameter) -> str:
    unit = f' [{row.unit}]' if row.unit else ''
    rule = row.rule()
    fixed = ' Fixed at start.' if row.is_fixed else ''
    return f'{row.description}{unit} {rule[0].upper()}{rule[1:]}.{fixed}'


def _value(row: Parameter) -> str:
    return json.dumps(row.default)


def main() -> None:
    """Rewrite both files."""
    YAML.write_text(yaml_text(), encoding='utf-8')
    INTERFACE.write_text(with_tables(INTERFACE.read_text(encoding='utf-8')), encoding='utf-8')


if __name__ == '__main__':
    main()
