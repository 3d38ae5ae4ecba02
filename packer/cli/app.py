"""The group of commands, what ends a job early, and the exit status."""

from __future__ import annotations

import difflib
import importlib
import os
import signal
from types import FrameType

import click

import packer
from packer.cli.commands import COMMANDS, DEFAULT_COMMAND
from packer.cli.show import OutputClosed, emit, warn
from packer.errors import OptionError, PackerError
from packer.formats import names
from packer.nursery import end_early

__all__ = ["app", "run"]

# SIGHUP: the terminal or the connection is gone. Under nohup it is ignored, and stays so.
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived. Not an ``Exception``, so that no handler in between takes it for a failure of one file."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Group(click.Group):
    """``pack SRC`` packs; ``pack verify DATASET`` and the like are commands. Each is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if name != DEFAULT_COMMAND]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"packer.cli.{cmd_name}").command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.list_commands(ctx), *ctx.help_option_names, "--version"):
            _refuse_mistyped_command(args, self.list_commands(ctx))
            asks_for_help = not set(ctx.help_option_names).isdisjoint(args)
            args = ["--help"] if asks_for_help else [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Packing first: it is what most people want to know."""
        default = self.get_command(ctx, DEFAULT_COMMAND)
        if default is None:
            return
        formatter.write_usage(ctx.command_path, f"SRC --format {'|'.join(names())} [-o OUT] [OPTIONS]")
        formatter.write_usage(ctx.command_path, "COMMAND ...", prefix="   or: ")
        default.format_help_text(ctx, formatter)
        with click.Context(default, parent=ctx, info_name=ctx.info_name) as inner:
            default.format_options(inner, formatter)
        self.format_commands(ctx, formatter)
        self.format_epilog(ctx, formatter)


def _refuse_mistyped_command(args: list[str], commands: list[str]) -> None:
    word = args[0]
    if word.startswith("-") or os.sep in word or word == DEFAULT_COMMAND:
        return
    try:
        os.lstat(word)
        return
    except FileNotFoundError:
        pass  # no such folder, so it may be a command
    except (OSError, ValueError):
        return
    near = difflib.get_close_matches(word, commands, 1, 0.6)
    if near:
        raise click.UsageError(f"No folder and no command {word!r}. Did you mean `pack {near[0]}`?")


@click.group(
    cls=_Group,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`pack COMMAND --help` says more. A folder called like a command is packed as ./verify.",
)
@click.version_option(packer.__version__, message="packer %(version)s")
def app() -> None:
    """Pack a folder of images or .npy files."""


def run(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    previous = {number: signal.signal(number, _terminate) for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN}
    try:
        status = app.main(args, prog_name="pack", standalone_mode=False)
        emit([])
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except OptionError as error:
        warn(f"{error}. `pack --help` shows what there is.")
        return error.exit_status
    except PackerError as error:
        warn(_with_notes(str(error), error))
        return error.exit_status
    except (KeyboardInterrupt, click.Abort) as interrupt:
        warn(_with_notes("interrupted", interrupt))
        return 130
    except Terminated as ending:
        warn(_with_notes("terminated", ending))
        return 128 + ending.number
    except OutputClosed as closed:
        # `pack ls DATASET | head`: nobody reads any more. Python would try once more while it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(closed.__cause__, BrokenPipeError):
            return 141  # as a command that SIGPIPE ended
        warn(f"standard output: {closed}")
        return 1
    finally:
        end_early()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _with_notes(message: str, error: BaseException) -> str:
    """A message with what the job has added about what it leaves; notes are whole sentences."""
    # click makes its own exception of an interrupt; the job's is its cause
    notes = " ".join(dict.fromkeys(note for one in (error, error.__cause__) for note in getattr(one, "__notes__", ())))
    return f"{message.removesuffix('.')}. {notes}" if notes else message


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)
