"""The wheel has the files that it should have, and README's commands work with it, outside of a checkout.

They run as in a fresh environment: of what is installed here they see what the wheel declares, and what that needs.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMANDS = [line for language, body in FENCE.findall(README) if not language for line in body.splitlines()]
EXTRAS = re.findall(r"pip install '\.\[([\w,]+)\]'", README)[0].split(",")
PACKAGES = ("raggedspec", "refimpl", "simulator")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]

WITHOUT = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] in ABSENT else self.finder.find_spec(name, *rest)

    def find_distributions(self, *rest):
        found = getattr(self.finder, "find_distributions", lambda *_: ())(*rest)
        return [each for each in found if (each.name or "").lower().replace("_", "-").replace(".", "-") in KNOWN]

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
"""

pytestmark = pytest.mark.nightly


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that no older build in the checkout is packed."""
    folder = tmp_path_factory.mktemp("wheel")
    without_caches = shutil.ignore_patterns("__pycache__")
    for name in (*PACKAGES, "tests", "tools", "LICENSES"):
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=without_caches)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, folder / "source"])
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel):
    """The folder that the wheel was installed into."""
    target = wheel.parent / "installed"
    run([*PIP, "install", "--no-deps", "--no-index", "--target", target, wheel])
    return target


def brought(distribution, extras):
    """Names of the distributions that an installation brings, by what each of them declares."""
    found, todo = set(), [(distribution, frozenset(extras))]
    while todo:
        distribution, extras = todo.pop()
        for wanted in map(Requirement, distribution.requires or []):
            key = canonicalize_name(wanted.name), frozenset(wanted.extras)
            asked = wanted.marker is None or any(wanted.marker.evaluate({"extra": each}) for each in ("", *extras))
            if asked and key not in found:
                found.add(key)
                todo.append((metadata.distribution(wanted.name), key[1]))
    return {name for name, _ in found}


def run_outside(installed, extras):
    """Options of a run outside of the checkout, where nothing can be imported but what an installation brings."""
    folder = installed.parent / "-".join(["elsewhere", *extras])
    folder.mkdir()
    (described,) = installed.glob("*.dist-info")
    known = {"raggedspec", *brought(metadata.Distribution.at(described), extras)}
    modules = metadata.packages_distributions().items()
    absent = sorted(name for name, owners in modules if not known & set(map(canonicalize_name, owners)))
    (folder / "sitecustomize.py").write_text(f"ABSENT, KNOWN = {absent}, {sorted(known)}\n{WITHOUT}")
    return {"cwd": folder, "env": os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(installed)])}}


@pytest.fixture(scope="module")
def outside(installed):
    """With the extras that README installs."""
    return run_outside(installed, EXTRAS)


def test_it_has_every_file_of_the_packages_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    kept = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()]
    wanted = {str(path.relative_to(ROOT)) for path in kept if "__pycache__" not in path.parts}
    assert names - wanted == set()
    assert wanted - names == set()
    assert {"refimpl/pairs/tiny/target/model.safetensors", "simulator/examples/scenario.yaml"} <= names


def test_licences_are_in_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {Path(name).name for name in names if "/licenses/" in name} == {"LICENSE", "PSF-2.0.txt"}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_packages_are_the_installed_ones(installed, outside, package):
    place = run([sys.executable, "-c", f"import {package}; print({package}.__file__)"], **outside)
    assert Path(place.strip()) == installed / package / "__init__.py"


def test_what_is_not_declared_is_not_there(outside):
    done = subprocess.run([sys.executable, "-c", "import dask"], capture_output=True, text=True, check=False, **outside)
    assert "ModuleNotFoundError" in done.stderr


def test_a_plain_installation_decodes(installed):
    command = [sys.executable, "-m", "raggedspec", "generate", "--limit", "1", "--max-new-tokens", "4"]
    assert run(command, **run_outside(installed, []))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_run(installed, outside, command):
    program, *arguments = shlex.split(command)
    assert run([sys.executable, installed / "bin" / program, *arguments], **outside)


def test_the_ten_lines_print_what_the_readme_says(outside):
    blocks = FENCE.findall(README)
    at = next(i for i, (language, _) in enumerate(blocks) if language == "python")
    assert run([sys.executable, "-c", blocks[at][1]], **outside) == blocks[at + 1][1]
