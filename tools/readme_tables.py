"""The tables of the pages, each made of a data file by a list of columns.

A column is a heading and a format of a row's numbers, or a function of the row. Besides Python's formats there are
``.1%`` with a space before the sign, and ``.1m``, ``.1M``, ``.1G`` and ``.1i`` for thousandths, millions, billions and
mebi; what is None or absent is left blank.
"""

import inspect
import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from itertools import groupby
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import yaml
from pages import markdown_table

from refimpl.bench.demo import NO_DRAFTS, PLAIN
from simulator.engine_runs.validation import read_validation
from simulator.service.roofline import LAYERS, RooflineCost
from simulator.settings.calibration import load_calibration
from simulator.settings.fields import Spec, as_data
from simulator.settings.kinds import KINDS
from simulator.settings.parts import RequestClass, Service, Study, Switches, Workload
from simulator.studies.roofline_calibration import compare_calibration, summarize_components

Row = dict[str, Any]
Cell = str | Callable[[Row], str]
ROOT = Path(__file__).parent.parent
SCALES = {"%": 0.01, "m": 1e-3, "M": 1e6, "G": 1e9, "i": 1 << 20}


class Scaled(Formatter):
    """Formats of this module, see above."""

    def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
        """None where a row has no such number."""
        return kwargs.get(key)

    def format_field(self, value: Any, spec: str) -> str:
        """A number divided by its scale."""
        if value is None:
            return ""
        if spec[-1:] in SCALES:
            return f"{value / SCALES[spec[-1]]:{spec[:-1]}f}{' %' if spec.endswith('%') else ''}"
        return format(value, spec)


FORMAT = Scaled().vformat


def shown(cell: Cell, row: Row) -> str:
    """A cell of a row."""
    return FORMAT(cell, (), row) if isinstance(cell, str) else cell(row)


def tabulate(rows: Iterable[Row], columns: dict[str, Cell], texts: Sequence[str] = ()) -> str:
    """A line for each row, a column for each heading."""
    return markdown_table([*columns], [[shown(cell, row) for cell in columns.values()] for row in rows], texts)


def pivoted(corner: str, cells: Iterable[tuple[str, str, str]]) -> str:
    """A line for each first word of the cells, a column for each second one, as they come."""
    lines: dict[str, dict[str, str]] = {}
    for line, heading, cell in cells:
        lines.setdefault(line, {})[heading] = cell
    headings = list(dict.fromkeys(heading for line in lines.values() for heading in line))
    return markdown_table(
        [corner, *headings], [[line, *(found.get(head, "") for head in headings)] for line, found in lines.items()]
    )


def read(name: str) -> Any:
    """A data file of docs/results."""
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())


def source(meta: Row, path: str) -> str:
    """The command and the machine that a table's data come from."""
    threads = f", {meta['torch_threads']} torch threads" if "torch_threads" in meta else ""
    return f"\n`{meta['command']}` · {meta.get('device', 'simulated')}{threads} · [data]({path})\n"


def sourced(name: str, text: str) -> str:
    """A table, with the source of its data below it."""
    data = read(name)
    return text + source(data.get("meta") or data["environment"], f"results/{name}.json")


def of_rows(name: str, columns: dict[str, Cell], key: str = "rows") -> Callable[[], str]:
    """A table of the rows of a data file; rows know what is the same for all of them."""

    def table() -> str:
        data = read(name)
        return sourced(name, tabulate([data | row for row in data[key]], columns))

    return table


def of_cells(name: str, corner: str, cells: Callable[[Any], Iterable[tuple[str, str, str]]]) -> Callable[[], str]:
    """A pivoted table of a data file."""
    return lambda: sourced(name, pivoted(corner, cells(read(name))))


def interval(values: Sequence[float], digits: str = ".2f") -> str:
    """A value with its interval."""
    value, low, high = (f"{value:{digits}}" for value in values)
    return f"{value} ({low}–{high})"


def ratio(row: Row) -> str:
    """Median of the ratios within repeats, with the least and the greatest."""
    ratios = row["ratios"]
    return interval((statistics.median(ratios), min(ratios), max(ratios)))


