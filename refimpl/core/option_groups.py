"""Option groups of a command line: dataclasses whose fields are options, and commands that take such objects."""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from refimpl.core.declared import Range, hints_of

Command = TypeVar("Command", bound=Callable[..., None])
Group = TypeVar("Group")
MODELS, PROMPTS, SAMPLING, ENGINE, OUTPUT = "Models", "Prompts", "Sampling", "Engine", "Output"  # panels of the help


def command(app: typer.Typer, *examples: str) -> Callable[[Command], Command]:
    """Add a function to an application as a command; its parameters may be option groups (see `grouped`).

    Args:
        app: gets the command, named after the function.
        examples: command lines without `raggedspec`, shown below the options.
    """
    lines = [f"[bold]raggedspec {example}[/bold]" for example in examples]
    epilog = "\n\n".join([f"Example{'s' * (len(lines) > 1)}: {lines[0]}", *lines[1:]])

    def add(function: Command) -> Command:
        app.command(epilog=epilog, cls=_HelpForNarrowTerminals)(grouped(function))
        return function

    return add


class _HelpForNarrowTerminals(TyperCommand):
    """A command whose help tells further names of options in their texts, so that no name is cut at 80 columns."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        narrow = copy(self)
        narrow.params = [_with_names_in_text(each) for each in self.params]
        TyperCommand.format_help(narrow, ctx, formatter)


def _with_names_in_text(parameter: Any) -> Any:
    """An option whose column has one long name; its text tells the others, and what switches it off."""
    shown, aliases = copy(parameter), [name for name in parameter.opts if name.startswith("--")][1:]
    default = " (default)" if parameter.default is False else ""
    told = [f"Same: {', '.join(aliases)}."] * bool(aliases)
    told += [f"Opposite{default}: {name}." for name in parameter.secondary_opts]
    shown.help = " ".join([parameter.help or "", *told])
    shown.opts, shown.secondary_opts = [name for name in parameter.opts if name not in aliases], []
    return shown


def option(panel: str, help_: str, *names: str, none: str | None = None, **more: Any) -> Any:
    """Declare an option: the panel of the help it appears in, what it does, and what the default None stands for."""
    return typer.Option(*names, help=help_, rich_help_panel=panel, show_default=none or True, **more)


HtmlPath = Annotated[Path | None, option(OUTPUT, "Write the report to this page, failing batches drawn.")]
JunitPath = Annotated[Path | None, option(OUTPUT, "Write the verdicts to this XML file, as JUnit does.")]


def option_of(settings: type, name: str, panel: str, **more: Any) -> Any:
    """The option of a declared setting: its names, what it sets, and what None stands for."""
    declared = next(item.metadata for item in fields(settings) if item.name == name)  # type: ignore[arg-type]
    return option(panel, declared["help"], *declared["option"] or (), none=declared["none"], **more)


def declared_options(settings: type, *, panel: str, only: Collection[str] = ()) -> Callable[[type[Group]], type[Group]]:
    """Class decorator: a group of the options that settings have of their own, see `refimpl.core.declared.setting`.

    Args:
        settings: a dataclass of settings.
        panel: of the help.
        only: names of some of the settings; empty for all.
    """

    def add(cls: type[Group]) -> type[Group]:
        own: dict[str, Any] = {}
        for item in fields(settings):  # type: ignore[arg-type]
            if item.metadata["option"] is not None and item.name in (only or (item.name,)):
                kind = _typed(hints_of(settings)[item.name], item.metadata["range"])
                declared = option_of(settings, item.name, panel)
                own[item.name] = Annotated[kind, declared]
                setattr(cls, item.name, None if kind == list[str] | None else item.default)
        cls.__annotations__ = own | inspect.get_annotations(cls)
        return dataclass(frozen=True, kw_only=True)(cls)

    return add


def _typed(hint: Any, limits: Any) -> Any:
    """The type of a setting as typer reads it: a list for several texts, a literal type for a choice."""
    if limits is not None and not isinstance(limits, Range):
        return Literal[tuple(limits)]
    return list[str] | None if get_origin(hint) is Sequence else hint


def as_file(text: str) -> Path:
    """What an option says, as the path of a file; nothing is none, though to `Path` it is the folder that one is in."""
    return _as_path(text, "file")


def as_folder(text: str) -> Path:
    """What an option says, as the path of a folder; the folder that one is in is a dot, and not nothing."""
    return _as_path(text, "folder")


def _as_path(text: str, kind: str) -> Path:
    if not str(text):
        raise typer.BadParameter(f"must name a {kind}, and is empty")
    return Path(text)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Show typer one option for each field of the dataclasses that a command takes; call it with the built objects.

    A field declares an option as a parameter would: ``limit: Annotated[int | None, option(…)] = None``. If the
    parameter has an object as its default, the values of that object are the defaults of the options.

    Args:
        command: a function whose parameters, passed by name, are option groups or options of its own.

    Raises:
        ValueError: two options have the same name.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    options: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        own = [parameter.replace(annotation=hints[name])]
        options += _fields_as_parameters(groups[name], parameter.default) if name in groups else own

    @wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    shown = [option.replace(annotation=_with_default_and_choices_shown(option)) for option in options]
    call.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in shown}
    return call


def changed(group: Any, usual: Any) -> list[str]:
    """Names, as on the command line, of the options of a group whose values are not those of another such object."""
    names = [field.name for field in fields(group) if getattr(group, field.name) != getattr(usual, field.name)]
    return [f"--{name.strip('_').replace('_', '-')}" for name in names]


def _fields_as_parameters(group: Any, defaults: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = field.default if defaults is inspect.Parameter.empty else getattr(defaults, field.name)
        default = inspect.Parameter.empty if default is MISSING else default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )


def _with_default_and_choices_shown(parameter: inspect.Parameter) -> Any:
    """The annotation of an option; a text in `show_default` says what None stands for, other defaults are shown.

    Choices are told in the text, and kinds of bounded numbers in a letter, because the column of types would leave no
    room for the names of options. Paths are those of files, unless the option says otherwise.
    """
    kind, declared = get_args(parameter.annotation)[:2]
    declared = copy(declared)
    if parameter.default is not None and isinstance(declared.show_default, str):
        declared.show_default = True
    if declared.min is not None:
        declared.metavar = "N"
    if Path in (kind, *get_args(kind)) and declared.parser is None:
        declared.parser, declared.metavar = as_file, "PATH"
    if choices := _choices(kind):
        declared.help, declared.metavar = f"{declared.help} One of {', '.join(choices)}.", "NAME"
    return Annotated[kind, declared]


def _choices(kind: Any) -> tuple[str, ...]:
    """Values of a literal type, which may be optional; nothing for other types."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return next((found for part in get_args(kind) if (found := _choices(part))), ())
