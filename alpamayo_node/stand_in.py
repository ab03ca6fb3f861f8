# SPDX-License-Identifier: Apache-2.0
"""The stand-in's executable: the ROS node, and the reader of context files that it is given."""

from alpamayo_node.model.context_file import digest_of
from alpamayo_node.model.context_file import read_context_info
from alpamayo_node.ros.process import EndFlag
from alpamayo_node.ros.process import run_until_signal
from alpamayo_node.ros.stand_in import StandInNode


def main() -> int:
    """Play context files until a signal, or until the count is reached; 0 then."""

    def make_node(stop: EndFlag) -> StandInNode:
        return StandInNode(read_context_info, digest_of, stop)

    return run_until_signal(make_node)
