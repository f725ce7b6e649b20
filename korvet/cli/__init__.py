"""The command line: `korvet serve`, and the usual commands of a Kafka client.

Each command is a separate module, imported when it is called. `korvet serve` loads no other command, and so it serves
within half a second. All commands except `serve` use the Kafka protocol (`korvet.client`), so they work with any Kafka.

If a command fails, the user sees one line and no traceback. The exit status is 2 for wrong usage (an option, a setting,
an invalid address) and 1 for other errors. Ctrl-C and broken pipes end a command without a message, with the exit
status of the signal. KORVET_TRACEBACK=1 prints the traceback of an error.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from korvet import __version__
from korvet.cli.lazy import LazyGroup

# Name -> purpose. The module korvet.cli.<name>, with _ for -, has the command as `command`.
COMMANDS = {
    "serve": "Start a broker.",
    "dev-cluster": "Start brokers on a Redis Cluster of this machine, for trying and for tests.",
    "config": "Show the settings of a broker without running it.",
    "doctor": "Check ports, addresses, Redis and limits for a broker.",
    "repair": "Find damage in the data of embedded storage, and cut it off.",
    "topics": "List, create, describe, alter and delete topics.",
    "configs": "Show and alter the settings of topics and brokers.",
    "acls": "Add, list and remove ACLs.",
    "quotas": "List, set and remove client quotas.",
    "groups": "List, describe and delete consumer groups, and reset their offsets.",
    "transactions": "List and describe transactions, and find and abort those that hang.",
    "top": "Show topics, groups and brokers live in the terminal.",
    "produce": "Write records to a topic, from lines or JSON lines.",
    "consume": "Read the records of topics.",
    "web": "Serve a web page with the topics, records, groups and brokers of a cluster.",
    "records": "Delete records from the start of partitions.",
    "brokers": "List the brokers of a cluster, and describe one of them.",
    "cluster": "Describe the brokers of a cluster, and the sizes of their partitions.",
    "profiles": "List the profiles: named clusters with their settings.",
    "fault": "Inject faults into the answers of a broker, for tests of its clients.",
    "lake": "Archive topics to lake tables, and maintain the tables.",
    "users": "Add, remove and list users, who log in with a password.",
    "offsets": "Print the offsets of a topic's partitions: first, next, or at a time.",
}


@click.group(
    cls=LazyGroup,
    purposes=COMMANDS,
    prefix="korvet.cli.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="korvet %(version)s")
def program() -> None:
    """Run and use a broker that speaks the Kafka protocol and keeps its data in Redis Streams, or in memory.

    `korvet serve` starts one. The other commands work against any Kafka: korvet topics list
    --bootstrap-servers broker:9092, or KORVET_BOOTSTRAP_SERVERS=broker:9092.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit. Only this function converts the errors of commands to messages."""
    fill_standard_streams()
    try:
        run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        status = 0
    except BaseException as error:  # noqa: BLE001  the outermost function
        status = report(innermost(error))
    leave(status)


def fill_standard_streams() -> None:
    """Open /dev/null for standard input, output and error if the caller closed them, as daemons do.

    Python has None for a closed stream, and the next file or socket would get its descriptor.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor, inheritable=True)
                os.close(opened)
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115  for the life of the process


def run(arguments: Sequence[str]) -> None:
    """Run the command that the arguments name. Raises the errors of the command."""
    if "_KORVET_COMPLETE" in os.environ:  # a shell requests completions
        program.main(prog_name="korvet")
    with program.make_context("korvet", list(arguments)) as context:
        program.invoke(context)


def leave(status: int) -> NoReturn:
    """Exit, without Python's message about a broken pipe at stdout."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def report(error: BaseException) -> int:
    """Print an error in one line, and return the exit status."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return 128 + signal.SIGINT
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE
    if os.environ.get("KORVET_TRACEBACK"):
        raise error
    status, message = explain(error)
    click.echo(message, err=True)
    return status


def innermost(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups, which Trio's nurseries raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit status and the message for an error."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return 2, error.format_message()
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "korvet"
        return 2, f"{command}: {error.format_message()} (See {command} --help.)"
    if isinstance(error, click.ClickException):
        return error.exit_code, f"korvet: {error.format_message()}"
    if isinstance(error, OSError):
        return 1, f"korvet: {describe_os_error(error)}"
    if isinstance(error, ImportError):  # the modules below may be what cannot be imported
        return explain_fault(error)
    return explain_own(error)


def explain_own(error: BaseException) -> tuple[int, str]:
    """Return the same for errors of the broker and the client."""
    from korvet.config import ConfigError
    from korvet.devcluster.processes import DevClusterError
    from korvet.lake.errors import InvalidLocation, LakeError
    from korvet.protocol.errors import KafkaError
    from korvet.security.authorizer import AuthorizerUsageError
    from korvet.server.listeners import ListenError
    from korvet.storage.interface import StorageUsageError
    from korvet.workers.forking import ForkerEnded
    from korvet.workers.parent import WorkersFail

    if isinstance(error, ConfigError):
        return 2, "\n".join(f"korvet: {line}" for line in error.errors)
    if isinstance(error, (StorageUsageError, AuthorizerUsageError, InvalidLocation)):
        return 2, f"korvet: {error}"
    if isinstance(error, (ListenError, LakeError, WorkersFail, ForkerEnded, DevClusterError)):
        return 1, f"korvet: {error}"
    if isinstance(error, KafkaError):
        return 1, f"korvet: {error} ({error.error_code.name})"
    return explain_fault(error)


def explain_fault(error: BaseException) -> tuple[int, str]:
    """Return the same for an error that no command raises on purpose."""
    fault = f"{type(error).__name__}: {error}".strip()
    return 1, f"korvet: {fault} (an error in korvet; KORVET_TRACEBACK=1 prints the traceback)"


def describe_os_error(error: OSError) -> str:
    """Return the system's message for an error, with the file's name if there is one."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason
