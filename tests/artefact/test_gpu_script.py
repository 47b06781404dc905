"""The GPU script: all of it with tiny sizes on a CPU, from a checkout, writing nowhere but where it is told."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import typer

from refimpl.cli import app

ROOT = Path(__file__).parent.parent.parent
TOOLS = str(ROOT / "tools")
SCRIPT = str(ROOT / ".ci" / "gpu")
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHON": sys.executable}
MINUTES = 9
MISSING = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ("beartype", "simpy", "dask", "hypothesis", "z3", "SALib"):
            return self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


@pytest.fixture(scope="module")
def tools():
    sys.path.insert(0, TOOLS)
    import gpu_ledger
    import gpu_pieces
    import gpu_run

    yield gpu_pieces, gpu_ledger, gpu_run
    sys.path.remove(TOOLS)


def script(*argv, cwd=None, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "OUT"} | CPU_ONLY | variables
    words = ["bash", SCRIPT, *map(str, argv)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd, env=environment)


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """A dry run of everything, started from another folder, without the optional packages; its folder and output."""
    elsewhere, out, site = (tmp_path_factory.mktemp(name) for name in ("elsewhere", "dry", "site"))
    (site / "sitecustomize.py").write_text(MISSING)
    before = {path: path.stat().st_mtime_ns for path in (ROOT / "docs").rglob("*")}
    words = ("--dry-run", "--out", out, "--archive", out / "a.tar.gz", "--commit", "abc")
    found = script(*words, cwd=elsewhere, PYTHONPATH=str(site))
    assert found.returncode == 0, found.stdout + found.stderr
    assert not list(elsewhere.iterdir())
    assert before == {path: path.stat().st_mtime_ns for path in (ROOT / "docs").rglob("*")}
    return out, found.stdout


def test_every_piece_runs(dry, tools):
    pieces, _, _ = tools
    ledger = json.loads((dry[0] / "docs/results/gpu.json").read_text())["pieces"]
    assert [entry["name"] for entry in ledger] == [piece.name for piece in pieces.all_pieces(pieces.Scale())]
    assert {entry["state"] for entry in ledger} <= {"done", "not available"}
    assert {entry["commit"] for entry in ledger} == {"abc"}
    done = {entry["name"] for entry in ledger if entry["state"] == "done"}
    assert done >= {"smoke", "verify-float32", "bench-length3", "anatomy", "calibrate-qwen3", "bench-bundled"}
    smoke = ledger[0]["commands"]
    assert [command["state"] for command in smoke] == [*["done"] * 4, "not available"]  # hypothesis is hidden
    judged = json.loads((dry[0] / "docs/results/ties-gpu-smoke.json").read_text())
    assert judged["meta"]["packed_attention"]["inplace"] == "loop: varlen_attn needs a CUDA device"


def test_results_have_rows_and_provenance_without_the_folder(dry):
    results = dry[0] / "docs/results"
    for name in ("bench-gpu-length3", "bench-gpu-published", "bench-gpu-bundled", "anatomy-gpu"):
        data = json.loads((results / f"{name}.json").read_text())
        assert data["rows"]
        assert data["meta"]["rates"]["flops_per_s"] > 0
        assert str(dry[0]) not in json.dumps(data)
        assert data["meta"]["command"].endswith(f"--output docs/results/{name}.json")
    assert str(dry[0]) not in (results / "gpu.json").read_text()


def test_every_result_is_rendered(dry, tools):
    import readme

    page = readme.GPU_FRAME.read_text()
    for path in (dry[0] / "docs/results").glob("*.json"):
        assert f"<!-- table:{path.stem} -->" in page
        lines = readme.RENDERERS[path.stem.partition("-")[0]](json.loads(path.read_text())).splitlines()
        widths = {line.count("|") for line in lines if line.startswith("|")}
        assert len(widths) == 1, path.stem
        assert len(lines) > 2


def test_the_archive_unpacks_in_place(dry):
    with tarfile.open(dry[0] / "a.tar.gz") as archive:
        packed = {Path(member.name) for member in archive if member.isfile()}
    assert packed == {path.relative_to(dry[0]) for path in dry[0].glob("docs/**/*") if path.is_file()}


def test_what_is_done_is_skipped_at_the_same_commit_only(dry):
    again = script("--dry-run", "--out", dry[0], "--commit", "abc", "--minutes", "0")
    assert "anatomy: done already at abc" in again.stdout
    listed = script("--list", "--out", dry[0], "--commit", "def")
    assert "done at abc" in listed.stdout
    other = script("--dry-run", "--out", dry[0], "--commit", "def", "--minutes", "0")
    assert "anatomy: left out, it could take" in other.stdout


def test_results_go_to_two_files_where_the_variable_says(tools, tmp_path, monkeypatch):
    import gpu

    monkeypatch.setenv("OUT", str(tmp_path))
    root, archive, log = gpu.places(gpu.parse([]))
    assert root == ROOT / "build/gpu"
    assert {archive.parent, log.parent} == {tmp_path}
    monkeypatch.delenv("OUT")
    assert gpu.places(gpu.parse([])) == (ROOT, None, ROOT / "build" / "gpu.log")


def test_pieces_fit_their_time_and_need_no_network(tools):
    pieces, _, _ = tools
    for piece in pieces.all_pieces(pieces.Scale()):
        assert piece.minutes < MINUTES
        for command in piece.commands:
            words = " ".join(command.argv)
            assert "cuda" in words or pieces.GPU_TESTS in words
            assert "--pair" not in words or "--pair tiny" in words or "--random-weights" in words


def test_options_are_those_of_the_command_line(tools):
    pieces, _, _ = tools
    commands = typer.main.get_command(app).commands
    known = {
        name: {word for p in found.params for word in (*p.opts, *p.secondary_opts)} for name, found in commands.items()
    }
    for piece in pieces.all_pieces(pieces.Scale(prompts="file.jsonl")):
        for command in piece.commands:
            if command.argv[1] == "refimpl":
                given = {word for word in command.argv if word.startswith("--")}
                assert given <= known[command.argv[2]], piece.name


def test_what_is_missing_is_left_out(tools):
    pieces, _, run = tools
    assert run.available(pieces.Command((), needs_modules=("pytest", "hypothesis")))
    assert not run.available(pieces.Command((), needs_modules=("pytest", "magic")))


def test_the_dry_run_of_the_gpu_tests_ends_well(tools, tmp_path):
    pieces, _, run = tools
    command = pieces.all_pieces(pieces.Scale(dry=True))[0].commands[-1]
    assert "pytest" in command.argv
    assert run.run_command(command, tmp_path, tmp_path / "log", 60, inside=False).state == "done"


def test_the_page_of_gpu_results_comes_with_the_first_of_them(dry, tools, tmp_path, monkeypatch):
    import readme

    assert readme.GPU_PAGE.exists() == (readme.RESULTS / "gpu.json").exists()
    for name, path in (("ROOT", dry[0]), ("RESULTS", dry[0] / "docs/results"), ("GPU_PAGE", tmp_path / "page.md")):
        monkeypatch.setattr(readme, name, path)
    assert readme.pages()[1:] == [tmp_path / "page.md"]
    text = readme.render(readme.GPU_FRAME.read_text())
    assert "| piece |" in text
    assert "| inplace |" in text


def test_packages_of_the_gpu_tests_are_named_where_one_looks(tools):
    pieces, _, _ = tools
    needed = {name for piece in pieces.all_pieces(pieces.Scale()) for c in piece.commands for name in c.needs_modules}
    assert needed == {"pytest", "hypothesis"}
    assert all(name in Path(SCRIPT).read_text() for name in needed)


def test_recorded_rounds_have_results_of_their_own(tools):
    pieces, _, _ = tools
    commands = [command for piece in pieces.all_pieces(pieces.Scale()) for command in piece.commands]
    recorded = {command.writes[0]: command for command in commands if "--cuda-graphs" in command.argv}
    names = ("verify-gpu-smoke", "verify-gpu-float32", "verify-gpu-bfloat16", "bitwise-gpu")
    assert set(recorded) == {f"docs/results/{name}-recorded.json" for name in names}
    for path, command in recorded.items():
        assert command.argv[command.argv.index("--methods") + 1] == "inplace"
        assert ("--bitwise" in command.argv) == ("bitwise" in path)
        assert f"<!-- table:{Path(path).stem} -->" in (ROOT / "tools/results-gpu.md").read_text()


def test_the_first_piece_tries_the_ways_that_only_a_gpu_has(tools):
    pieces, _, _ = tools
    for scale in (pieces.Scale(), pieces.Scale(dry=True)):
        smoke = [" ".join(command.argv) for command in pieces.all_pieces(scale)[0].commands]
        assert any("--execution overlapped --methods inplace,paged" in words for words in smoke)
        assert any("tie-or-bug --methods inplace,paged,paged+continuous --dtype bfloat16" in words for words in smoke)


def test_a_command_that_fails_or_hangs_is_told_apart(tools, tmp_path):
    pieces, _, run = tools
    log = tmp_path / "log"
    for code, state, seconds in (("raise SystemExit(3)", "failed", 30), ("import time; time.sleep(60)", "timeout", 1)):
        outcome = run.run_command(pieces.Command(("-c", code)), tmp_path, log, seconds, inside=False)
        assert outcome.state == state
    assert "$ python -c raise SystemExit(3)" in log.read_text()


def test_the_ledger_wants_files_and_commit(tools, tmp_path):
    pieces, ledger_module, run = tools
    piece = pieces.Piece("magic", "nothing", 1.0, (pieces.Command((), ("docs/results/magic.json",)),))
    file = tmp_path / "docs/results/magic.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    report = run.Outcome("done", 0, 1.0).as_dict(piece.commands[0], tmp_path)
    ledger_module.Ledger(tmp_path, "abc").note(piece, "done", [report], "device")
    assert ledger_module.Ledger(tmp_path, "abc").has(piece)
    assert not ledger_module.Ledger(tmp_path, "def").has(piece)
    unknown = ledger_module.Ledger(tmp_path, ledger_module.UNKNOWN)
    unknown.note(piece, "done", [report], "device")
    assert not unknown.has(piece)
    ledger_module.Ledger(tmp_path, "abc").note(piece, "timeout", [report], "device")
    assert not ledger_module.Ledger(tmp_path, "abc").has(piece)
    ledger_module.Ledger(tmp_path, "abc").note(piece, "done", [report], "device")
    file.unlink()
    assert not ledger_module.Ledger(tmp_path, "abc").has(piece)


def test_rewritten_results_do_not_change_the_commit(tools, tmp_path, monkeypatch):
    """The rule is that of every measured file; the driver learns it without loading a tensor library."""
    import gpu

    from refimpl.core import provenance

    assert gpu.commit is provenance.commit
    code = "import gpu, sys; gpu.commit(); sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": f"{TOOLS}:{ROOT}"}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0

    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    (tmp_path / "code.py").write_text("1")
    (tmp_path / "result.json").write_text("1")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "a")):
        subprocess.run([*git, *words], check=True, cwd=tmp_path)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    now = gpu.commit.__wrapped__  # a process asks once
    before = now()
    (tmp_path / "result.json").write_text("2")
    assert now() == before
    (tmp_path / "code.py").write_text("2")
    assert now() == f"{before}-dirty"


def test_the_commit_is_named_where_git_was_not_there(tools, tmp_path):
    _, ledger_module, _ = tools
    folder = tmp_path / "docs/results"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps({"meta": {"commit": "unknown", "command": f"x {tmp_path}/docs/a.json"}}))
    (folder / "b.json").write_text(json.dumps({"meta": {"commit": "kept"}}))
    ledger_module.stamp(tmp_path, 0, "abc")
    assert json.loads((folder / "a.json").read_text())["meta"] == {"commit": "abc", "command": "x docs/a.json"}
    assert json.loads((folder / "b.json").read_text())["meta"]["commit"] == "kept"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--only", "magic"), "no piece 'magic': choose smoke, verify-float32"),
        (("--dry-run",), "--dry-run writes nothing into the checkout"),
        (("--archive", "a.tar.gz"), "--archive packs what is in --out"),
        ((), "no CUDA device is available"),
    ],
)
def test_errors_are_one_line(argv, message):
    found = script(*argv)
    assert found.returncode == 2
    assert message in found.stderr
    assert found.stderr.count("\n") == 1


def test_without_git_the_commit_must_be_named():
    assert "name the commit with --commit" in script(GIT_DIR="/nowhere").stderr
    assert "no CUDA device is available" in script("--commit", "abc", GIT_DIR="/nowhere").stderr


def test_help_has_examples():
    assert ".ci/gpu --only bench-length3,anatomy" in script("--help").stdout
