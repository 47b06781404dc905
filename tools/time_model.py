"""Two models of a pass on a GPU beside what was measured: launches counted by layers, and eight small kernels a layer.

``python tools/time_model.py docs/results/time-model.json``

Both read the same weights at the efficiency of the same tables. The one that costs of kind roofline use charges every
launch of a layer by its kind; its two constants were fitted to the stages on the H200. The other charges eight small
kernels of the duration that the tables have, whatever runs the layers. Nothing was fitted to the published numbers.
"""

import json
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from simulator.service.roofline import ModelCost, RooflineCost
from simulator.settings.fields import Spec
from simulator.settings.json_files import with_environment, write_json
from simulator.studies.roofline_checks import check_roofline

MEASURED = Path("docs/results/bench-gpu-length3.json")
FACTS = {"device": "h200", "target": "qwen3-8b", "draft": "qwen3-0.6b", "layers": "transformers"}
KERNELS, KERNEL_S, OTHER_KERNEL_S = 8, 3.4e-6, 4.4e-6  # of the tables, at one token
OTHERS = ("NVIDIA A100", "NVIDIA L40S", "NVIDIA GeForce", "AMD")  # devices with the second
STAGES = {"a draft step": ("draft", "inplace"), "verification": ("verify", "inplace"),
          "a step without drafts": ("verify", "autoregressive_batched")}  # fmt: skip


def eight_kernels_s(self: ModelCost, fed: float, several: bool) -> float:
    """Eight small kernels a layer, whatever runs it, and what they move."""
    machine = self.machine
    kernel_s = OTHER_KERNEL_S if machine.device.name.startswith(OTHERS) else KERNEL_S
    layer_s = KERNELS * kernel_s + self._small_bytes(fed) / machine.device.bandwidth_bytes_per_s
    return self.model.layers * layer_s * machine.factors["launches"]


def stages() -> Iterator[dict[str, Any]]:
    """Seconds of each stage and batch size, measured and computed."""
    data = json.loads(MEASURED.read_text())
    settings, meta = data["meta"]["settings"], data["meta"]
    k, width = settings["num_speculative_tokens"], meta["prompt_tokens"]["median"] + settings["max_new_tokens"] / 2
    cost = RooflineCost(Spec.of("roofline", **FACTS, dtype=meta["dtype"]), None)
    rows = {(row["engine"], row["batch_size"]): row for row in data["rows"]}
    for name, (stage, engine) in STAGES.items():
        passes = k if stage == "draft" else 1
        tokens = 1 if engine != "inplace" else k if stage == "draft" else k + 1
        for size in sorted(settings["batch_sizes"]):
            seconds = float(cost.seconds(stage, size, tokens, np.array([width]), False)[0]) / passes
            measured_s = rows[engine, size][f"ms_{stage}"] / 1000 / passes
            yield {"stage": name, "batch_size": size, "measured_s": measured_s, "computed_s": seconds}


def sizes(errors: Any) -> dict[str, float]:
    """Median, mean and worst of the sizes of errors."""
    size = np.abs(np.array(errors, dtype=float))
    return {"median": float(np.median(size)), "mean": float(size.mean()), "worst": float(size.max())}


def both(compute: Callable[[], Any]) -> tuple[Any, Any]:
    """What is computed by launches, and by eight kernels."""
    by_launches = compute()
    with patch.object(ModelCost, "_launches_s", eight_kernels_s):
        return by_launches, compute()


def main() -> None:
    """Compute, and write the file."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    by_launches, by_eight = both(lambda: list(stages()))
    rows = [line | {"eight_s": other["computed_s"]} for line, other in zip(by_launches, by_eight, strict=True)]
    found = [
        {"points": f"stages on the H200: {name}", "count": len(own),
         "by_launches": sizes([line["computed_s"] / line["measured_s"] - 1 for line in own]),
         "eight": sizes([line["eight_s"] / line["measured_s"] - 1 for line in own])}
        for name in STAGES for own in [[line for line in rows if line["stage"] == name]]
    ]  # fmt: skip
    checks = both(lambda: check_roofline()["relative_error"].to_numpy())
    errors = dict(zip(("by_launches", "eight"), map(sizes, checks), strict=True))
    found.append({"points": "published numbers of other engines", "count": len(checks[0])} | errors)
    write_json(with_environment({"rows": found, "stages": rows}), parser.parse_args().output)


if __name__ == "__main__":
    main()