# --- exactness -------------------------------------------------------------------------------------------------------

EXACT = {
    "verify-greedy": "greedy, batch 1, 4 and 8",
    "verify-paged": "greedy, `paged` and `continuous`, batch 1, 4 and 8",
    "verify-lean": "greedy, lean layers, batch 8",
    "verify-penalties": "greedy, penalties and least lengths by turns, batch 8",
    "verify-t07-seed1": "temperature 0.7, seed 1",
    "verify-t10": "temperature 1.0",
    "verify-t07": "temperature 0.7, seed 0",
    "verify-t07-float64": "the same in float64, the two runs that differed",
    "bitwise-t07": "the same in float32, shape-stable",
    "bitwise-paged": "shape-stable, with shared blocks",
    "bitwise-lean": "temperature 0.7, shape-stable, lean layers, bundled prompts",
    "bitwise-lean-bf16": "the same in bfloat16",
    "verify-gpu-smoke": "greedy, every method, float32",
    "verify-gpu-smoke-recorded": "recorded rounds",
    "verify-gpu-smoke-overlapped": "overlapped rounds",
    "bitwise-gpu-greedy": "shape-stable, bfloat16",
}


def exact() -> str:
    """Outputs that equal ordinary decoding, a line for each committed file."""
    rows = [{"file": name, "label": label} | counted(read(name)) for name, label in EXACT.items()]
    columns: dict[str, Cell] = {
        "run": "[{label}](results/{file}.json)", "device": lambda row: row["device"].partition(",")[0],
        "prompts": "{prompts}", "runs": "{runs}",
        "tokens equal": "{exact:,}/{total:,}", "equal to the last bit": "{bitwise:,}",
        "failed checks": "{violations}",
    }  # fmt: skip
    return tabulate(rows, columns, texts=("device",))


def counted(data: Row) -> Row:
    """Sums over the runs of a file."""
    runs = data["results"]
    bits = sum(run["bitwise"] for run in runs) if "bitwise" in runs[0] else None
    found = {"exact": sum(run["exact"] for run in runs), "total": data["prompts"] * len(runs), "bitwise": bits}
    violations = sum(len(run["violations"]) for run in runs)
    return (
        {"device": data["meta"]["device"], "prompts": data["prompts"], "runs": len(runs)}
        | found
        | {"violations": violations}
    )


# --- speed -----------------------------------------------------------------------------------------------------------


def brief_demo() -> str:
    """The demonstration at its batch size, with the columns that a first reader needs."""
    data, names = read("demo"), {PLAIN: "transformers `generate`", NO_DRAFTS: "`inplace` without drafts"}
    settings, meta = data["meta"]["settings"], data["meta"]
    columns: dict[str, Cell] = {
        "method": lambda row: names.get(row["method"], f"`{row['method']}`"),
        "exact": "{exact}/{prompts}",
        "tokens/s": "{tokens_per_s:.0f}",
        # plain decoding adds one token to a row in each step, and has no layout
        "tokens per row and round": lambda r: "1.00" if r["rounds"] is None else f"{r['tokens_per_row_round']:.2f}",
        "time spent moving K/V": lambda r: "" if r["rounds"] is None else f"{100 * r['share_realign']:.1f} %",
    }
    what = (
        f"{len(meta['prompt_lens'])} prompts, batch {settings['batch_size']}, {settings['max_new_tokens']} new tokens"
    )
    rows = [row for row in data["rows"] if row["batch_size"] == settings["batch_size"]]
    return f"{tabulate(rows, columns)}\n{what}, bundled pair, {meta['device']}.\n"


def speeds(data: Row) -> Iterable[tuple[str, str, str]]:
    """Tokens per second, and how many times those of transformers in the same run."""
    for row in data["rows"]:
        size = f"batch {row['batch_size']}"
        yield (f"`{row['engine']}`", size, f"{row['tokens_per_s']:,.0f} ({row['ratio_to_hf_generate']:.2f}×)")


