"""Every declared setting refuses a value that is not of its type, in one line that names it."""

import math
from dataclasses import fields
from types import NoneType, UnionType
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from refimpl.core.config import DecodeConfig, SamplingConfig
from refimpl.core.drafting import DraftingConfig
from refimpl.core.errors import InputError
from refimpl.core.request import Request
from simulator.settings.fields import COUNTS, PROBABILITIES, TEXT, TIMES, Range, Spec, as_spec
from simulator.settings.kinds import KINDS
from simulator.settings.scenario import Engine, Scenario, Service, Study, Switches, Workload

CLASSES = (SamplingConfig, DraftingConfig, DecodeConfig, Request, Engine, Service, Study, Switches, Workload, Scenario)
ELSEWHERE = {"Request.prompt"}  # checked with the pair that reads it
SETTINGS = {
    f"{cls.__name__}.{item.name}": (cls, item.name, get_type_hints(cls)[item.name])
    for cls in CLASSES
    for item in fields(cls)
}
GIVEN = {Request: {"prompt": [1]}, Study: {"num_requests": 4}}  # what has no default, or is needed
MAPPING = {"wrong": "value"}
OTHERS = ["1", "", True, math.nan, None, [1], MAPPING]
WRONG = {  # values that no setting of a type takes
    int: [*OTHERS, -(2**70), 2.5, math.inf, -math.inf],
    float: [*OTHERS, -1e30, -math.inf],
    bool: [0, 1, "no", None, math.nan, MAPPING],
    str: [5, None, True, MAPPING],
    Literal: ["magic", "", 5, ["magic"], MAPPING],
    Spec: ["magic", 5, True, MAPPING, {"kind": "magic"}],
    NoneType: [value for value in OTHERS if value is not None] + [5, -(2**70), -1e30, 2.5, -math.inf],
}
OF_THE_REST = [5, True]  # parts and lists


def kinds(hint):
    """The types that a setting may have."""
    if isinstance(hint, UnionType) or (get_origin(hint) is not None and NoneType in get_args(hint)):
        return [kind for part in get_args(hint) for kind in kinds(part)]
    return [get_origin(hint) or hint]


def wrong_values(hint):
    """Values that none of its types takes."""
    first, *others = (WRONG.get(kind, OF_THE_REST) for kind in kinds(hint))
    return [
        value for value in first if all(any(value is v or repr(value) == repr(v) for v in wrong) for wrong in others)
    ]


def refusal(cls, name, value):
    """What is said of a value; empty where it is accepted."""
    try:
        cls(**GIVEN.get(cls, {}) | {name: value})
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("setting", sorted(set(SETTINGS) - ELSEWHERE))
def test_values_of_another_type_are_refused_by_name(setting):
    cls, name, hint = SETTINGS[setting]
    said = {repr(value): refusal(cls, name, value) for value in wrong_values(hint)}
    assert said
    assert {value: line for value, line in said.items() if name not in line or "\n" in line} == {}


def test_no_class_of_settings_is_empty():
    assert len(SETTINGS) > 80


PARAMETERS = [(table, kind, name) for table, of in KINDS.items() for kind, rules in of.items() for name in rules]


def refused_by(rule):
    """Values that a rule of a parameter refuses."""
    if isinstance(rule, Range):
        beyond = [10 * end for end in (rule.high, rule.most) if 0 < end < math.inf]
        return [*OTHERS, rule.low - 1, *beyond]
    lists = {COUNTS: [5, "1", [], [1, -1]], PROBABILITIES: [5, "1", [], [0.5, 2]], TIMES: [5, "1", [], [1.0, -1.0]]}
    return {TEXT: [5, "", None], **lists}.get(rule, ["", 5.5])


def taken_by(rule):
    """A value that a rule takes."""
    if isinstance(rule, Range):
        return max(rule.low, 1) if rule.integer else (rule.low + min(rule.high, rule.low + 2)) / 2
    return {TEXT: "x", COUNTS: [1], PROBABILITIES: [0.5], TIMES: [1.0]}[rule]


@pytest.mark.parametrize(("table", "kind", "name"), PARAMETERS)
def test_parameters_of_a_kind_are_refused_by_name(table, kind, name):
    rules = KINDS[table][kind]
    given = {other: taken_by(rule) for other, rule in rules.items() if not isinstance(rule, tuple)}
    rule, *default = rules[name] if isinstance(rules[name], tuple) else (rules[name],)
    wrong = [given | {name: value} for value in refused_by(rule) if value not in default]
    wrong += [] if default else [{other: value for other, value in given.items() if other != name}]
    assert as_spec({"kind": kind, **given}, KINDS[table], "part").kind == kind
    for values in wrong:
        with pytest.raises(InputError, match=rf"^part\.{name}\b[^\n]*$"):
            as_spec({"kind": kind, **values}, KINDS[table], "part")
