"""How commands show help and errors: options in groups, usage errors in one line that names the fix."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from marginattack.cli.common import fail
from marginattack.cli.options import GROUPS, group_of
from marginattack.errors import choose

UsageError: Any = typer.BadParameter.__base__  # of click, which new versions of typer contain and old ones import
MANY = 15  # options; a longer help shows them in groups


class Command(TyperCommand):
    """A command; a long help shows its options in ``GROUPS``."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        parameters: list[Any] = self.get_params(ctx)
        shown = [(each, record) for each in parameters if (record := each.get_help_record(ctx)) is not None]
        if len(shown) <= MANY:
            return super().format_options(ctx, formatter)
        for group in GROUPS:
            rows = [record for each, record in shown if (each.rich_help_panel or group_of(each.name)) == group]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)
        return None


class Group(TyperGroup):
    """The program: a usage error of any command ends it with one line and exit code 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        return super().parse_args(ctx, args or ["--help"])

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _one_line_usage():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _one_line_usage():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise UsageError(f"no command named {args[0]!r}: {choose(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@contextmanager
def _one_line_usage() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        fail(_explain(error), 2)


def _explain(error: Any) -> str:
    """Explain a usage error: what is wrong with the arguments, and what to write instead."""
    message, context = str(error.message).rstrip("."), error.ctx
    message = message[:1].lower() + message[1:]
    if needy := re.search(r"option '(.*)' requires an argument", message):
        return f"{needy[1]} has no value: write {needy[1]} VALUE"
    if context is None:
        return message
    see = f"see `{context.command_path} --help`"
    if unknown := getattr(error, "option_name", None):
        known = [name for each in context.command.get_params(context) for name in each.opts]
        return f"no option named {unknown}: {choose(unknown, known)}"
    if parameter := getattr(error, "param", None):
        name = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar
        if not message:
            return f"{name} is missing: {parameter.help}"
        rejected: Any = getattr(error.__cause__, "errors", list)()  # of pydantic, with the value
        value = f" is {rejected[0]['input']!r}" if rejected else ""
        return f"{name}{value}: {message.removeprefix('value error, ')} ({parameter.help})"
    if extra := re.search(r"unexpected extra argument\S* \((.*)\)", message):
        return f"{extra[1]!r} belongs to no option: write --option VALUE; {see}"
    return f"{message}: {see}"