def layers() -> str:
    """How many times as fast as transformers' generation `inplace` is, on each kind of layers."""
    cells = []
    for threads in (2, 1):
        for kind in ("transformers", "lean", "auto"):
            data = read(f"layers/{kind}-{threads}")
            cells += [
                (str(row["batch_size"]), f"`{kind}`, {threads} thread{'s' * (threads > 1)}",
                 f"{row['ratio_to_hf_generate']:.2f} ({row['tokens_per_s']:,.0f})")
                for row in data["rows"] if row["engine"] == "inplace"
            ]  # fmt: skip
    return pivoted("batch", cells) + source(data["meta"], "results/layers/auto-1.json")


PAPER = {
    "paper eqspec": "their EQSPEC, tokens/s",
    "paper exspec": "their EXSPEC, tokens/s",
    "eqspec": "`eqspec` / their EQSPEC",
    "exspec": "`exspec` / their EXSPEC",
    "inplace": "`inplace` / their EXSPEC",
    "transformers": "our `generate` / theirs",
}


def paper(data: Row) -> Iterable[tuple[str, str, str]]:
    """Speeds of the paper's code, and ratios to them."""
    for row in data["rows"]:
        if row["engine"] in PAPER:
            cell = ratio(row) if "ratios" in row else f"{row['median']:.0f}"
            yield (str(row["batch_size"]), PAPER[row["engine"]], cell)


def anatomy() -> str:
    """What moving K/V takes at the largest batch and context, and how it grows with the batch."""
    data = read("anatomy-cpu")
    size, context = (max(row[name] for row in data["rows"]) for name in ("batch_size", "context_tokens"))
    fits = {fit["engine"]: fit for fit in data["scaling"] if fit["context_tokens"] == context}
    rows = [
        row | {name: fits[row["engine"]][name] for name in ("exponent", "low", "high")}
        for row in data["rows"]
        if (row["batch_size"], row["context_tokens"]) == (size, context)
    ]
    columns: dict[str, Cell] = {
        "engine": "`{engine}`", "operations": "{host_operations_per_round:,.1f}", "MB": "{bytes_per_round:.1M}",
        "ms": "{realign_ms_per_round:.2f}", "share of a round": "{share_realign:.1%}",
        "share of bandwidth": "{fraction_of_bandwidth:.0%}",
        "exponent in the batch": lambda row: interval([row[n] for n in ("exponent", "low", "high")])
        if row["exponent"] else "",
    }  # fmt: skip
    return sourced("anatomy-cpu", tabulate(rows, columns))


H200, MODELS = "h200", {"target": "qwen3-8b", "draft": "qwen3-0.6b", "layers": "transformers"}


def gpu() -> str:
    """Rounds on an H200: measured, computed by the roofline, and the least that bytes and operations need."""
    data = read("bench-gpu-length3")
    settings = data["meta"]["settings"]
    k, context = settings["num_speculative_tokens"], data["meta"]["prompt_tokens"]["median"]
    widths = np.array([context + settings["max_new_tokens"] / 2])
    cost = RooflineCost(Spec.of("roofline", device=H200, dtype=data["meta"]["dtype"], **MODELS), None)
    rows = sorted((row for row in data["rows"] if row["ms_per_round"]), key=lambda row: row["batch_size"])
    for row in rows:
        drafts = k if row["engine"] == "inplace" else 0
        fed = (("draft", drafts), ("verify", drafts + 1))
        seconds = sum(float(cost.seconds(name, row["batch_size"], n, widths, False)[0]) for name, n in fed)
        row |= {"busy": row["ms_per_round"] - row["ms_idle"], "roofline": seconds}
    columns: dict[str, Cell] = {
        "engine": "`{engine}`", "batch": "{batch_size}", "tokens/s": "{tokens_per_s:,.0f}",
        "over `generate`": "{ratio_to_hf_generate:.1f}×", "ms/round": "{ms_per_round:.1f}",
        "device busy, ms": "{busy:.1f}", "roofline, ms": "{roofline:.1m}",
        "least, ms": "{floor_ms_per_round:.1f}",
    }  # fmt: skip
    return sourced("bench-gpu-length3", tabulate(rows, columns))


CONTEXT = 1024  # of the crossings shown


