# SPDX-License-Identifier: Apache-2.0
"""
The `alpamayo` command: sub-commands by name, each in a module that is imported when it is called.

Exit codes: 0 done; 1 done, but the answer is no (no valid plan, a failed check, a refused input);
2 wrong usage; 130 interrupted.
"""

from argparse import ArgumentParser
from argparse import RawDescriptionHelpFormatter
import importlib
import os
import sys

from alpamayo_node import __version__
from alpamayo_node.errors import AlpamayoError
from alpamayo_node.threads import limit_spinning

COMMANDS = {
    'demo': ('demo', 'plan contexts in separate processes and show them'),
    'fingerprint': ('fingerprint', 'print the fingerprint of a checkpoint'),
    'make-checkpoint': ('make_checkpoint', 'write a random checkpoint in the released layout'),
    'make-context': ('make_context', 'run a random text model and write its KV cache'),
    'plan': ('plan', 'make one plan without ROS'),
    'preflight': ('preflight', 'check this machine, one line each, with the fix'),
}
EXIT_REFUSED = 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_EPILOG = """\
examples:
  alpamayo make-checkpoint --preset tiny ckpt
  alpamayo make-context --checkpoint ckpt a.safetensors
  alpamayo plan --checkpoint ckpt --context a.safetensors

exit codes: 0 done; 1 the answer is no; 2 wrong usage; 130 interrupted
"""


def main(argv: list[str] | None = None) -> int:
    """
    Run one command.

    :param argv: arguments without the program's name; default: the process's own
    :return: exit code
    """
    limit_spinning()
    arguments = sys.argv[1:] if argv is None else argv
    # Only the module of the command that is called is imported: some take seconds.
    chosen = arguments[0] if arguments and arguments[0] in COMMANDS else None
    parser = _parser(chosen)
    args = parser.parse_args(arguments)
    try:
        code = importlib.import_module(_module_of(args.command)).run(args)
        sys.stdout.flush()
    except AlpamayoError as error:
        print(f'alpamayo {args.command}: {error}', file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough; flushing the rest at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return int(code)


def _parser(chosen: str | None) -> ArgumentParser:
    parser = ArgumentParser(prog='alpamayo', description='Tools around the Alpamayo planner.')
    parser.epilog = _EPILOG
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.add_argument('--version', action='version', version=f'alpamayo {__version__}')
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    for name, (_, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name == chosen:
            importlib.import_module(_module_of(name)).add_arguments(command)
    return parser


def _module_of(command: str) -> str:
    return f'alpamayo_node.tools.{COMMANDS[command][0]}'


if __name__ == '__main__':
    sys.exit(main())
