# SPDX-License-Identifier: Apache-2.0
"""The command line as a second opinion on what a node planned."""

import json
from typing import Any

from alpamayo_msgs.msg import VlmContext
import pytest

from alpamayo_node.model.context_file import history_to_json
from alpamayo_node.ros import convert
from alpamayo_node.tools import cli
from tests.system.processes import Scene


def command_line_plan(
    scene: Scene, announced: VlmContext, capsys: pytest.CaptureFixture[str], *options: str
) -> dict[str, Any]:
    """Plan the same context with `alpamayo plan` on the CPU, from what went over the wire."""
    context = convert.context_from_message(announced)
    samples = context.history or [
        convert.sample_from_odometry(message, 'map', 'base_link')
        for message in scene.listener.odometry
    ]
    history = scene.tmp_path / 'history.json'
    poses = json.loads(history_to_json(samples))
    history.write_text(json.dumps({'frame_id': context.frame_id, 'samples': poses}))
    capsys.readouterr()
    argv = ['plan', '--checkpoint', str(scene.checkpoint), '--json', '--seed', '0']
    argv += ['--context', str(scene.contexts / context.location)]
    argv += ['--history', str(history), '--t0', str(context.t0_ns)]
    argv += options
    assert cli.main(argv) == 0
    (plan,) = json.loads(capsys.readouterr().out)['plans']
    result: dict[str, Any] = plan
    return result