def crossing() -> str:
    """Largest batches at which drafts pay, by device and by what runs the layers."""
    rows = [row for row in read("crossing")["crossings"] if row["context_tokens"] == CONTEXT]
    columns: dict[str, Cell] = {
        "device": "{device}", "layers": "`{layers}`", "launches a layer": lambda row: launches(row["layers"]),
        "5 drafts pay up to": "{batch_size} ({low}–{high})", "best number pays up to": "{any_drafts}",
        "gain at batch 1": "{gain:.2f}×",
    }  # fmt: skip
    return sourced("crossing", tabulate(rows, columns, texts=("layers",)))


def launches(layers: str) -> str:
    """Of a layer of Qwen3, with one query a row and with several."""
    one, several = (count + LAYERS[layers].key_norms for count in LAYERS[layers].launches)
    return f"{one}, {several}"


DRAFTED = {"bundled prompts": "drafters-bundled", "answers that quote the prompt": "drafters-copying"}


def drafters() -> str:
    """Speed over plain generation and tokens a round of every drafter, on two sets of prompts."""
    cells = []
    for prompts, name in DRAFTED.items():
        for row in read(name)["rows"][1:]:
            drafter = f"`{row['engine'].split()[-1]}`" if " " in row["engine"] else "none"
            cells.append((drafter, f"{prompts}: speed", f"{row['ratio_to_hf_generate']:.2f}×"))
            cells.append((drafter, f"{prompts}: tokens per row and round", f"{row['mean_acceptance_length']:.2f}"))
    return pivoted("drafter", cells) + "".join(sourced(name, "") for name in DRAFTED.values())


# --- budgets, laws, acceptance ---------------------------------------------------------------------------------------


def simulated_budgets(data: Row) -> Iterable[tuple[str, str, str]]:
    """Budgets over the best fixed number of drafts, and over none, by rate."""
    for row in data["judged"]:
        rate, over = f"{row['rate_per_s']:g}", row["over"].partition(", ")[0]
        cell = interval([row["throughput"], row["throughput_low"], row["throughput_high"]], ".3f")
        if over == "best":
            yield (rate, "best fixed", row["over"].removeprefix("best, fixed "))
            yield (rate, f"`{row['budget']}` / best fixed", cell)
        elif row["budget"] == "goodput":
            yield (rate, "`goodput` / none", cell)


def measured_budgets(data: Row) -> Iterable[tuple[str, str, str]]:
    """The best fixed number of drafts over none, and each budget that adapts over both, by batch size."""
    for row in sorted(data["rows"], key=lambda row: row["budget"] != row["best"]):
        size, name = str(row["batch_size"]), row["budget"]
        if name == row["best"]:
            best = name.removeprefix("fixed ")
            yield (size, "best fixed / none", f"{interval(row['over_none'])}, k = {best}")
        elif not name.startswith("fixed"):
            yield (size, f"`{name}` / best fixed", interval(row["over_best"]))


def laws(data: Row) -> Iterable[tuple[str, str, str]]:
    """Total variation for each budget and rule, the largest of all drafters."""
    cells: dict[tuple[str, str], list[Row]] = {}
    for row in data["rows"]:
        cells.setdefault((row["draft_budget"], row["acceptance"]), []).append(row)
    for (budget, rule), rows in cells.items():
        distance = max(row["total_variation"] for row in rows)
        refused = "" if all(row["allowed"] for row in rows) else ", refused"
        yield (budget, rule, (f"{distance:.4f}" if distance else "0") + refused)


def scaling() -> str:
    """Mean acceptance length of every draft, a line for each size, a column for each training."""
    path = ROOT / "simulator" / "data" / "scaling" / "tiny.json"
    data = json.loads(path.read_text())
    cells = [
        (f"{d['parameters']:,}", f"{d['training_tokens']:,} tokens", f"{d['mean_acceptance_length']:.3f}")
        for d in sorted(data["drafts"], key=lambda draft: draft["training_tokens"])
    ]
    return pivoted("parameters", cells) + source(data["meta"], f"../{path.relative_to(ROOT)}")


# --- the simulator against measurements ------------------------------------------------------------------------------

