"""Options that several commands share, and the scenario that they describe."""

from pathlib import Path
from typing import Annotated, Any

import typer

from refimpl.core.errors import require
from refimpl.core.option_groups import as_file, as_folder
from simulator.settings.fields import to_mapping
from simulator.settings.paths import apply_settings
from simulator.settings.plain_yaml import parse_yaml
from simulator.settings.scenario import Scenario, from_data, load_scenario

FILE: dict[str, Any] = {"parser": as_file, "metavar": "PATH"}  # of an option that names one
FOLDER: dict[str, Any] = {"parser": as_folder, "metavar": "PATH"}  # of an option that names one

ScenarioPath = Annotated[
    Path | None,
    typer.Argument(
        parser=as_file,
        help="Scenario YAML, or a shipped one: example, example/plan, example/fleet, example/priorities. Without it "
        "all settings have their defaults.",
    ),
]
FirstPath = Annotated[Path, typer.Argument(parser=as_file, help="Scenario a: its YAML file, or the word example.")]
SecondPath = Annotated[
    Path | None, typer.Argument(parser=as_file, help="Scenario b: its YAML file. Without it, a as changed by --set.")
]
SweepPath = Annotated[
    Path,
    typer.Argument(
        parser=as_file, help="Sweep YAML (base, replications, and grid, latin or sobol), or the word example."
    ),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Change a setting: PATH=VALUE, for example engine.batch_size=4.")
]
Replications = Annotated[int, typer.Option("--replications", "-n", help="Runs with different random numbers.")]
Workers = Annotated[int, typer.Option(min=1, help="Worker processes; results do not depend on them.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON on stdout, tables on stderr.")]


def read_scenario(path: Path | None, sets: list[str] | None) -> Scenario:
    """Scenario from a file and ``PATH=VALUE`` changes.

    Raises:
        InputError: what `load_scenario` refuses, a change without ``=``, or one to no setting.
    """
    data, changes = to_mapping(load_scenario(path) if path else Scenario()), dict[str, Any]()
    for change in sets or []:
        name, equals, value = change.partition("=")
        require(bool(equals and name.strip()), f"--set {change}: must be PATH=VALUE")
        changes.pop(name.strip(), None)  # the later one counts, in its place
        changes[name.strip()] = parse_yaml(value, f"--set {change}")
    apply_settings(data, changes)
    return from_data(data)
