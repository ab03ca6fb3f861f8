# SPDX-License-Identifier: Apache-2.0
"""What docs/interface.md says of topics and reasons, against the code."""

from pathlib import Path
import re

import pytest

from alpamayo_node.errors import Reason
from tests.ros.harness import Harness

pytestmark = pytest.mark.ros

TEXT = (Path(__file__).parents[2] / 'docs' / 'interface.md').read_text(encoding='utf-8')


def test_documents_name_every_reason() -> None:
    named = set(re.findall(r'`([a-z_]+)`', TEXT))
    assert {str(reason) for reason in Reason} <= named


def test_documents_name_the_topics_and_types_that_the_node_has() -> None:
    rows = re.findall(r'^\| `([\w/]+)` \| `([\w/]+)` \| (in|out)', TEXT, re.MULTILINE)
    harness = Harness()
    harness.start()
    try:
        node, kinds = harness.node, {'in': set(), 'out': set()}
        name, namespace = node.get_name(), node.get_namespace()
        for direction, found in (
            ('in', node.get_subscriber_names_and_types_by_node(name, namespace)),
            ('out', node.get_publisher_names_and_types_by_node(name, namespace)),
        ):
            kinds[direction] = {(topic, *types) for topic, types in found}
        for topic, kind, direction in rows:
            full = topic if topic.startswith('/') else f'/{topic}'
            assert (full, kind.replace('/', '/msg/')) in kinds[direction], topic
        ours = {t for t, *_ in kinds['in'] | kinds['out']}
        ours -= {'/rosout', '/parameter_events', '/clock', '/alpamayo_planner/transition_event'}
        assert ours == {t if t.startswith('/') else f'/{t}' for t, _, _ in rows}
    finally:
        harness.close()