CALIBRATIONS = {"cpu/tiny": "CPU thread", "nvidia-h200/vicuna": "H200"}
ERRORS = {
    "cost_error": "run time, acceptance replayed",
    "makespan_error": "run time, acceptance fitted, machine speed known",
    "uncorrected_makespan_error": "run time, machine speed not known",
    "study_tokens_per_s_error": "tokens/s of a study, machine speed known",
    "first_token_p90_error": "time to first token, 90th percentile",
    "inter_token_p90_error": "inter-token latency, 90th percentile",
}


def accuracy() -> str:
    """Mean absolute errors on held-out runs, how often bands cover, and what repeating a run changes."""
    found = {label: read_validation(name) for name, label in CALIBRATIONS.items()}
    cells = [
        (text, f"{label}, {len(one.table)} runs", f"{one.summary.loc[name, 'mean_absolute']:.1%}".replace("%", " %"))
        for name, text in ERRORS.items()
        for label, one in found.items()
    ]
    for label, one in found.items():
        head, (low, high) = f"{label}, {len(one.table)} runs", one.interval()
        cells += [
            ("scheduling decisions reproduced", head, f"{100 * one.parity:.0f} %"),
            ("90 % bands cover", head, f"{100 * one.coverage:.0f} % ({100 * low:.0f}–{100 * high:.0f} %)"),
            ("the same run again, standard deviation", head, f"{100 * one.meta['run_cv']:.1f} %"),
        ]
    return pivoted("mean absolute error", cells) + "".join(
        source(load_calibration(name).meta, f"../simulator/data/calibration/{name}") for name in CALIBRATIONS
    )


def trust() -> str:
    """A line for each calibration: how far simulations of held-out runs were off."""
    rows = []
    for name in CALIBRATIONS:
        found = read_validation(name)
        errors = {key: found.summary.loc[f"{key}_error", "mean_absolute"] for key in ("study_tokens_per_s", "makespan")}
        rows.append(found.meta | errors | {"runs": len(found.table), "coverage": found.coverage})
    columns: dict[str, Cell] = {
        "costs measured on": "{device}, pair {pair}", "runs": "{runs}", "error of tokens/s": "{study_tokens_per_s:.1%}",
        "error of run time": "{makespan:.1%}", "90 % bands cover": "{coverage:.0%}",
        "the same run again": "±{run_cv:.1%}",
    }  # fmt: skip
    return tabulate(rows, columns)


def roofline() -> str:
    """Errors of computed costs by component, on the measured points of the H200."""
    summary = summarize_components(compare_calibration("nvidia-h200/vicuna", "h200", "vicuna-7b", "vicuna-68m"))
    columns: dict[str, Cell] = {
        "component": "`{component}`", "points": "{points}", "median error": "{median:.0%}", "mean": "{mean:+.0%}",
        "measured, mean ms": "{measured_s:.1m}", "computed, ms": "{predicted_s:.1m}",
    }  # fmt: skip
    rows = summary.sort_values("median").reset_index().to_dict(orient="records")
    return tabulate(rows, columns)


def latency() -> str:
    """Served runs: measured over simulated, a line for each method."""

    def cell(key: str, spec: str) -> Callable[[Row], str]:
        return lambda run: FORMAT(f"{{measured:{spec}}} / {{simulated:{spec}}}", (), run["metrics"][key])

    waits = [(name, q) for name in ("first token", "inter-token") for q in (50, 90, 99)]
    columns = {"method": "`{method}`"} | {
        f"{name} {q} %": cell(f"{name.replace(' ', '_').replace('-', '_')}_p{q}_s", ".0m") for name, q in waits
    }
    return sourced("latency-cpu", tabulate(read("latency-cpu")["runs"], columns))


def simulator_speed() -> str:
    """Rounds per second by window."""
    data = read("speed-simulator")
    rows = [
        {"window": window, "speed": speed, "bare": 1 / data["ratio"][window]}
        for window, speed in data["rounds_per_s"].items()
    ]
    columns: dict[str, Cell] = {
        "window": "{window}", "rounds per CPU second": "{speed:,.0f}", "SimPy timeouts in that time": "{bare:.0f}",
    }  # fmt: skip
    return sourced("speed-simulator", tabulate(rows, columns))


