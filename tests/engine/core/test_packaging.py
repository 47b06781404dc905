"""What is installed: extras that say their name when they are missing, licences, settings of the jobs."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

import refimpl
from refimpl.core.extras import EXTRA_OF, missing_extra

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
WITHOUT = """
import runpy, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {libraries!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
sys.argv = {argv!r}
runpy.run_module({argv!r}[0], run_name="__main__")
"""


def run_without(libraries, *argv):
    code = WITHOUT.format(libraries=libraries, argv=list(argv))
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("library", "extra", "argv"),
    [
        ("pandas", "simulator", ("simulator", "run", "example")),
        ("hypothesis", "conformance", ("refimpl", "conformance", "--engine", "a:b")),
        ("httpx2", "conformance", ("refimpl", "conformance", "--server", "http://a/v1")),
    ],
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(library, extra, argv):
    run = run_without([library], *argv)
    assert (run.returncode, run.stderr) == (
        2,
        f"error: {library} is not installed: pip install 'raggedspec[{extra}]'\n",
    )


def test_another_missing_library_is_no_extra():
    assert missing_extra(ModuleNotFoundError("No module named 'x'", name="x")) is None
    assert "raggedspec[sweep]" in (missing_extra(ModuleNotFoundError("", name="dask.distributed")) or "")


def test_the_engine_imports_no_extra():
    """At the head of its modules; the kits may."""
    for path in (ROOT / "refimpl").rglob("*.py"):
        nodes = ast.parse(path.read_text()).body
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        if not {"conformance", "selfcheck"} & set(path.parts):
            assert not {name.partition(".")[0] for name in names} & set(EXTRA_OF), path


def test_every_library_is_in_the_extra_that_its_message_names():
    extras = PROJECT["optional-dependencies"]
    names = packages_distributions()
    for library, extra in EXTRA_OF.items():
        distribution = names[library][0].lower()
        assert (
            any(re.split(r"[\[>]", text)[0].lower() == distribution for text in extras[extra])
            or library == "distributed"
        )


def test_the_version_of_the_package_is_that_which_is_cited_and_whose_changes_are_told():
    assert PROJECT["dynamic"] == ["version"]
    newest = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert refimpl.__version__ == CITATION["version"] == newest[1]


def test_licences_ship_with_what_is_under_them():
    assert PROJECT["license"] == "Apache-2.0 AND PSF-2.0"
    assert set(CITATION["license"]) == {"Apache-2.0", "PSF-2.0"}
    files = [path.name for pattern in PROJECT["license-files"] for path in ROOT.glob(pattern)]
    assert files == ["LICENSE", "PSF-2.0.txt"]
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in (ROOT / "LICENSES/PSF-2.0.txt").read_text()


def test_jobs_name_targets_and_tools_that_exist():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    jobs = yaml.safe_load(workflow)["jobs"]
    of_matrix = [
        workflow.replace("${{ matrix.which }}", which) for which in jobs["bounds"]["strategy"]["matrix"]["which"]
    ]
    assert set(jobs) == {"test", "nightly", "bounds"}
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"run: make ([\w-]+)", "".join(of_matrix))
    assert all(re.search(rf"^([\w-]+ )*{target}[ \w-]*:", makefile, re.MULTILINE) for target in targets)
    assert all((ROOT / path).exists() for path in re.findall(r"run: python ([\w/.]+)", workflow))
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["entry"].split()[0] for hook in hooks} == {"ruff", "mypy", "lint-imports"}
