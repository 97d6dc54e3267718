"""The program `cl2r`: a group of commands whose modules are imported when they are used."""

import importlib

import click
from click.shell_completion import get_completion_class

from cl2r import __version__
from cl2r.cli.options import HelpGroup, run_program
from cl2r.errors import nearest

MODULES = {
    "run": ["run", "schema"],
    "study": ["study", "plan"],
    "report": ["status", "report"],
    "lists": ["methods", "datasets"],
    "calibrate": ["calibrate"],
    "fsck": ["fsck"],
    "gallery": ["index", "search", "gallery", "upgrade-check", "export", "serve"],
    "main": ["completion"],
}
STUDIES = ("recommend",)  # studies that are commands of their own
COMMANDS = {command: f"cl2r.cli.{module}" for module, commands in MODULES.items() for command in commands}
COMMANDS |= dict.fromkeys(STUDIES, "cl2r.cli.study")


class LazyGroup(HelpGroup):
    """The group of COMMANDS; imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        if cmd_name in STUDIES:
            command: click.Command = module.load_command(cmd_name)
            return command
        command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], COMMANDS)}; `cl2r --help` lists the commands")
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    subcommand_metavar="[COMMAND] [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name="cl2r", message="%(prog)s %(version)s")
def cli() -> None:
    """Train chains of models, search old galleries with new models, and measure whether that still works."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    eval "$(cl2r completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None
    if shell == "bash":  # which would take RUN@t for two words
        click.echo('COMP_WORDBREAKS="${COMP_WORDBREAKS//@/}"')
    click.echo(kind(cli, {}, "cl2r", "_CL2R_COMPLETE").source())


def main() -> None:
    """Run the program and exit with one of the codes in README.md."""
    run_program(cli, "cl2r")