def simulator_fleet() -> str:
    """What a large fleet takes."""
    data = read("fleet-simulator")
    columns: dict[str, Cell] = {
        "replicas": "{replicas}", "requests": "{requests:,.0f}", "rounds": "{rounds:,.0f}",
        "rows of all rounds": "{rows:,.0f}", "CPU minutes": "{minutes:.1f}", "peak GiB": "{peak_gib:.1f}",
    }  # fmt: skip
    return sourced("fleet-simulator", tabulate([data | {"minutes": data["cpu_s"] / 60}], columns))


# --- settings of a scenario -------------------------------------------------------------------------------------------


def default(value: Any) -> str:
    """A default, as YAML writes it; nothing where a value must be given."""
    if value is MISSING:
        return ""
    return yaml.safe_dump(as_data(value), default_flow_style=True, width=1000).split("\n")[0]


def settings(section: str, part: type) -> str:
    """The settings of a part of a scenario, as its docstring describes them."""
    defaults = {item.name: item.default for item in fields(part)}
    described = (inspect.getdoc(part) or "").partition("Attributes:\n")[2]
    lines = []
    for names, text in re.findall(r"^    (\w[\w, ]*): (.*?)(?=\n    \w|\Z)", described, re.MULTILINE | re.DOTALL):
        each = names.split(", ")
        cells = (f"`{section}.{name}`" for name in each), (default(defaults[name]) for name in each)
        lines.append([*map(", ".join, cells), " ".join(text.split()).replace("``", "`")])
    return markdown_table(["setting", "default", "meaning"], lines, texts=("default", "meaning"))


def kinds() -> str:
    """Every kind of every setting that has kinds; settings with the same kinds share a line."""
    lines: dict[str, str] = {}
    for setting, known in KINDS.items():
        shown = " · ".join(f"`{kind}({parameters(rules)})`" for kind, rules in known.items())
        lines[shown] = f"{lines[shown]}, `{setting}`" if shown in lines else f"`{setting}`"
    head = "kinds and their parameters"
    return markdown_table(["setting", head], [(names, shown) for shown, names in lines.items()], texts=(head,))


def parameters(rules: Row) -> str:
    """Names of parameters, with their defaults."""
    return ", ".join(f"{name}: {default(rule[1])}" if isinstance(rule, tuple) else name for name, rule in rules.items())


# --- the paper's figures ---------------------------------------------------------------------------------------------

WORDS = {
    "eqspec": "EQSPEC",
    "exspec": "EXSPEC",
    "grouping_rate_all_mean": "grouping rate of captions",
    "alignment_share_text": "share of aligning, %",
    "headline": "480 prompts",
    "tokens_per_s": "tokens/s",
    "ms_per_verify": "ms per verify call",
    "draft_s": "seconds drafting",
    "verify_s": "seconds verifying",
    "align_s": "seconds aligning",
    "total_s": "seconds in all",
    "draft_acceptance_rate": "share of drafts accepted",
    "get_batch_s + write_back_s": "seconds moving caches",
    "throughput_ratio_batch8_over_batch1": "tokens/s, batch 8 over batch 1",
}  # of the targets' names


def paper_figures(data: Row) -> str:
    """Every published figure beside the simulated one."""
    columns: dict[str, Cell] = {
        "figure": lambda row: in_words(row["target"]),
        "published": "{published:g}", "simulated": "{simulated:.4g}",
        "95 % of single runs": "{low:.4g}–{high:.4g}",
        "inside": lambda row: "fitted" if row["fitted"] else "yes" if row["inside"] else "**no**",
    }  # fmt: skip
    return tabulate(data["rows"], columns, texts=("inside",))


def in_words(target: str) -> str:
    """A target's name in words, without that of its table."""
    parts = target.removeprefix("overhead_anatomy.").split(".")
    return ": ".join(WORDS.get(part, part.replace("_", " ")) for part in parts)


def paper_arrivals(data: Row) -> str:
    """Latency by scheduler, at loads that overload the published one."""
    return pivoted(
        "scheduler",
        (
            (line["scheduler"], f"batch {line['batch_size']}, {line['rate_per_s']:g}/s",
             FORMAT("{latency_p50_s:.1f} / {latency_p99_s:.1f} / {longest_gap_s:.1f}", (), line))
            for line in data["online"]
        ),
    )  # fmt: skip


