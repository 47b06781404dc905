"""What is said of theorems' use is held against the proofs as Coq has read them; no theorem slips by with its name."""

import os
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

COQ = Path(__file__).parents[2] / "proofs" / "coq"
faults = runpy.run_path(str(COQ / "uses.py"))["faults"]

LAWS = """F RaggedSpec.Laws
prf 1:9 <> small
prf 10:19 <> joint
R12:14 RaggedSpec.Laws <> helper thm
prf 20:29 <> helper
R22:24 RaggedSpec.Laws <> small thm
"""
INSTANCES = """F RaggedSpec.Instances
def 1:9 <> joint_applies
R2:4 RaggedSpec.Laws <> joint thm
"""
EXEMPT = "small: the proof of joint rests on it, and that is applied\n"


@pytest.mark.parametrize(
    ("laws", "instances", "exempt", "told"),
    [
        (LAWS, INSTANCES, EXEMPT, []),
        (LAWS, INSTANCES.replace("<> joint thm", "<> helper thm"), EXEMPT, ["joint_applies does not apply it"]),
        (
            LAWS.replace("<> small thm", "<> other thm"),
            INSTANCES,
            EXEMPT,
            ["the proof of joint does not rest on small"],
        ),
        (LAWS, INSTANCES, EXEMPT.replace("joint", "helper"), ["helper is not applied"]),
    ],
)
def test_what_is_said_and_is_not_so_is_told(laws, instances, exempt, told, tmp_path):
    for name, text in (("Laws.glob", laws), ("Instances.glob", instances), ("exempt.txt", exempt)):
        (tmp_path / name).write_text(text)
    assert faults(tmp_path) == told


def checked(tmp_path, file, text):
    """What proofs/coq/check.sh says of the theories with some more text, where nothing is compiled."""
    shutil.copytree(COQ, tmp_path / "coq")
    with (tmp_path / "coq" / file).open("a") as theory:
        theory.write(text)
    for tool in ("coqc", "ocamlopt"):
        stand_in = tmp_path / tool
        stand_in.write_text("#!/bin/sh\necho Closed under the global context\n")
        stand_in.chmod(0o755)
    command = ["bash", tmp_path / "coq" / "check.sh", tmp_path / "work"]
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return [line for line in run.stdout.splitlines() if "FAIL" in line and "use is not so" not in line]


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("Batch.v", "", []),
        ("Batch.v", "Theorem joint_law2 : True.\n", ["joint_law2 is not in Audit.v"]),
        ("Batch.v", "  Theorem joint_law' : True.\n", ["joint_law' is not in Audit.v"]),
        ("Batch.v", "Abort.\n", ["an unproved statement or a disabled check"]),
        ("Batch.v", "Admitted.\n", ["an unproved statement or a disabled check"]),
        (
            "exempt.txt",
            "joint_law: it is applied, too\n",
            ["a theorem is neither applied nor exempt (<), or twice, or no theorem (>)"],
        ),
    ],
)
def test_what_the_names_in_the_theories_tell(file, text, told, tmp_path):
    assert checked(tmp_path, file, text) == [f"  FAIL  {each}" for each in told]