def paper_captions(data: Row) -> str:
    """Grouping rates by length of the outputs."""
    sizes = [2, 4, 8, 16, 32]
    published = {row["target"]: row["published"] for row in data["rows"]}
    lines = [["published", *(f"{published[f'grouping_rate_all_mean.batch {size}']:.1f}" for size in sizes)]]
    lines += [[line["outputs"], *(f"{value:.1f}" for value in line["percent"])] for line in data["captions"]]
    return markdown_table(["grouped rounds in %, outputs of", *(f"batch {size}" for size in sizes)], lines)


MATCHES: dict[str, Cell] = {
    "method": "{method}",
    "batch 1": "{exact_1:.0f} / {partial_1:.0f}",
    "batch 4": "{exact_4:.0f} / {partial_4:.0f}",
}
CHECKS: dict[str, Cell] = {
    "published by": "{group}",
    "rows": "{rows}",
    "median error": "{median:.1%}",
    "worst": "{worst:+.0%}",
}


def of_paper(table: Callable[[Row], str]) -> Callable[[], str]:
    """A table of docs/reproduction.json."""
    return lambda: table(json.loads((ROOT / "docs" / "reproduction.json").read_text()))


# --- other engines under the kit -------------------------------------------------------------------------------------

SHOWN, SHORT = 4, 8  # prompts of a case, tokens of a prompt
OTHER_ENGINES = ("transformers", "openvino", "llamacpp", "vllm")


def engine_runs() -> list[Row]:
    """A row for each recorded run of another engine: its name, version, and properties by status."""
    rows = []
    for engine in OTHER_ENGINES:
        for run in read(f"engines/{engine}"):
            found: dict[str, list[Row]] = {}
            for verdict in run["properties"]:
                found.setdefault(verdict["status"], []).append(verdict)
            package, version = next(iter(run["libraries"].items()))
            rows.append(run | {"file": engine, "package": f"{package} {version}", "found": found})
    return rows


def number(status: str) -> Callable[[Row], str]:
    """How many properties of a run have a status."""
    return lambda row: str(len(row["found"].get(status, [])))


def engines() -> str:
    """What the kit says of each run."""
    return tabulate(engine_runs(), {
        "engine": "{package}", "run": "[{name}](results/engines/{file}.json)",
        "pass": number("pass"), "not offered": number("not supported"),
        "fail": lambda row: ", ".join(f"`{verdict['property']}`" for verdict in row["found"].get("fail", [])),
    }, texts=("run", "fail"))  # fmt: skip


def engine_failures() -> str:
    """What the kit saw of each failure, with its smallest case; properties of a run that fail alike share a line."""
    alike: dict[tuple[str, str, str, str], list[str]] = {}
    for run in engine_runs():
        for verdict in run["found"].get("fail", []):
            seen = verdict["reason"].partition(": [")[0]
            line = (run["package"], run["name"], seen, smallest_case(verdict))
            alike.setdefault(line, []).append(f"`{verdict['property']}`")
    lines = [(f"{package}, {name}", ", ".join(found), *rest) for (package, name, *rest), found in alike.items()]
    return markdown_table(("run", "property", "seen", "case"), lines, ("property", "seen", "case"))


def smallest_case(verdict: Row) -> str:
    """The last request of a failure, shortened."""
    request = json.loads(verdict["requests"][-1])
    prompts = [f"{len(list(same))} × {shortened(prompt)}" for prompt, same in groupby(request["prompts"])]
    prompts = [text.removeprefix("1 × ") for text in prompts[:SHOWN]] + ["…"] * (len(prompts) > SHOWN)
    names = {"batch_size": "batch", "num_speculative_tokens": "k", "max_new_tokens": "new tokens"}
    return f"{', '.join(prompts)}; " + ", ".join(f"{name} {request[key]}" for key, name in names.items())


def shortened(prompt: list[int]) -> str:
    """A prompt; of a long one the number of its tokens."""
    return str(prompt) if len(prompt) <= SHORT else f"{len(prompt)} tokens"


DATA_TABLES: dict[str, Callable[[], str]] = {
    "brief-demo": brief_demo,
    "trust": trust,
    "exact": exact,
    "speed-cpu": of_cells("bench-cpu-batches", "engine", speeds),
    "layers": layers,
    "launches": of_rows("launches", {
        "a layer of": "{kind}", "transformers": "{transformers[0]}, {transformers[1]}", "lean": "{lean[0]}, {lean[1]}",
        "compiled": "{compiled[0]}, {compiled[1]}", "kernels": "{kernels[0]}, {kernels[1]}",
    }),
    "joining": of_rows(
        "joining-tiny",
        {"method": "`{method}`", "usual gap, ms": "{usual_gap_s:.0m}", "longest gap, ms": "{longest_gap_s:.0m}",
         "first token, ms": "{first_token_s:.0m}", "longest gap over `inplace`": ratio},
    ),
    "residents": of_rows(
        "residents-tiny",
        {"method": "`{method}`", "rows, most": "{batch_size}", "exact": "{exact}/{prompts}",
         "resident, mean": "{mean_residents:.1f}", "preemptions": "{num_preemptions}", "rounds": "{num_rounds}",
         "speed over `inplace`": ratio},
    ),
    "memory": of_rows(
        "memory-tiny",
        {"budget, MiB": "{budget_bytes:.1i}",
         "plan: rows, drafts": "`{method}`, {batch_size}, {num_speculative_tokens}",
         "planned, MiB": "{planned_bytes:.1i}", "measured, MiB": "{measured_bytes:.1i}",
         "speed over the largest": ratio},
    ),
    "requests": of_rows(
        "requests-tiny",
        {"requests": "{requests}", "beside": "{beside}", "CPU time of a round": ratio},
    ),
    "hybrid": of_rows(
        "hybrid-tiny",
        {"batch": "{batch_size}", "engine": "{engine}", "speed over transformers": ratio,
         "time for states": lambda row: f"{row['states_share']:.0%}" if row["states_share"] else ""},
    ),
    "paper-code": of_cells("paper-code-cpu", "batch", paper),
    "anatomy": anatomy,
    "gpu": gpu,
    "crossing": crossing,
    "drafters": drafters,
    "budgets-h100": of_cells("budgets-h100", "requests/s", simulated_budgets),
    "budgets-cpu": of_cells("budgets-cpu", "rows", measured_budgets),
    "law": of_cells("law", "budget", laws),
    "acceptance": of_rows(
        "acceptance-tiny",
        {"temperature": "{temperature}", "k": "{num_speculative_tokens}", "rejection": "{rejection:.3f}",
         "block": "{block:.3f}", "gain": lambda row: FORMAT("{gain:.1%} ({low:.1%}–{high:.1%})", (), row)},
    ),
    "scaling": scaling,
    "overlap": of_rows(
        "overlap",
        {"costs": "{machine}", "rows": "{rows}",
         "over half as many rows": "{half:.2f} ({half_low:.2f}–{half_high:.2f})",
         "over as many rows": "{equal:.2f} ({equal_low:.2f}–{equal_high:.2f})"},
        key="judged",
    ),
    "study": lambda: settings("study", Study),
    "workload": lambda: settings("workload", Workload),
    "classes": lambda: settings("workload.classes[]", RequestClass),
    "service": lambda: settings("service", Service),
    "switches": lambda: settings("switches", Switches),
    "kinds": kinds,
    "accuracy": accuracy,
    "roofline": roofline,
    "latency": latency,
    "simulator-speed": simulator_speed,
    "simulator-fleet": simulator_fleet,
    "paper-figures": of_paper(paper_figures),
    "paper-arrivals": of_paper(paper_arrivals),
    "paper-captions": of_paper(paper_captions),
    "paper-matches": of_paper(lambda data: tabulate(data["forensics"], MATCHES)),
    "engines": engines,
    "engine-failures": engine_failures,
    "paper-costs": of_paper(lambda data: tabulate(data["checks"], CHECKS)),
}  # fmt: skip
