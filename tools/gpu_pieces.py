"""What is measured on a GPU: pieces in order of value, each a few commands that end within its minutes.

Paths are below a root; `{root}` in a command stands for it. A dry run has the same pieces, commands and files, on a
CPU with the bundled pair and tiny sizes.
"""

import importlib.util
from dataclasses import dataclass

RESULTS, SIMULATOR_DATA = "docs/results", "simulator/data"
GPU_TESTS = "tests/gpu"
NOISE = {"greedy": "", "coupled": "--temperature 0.8"}  # name of a run -> its sampling
SHORT = "--max-new-tokens 96 --prompts-per-row 1 --no-eager --no-assisted"  # both take the host long
LENGTH_3, PUBLISHED = "forced:rate:0.4", "rate:0.228"  # at k = 5: 1 + 0.4 · 5 = 3 tokens a round; as published


@dataclass(frozen=True)
class Command:
    """One process.

    Attributes:
        argv: after the interpreter.
        writes: files, or folders, that are there when it has ended well.
        needs_modules: modules that it imports and the project itself does not; without one of them it is left out.
    """

    argv: tuple[str, ...]
    writes: tuple[str, ...] = ()
    needs_modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """Commands that belong together, and the minutes after which they are stopped."""

    name: str
    what: str
    minutes: float
    commands: tuple[Command, ...]


@dataclass(frozen=True)
class Scale:
    """Sizes of a run: those of the GPU, or tiny ones for a dry run."""

    dry: bool = False
    prompts: str = ""  # prompt file for the equivalence runs; empty for the bundled prompts

    def pick(self, real: str, tiny: str) -> tuple[str, ...]:
        """Words of one of two texts."""
        return tuple((tiny if self.dry else real).split())

    @property
    def device(self) -> tuple[str, ...]:
        """Where it runs."""
        return ("--device", "cpu" if self.dry else "cuda")

    def published(self, pair: str) -> tuple[str, ...]:
        """A published pair's architecture; the bundled pair in a dry run."""
        return (*self.device, *self.pick(f"--pair {pair} --random-weights --dtype bfloat16", "--pair tiny"))

    @property
    def texts(self) -> tuple[str, ...]:
        """Prompts of the equivalence runs."""
        return ("--prompts", self.prompts, "--max-prompt-tokens", "1024") if self.prompts else ()


def all_pieces(scale: Scale) -> list[Piece]:
    """Every piece, most valuable first."""
    return [
        _smoke(scale),
        *(_verify(scale, dtype) for dtype in ("float32", "bfloat16")),
        _bitwise(scale),
        _bench(scale, "length3", "8,1,32,16,4,2", "inplace", LENGTH_3, repeats=2, minutes=4.5),
        _faster(scale, "fused-norms", "--fuse-norms", "with norms of one or two calls", minutes=3.5),
        _faster(scale, "compiled", "--compile", "with layers fused by torch.compile", minutes=4.5),
        _kernels(scale),
        _bench(scale, "published", "8,4", "eqspec,exspec,masked,inplace", f"forced:{PUBLISHED}", 2, minutes=5.5),
        _anatomy(scale),
        _calibrate(scale, "vicuna"),
        *(_bitwise_all(scale, name) for name in NOISE),
        _unrecorded(scale),
        _bench(scale, "sweep-a", "1,4,16", "all", LENGTH_3, repeats=1, minutes=8.5),
        _bench(scale, "sweep-b", "2,8,32", "all", LENGTH_3, repeats=1, minutes=8.5),
        _calibrate(scale, "qwen3"),
        _calibrate(scale, "glm4"),
        _shape_stable(scale),
        _bundled(scale),
    ]


def _python(*words: str) -> tuple[str, ...]:
    return ("-m", "refimpl", *words)


def _result(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Options that make a command write a result, and the file."""
    path = f"{RESULTS}/{name}.json"
    return ("--output", f"{{root}}/{path}"), (path,)


def _smoke(scale: Scale) -> Piece:
    sizes = scale.pick("--limit 8 --max-new-tokens 24", "--limit 2 --max-new-tokens 3 --methods inplace,eqspec")
    common = ("--dtype", "float32", "--batch-sizes", "4", *scale.device)
    output, writes = _result("verify-gpu-smoke")
    verify = Command(_python("verify", *common, *sizes, *output), writes)
    recorded = _recorded("verify-gpu-smoke-recorded", *common, *sizes[:4])
    # a device's own packages may warn: that is no error there
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-W", "default")
    tests = ("--maxfail=5", *_in_parallel(), GPU_TESTS)  # after a device-side error every test would fail
    argv = (*pytest, *(("--version",) if scale.dry else tests))  # without a GPU there is no test to run
    tested = Command(argv, needs_modules=("pytest", "hypothesis"))
    commands = (verify, recorded, _two_streams(scale), _packed(scale), tested)
    what = (
        "every method runs on the device, drafts in a second stream and packed passes in one call, too; the GPU tests"
    )
    return Piece("smoke", what, 6.5, commands)


def _in_parallel() -> tuple[str, ...]:
    """Six processes for the tests, which wait for the host most of the time, where pytest can run them."""
    return ("-n", "6") if importlib.util.find_spec("xdist") else ()


def _two_streams(scale: Scale) -> Command:
    """Overlapped execution, equal to one-at-a-time decoding."""
    sizes = scale.pick(
        "--limit 8 --max-new-tokens 24 --batch-sizes 4,8", "--limit 2 --max-new-tokens 3 --batch-sizes 2"
    )
    options = ("--execution", "overlapped", "--methods", "inplace,paged", "--dtype", "float32")
    output, writes = _result("verify-gpu-smoke-overlapped")
    return Command(_python("verify", *options, *scale.device, *sizes, *output), writes)


def _packed(scale: Scale) -> Command:
    """Prompts and rows side by side in 16 bit, judged; the result says what has answered them."""
    sizes = scale.pick(
        "--limit 8 --max-new-tokens 24 --batch-sizes 4,8", "--limit 2 --max-new-tokens 3 --batch-sizes 2"
    )
    options = ("--methods", "inplace,paged,paged+continuous", "--dtype", "bfloat16", "--checks", "host")
    output, writes = _result("ties-gpu-smoke")
    return Command(_python("tie-or-bug", *options, *scale.device, *sizes, *output), writes)


def _verify(scale: Scale, dtype: str) -> Piece:
    """Equality on all prompts, with ordinary rounds and with recorded ones; the verdict, which is dear, on some."""
    common = ("--dtype", dtype, *scale.device, *scale.texts)
    output, writes = _result(f"verify-gpu-{dtype}")
    sizes = scale.pick(
        "--batch-sizes 4,16 --max-new-tokens 50",
        "--limit 2 --batch-sizes 2 --max-new-tokens 3 --methods inplace,eqspec",
    )
    verify = Command(_python("verify", *common, *sizes, *output), writes)
    sizes = scale.pick("--batch-sizes 4,16 --max-new-tokens 50", "--limit 2 --batch-sizes 2 --max-new-tokens 3")
    recorded = _recorded(f"verify-gpu-{dtype}-recorded", *common, *sizes)
    output, writes = _result(f"ties-gpu-{dtype}")
    sizes = scale.pick(
        "--limit 24 --batch-sizes 4,16 --max-new-tokens 50",
        "--limit 2 --batch-sizes 2 --max-new-tokens 3 --methods inplace",
    )
    judge = Command(_python("tie-or-bug", *common, *sizes, *output), writes)
    what = f"bundled pair in {dtype} against one-at-a-time decoding; differences judged as ties or bugs"
    return Piece(f"verify-{dtype}", what, 8.5, (verify, recorded, judge))


def _recorded(name: str, *options: str) -> Command:
    """Equality of recorded rounds, which no check may look into."""
    output, writes = _result(name)
    graphs = ("--methods", "inplace", "--cuda-graphs", "--checks", "host")
    return Command(_python("verify", *options, *graphs, *output), writes)


def _sharded(scale: Scale, name: str, sizes: tuple[str, ...], noise: str) -> Command:
    """Equality to the last bit, of all prompts at once: a process has few of them."""
    path = f"{RESULTS}/{name}.json"
    parts = ("--parts", *scale.pick("14", "1 --limit 2"), *(("--prompts", scale.prompts) if scale.prompts else ()))
    options = ("--bitwise", "--dtype", "bfloat16", *scale.device, *sizes, *scale.texts[2:], *noise.split())
    return Command(("tools/sharded.py", *parts, "--output", f"{{root}}/{path}", "--", *options), (path,))


def _bitwise(scale: Scale) -> Piece:
    sizes = scale.pick(
        "--batch-sizes 8 --max-new-tokens 32 --methods inplace,paged",
        "--batch-sizes 2 --max-new-tokens 3 --methods inplace,paged",
    )
    commands = [_sharded(scale, f"bitwise-gpu-{name}", sizes, options) for name, options in NOISE.items()]
    sizes = scale.pick(
        "--limit 24 --batch-sizes 8,32 --max-new-tokens 50", "--limit 2 --batch-sizes 2 --max-new-tokens 3"
    )
    options = ("--bitwise", "--dtype", "bfloat16", *scale.device, *sizes, *scale.texts)
    commands.append(_recorded("bitwise-gpu-recorded", *options))
    return Piece("bitwise", "shape-stable execution in bfloat16: equal to the last bit", 8.5, tuple(commands))


def _bitwise_all(scale: Scale, name: str) -> Piece:
    """Members from anywhere in the pool; each batch size has an oracle of its own."""
    sizes = scale.pick(
        "--batch-sizes 1,8,32 --max-new-tokens 32 --methods inplace+grouped",
        "--batch-sizes 2 --max-new-tokens 3 --methods inplace",
    )
    command = _sharded(scale, f"bitwise-gpu-all-{name}", sizes, NOISE[name])
    return Piece(f"bitwise-{name}", f"the same with members from anywhere in the pool, {name}", 8.9, (command,))


def _bench(
    scale: Scale, name: str, batch_sizes: str, methods: str, acceptance: str, repeats: int, minutes: float
) -> Piece:
    output, writes = _result(f"bench-gpu-{name}")
    sizes = scale.pick(
        f"--batch-sizes {batch_sizes} --methods {methods} --repeats {repeats} {SHORT} --max-minutes {minutes - 3}",
        "--batch-sizes 2 --methods inplace --repeats 1 --max-new-tokens 2 --prompts-per-row 1",
    )
    argv = _python("bench", *scale.published("qwen3"), *sizes, "--acceptance", acceptance, *output)
    what = f"Qwen3-8B/0.6B shapes, {acceptance}, batch {batch_sizes}: {methods} against plain generation"
    return Piece(f"bench-{name}", what, minutes, (Command(argv, writes),))


def _kernels(scale: Scale) -> Piece:
    path = f"{RESULTS}/kernels-gpu.json"
    options = (*scale.published("qwen3"), *(("--no-compile",) if scale.dry else ()))
    command = Command(("tools/round_kernels.py", f"{{root}}/{path}", *options), (path,))
    what = "what a recorded round at batch 8 spends its time on, as loaded, with norms fused, and compiled"
    return Piece("kernels", what, 4.0, (command,))


def _faster(scale: Scale, name: str, option: str, what: str, minutes: float) -> Piece:
    """With what makes a layer's small operations fewer; not in a dry run, as compiling takes minutes on a CPU."""
    output, writes = _result(f"bench-gpu-{name}")
    sizes = scale.pick(
        f"{option} --batch-sizes 8,1 --methods inplace --repeats 2 {SHORT} --max-minutes 2",
        "--batch-sizes 2 --methods inplace --repeats 1 --max-new-tokens 2 --prompts-per-row 1",
    )
    argv = _python("bench", *scale.published("qwen3"), *sizes, "--acceptance", LENGTH_3, *output)
    return Piece(f"bench-{name}", f"the same {what}", minutes, (Command(argv, writes),))


def _anatomy(scale: Scale) -> Piece:
    output, writes = _result("anatomy-gpu")
    sizes = scale.pick(
        "--batch-sizes 1,2,4,8,16,32 --contexts 128,1024 --rounds 12",
        "--batch-sizes 1,2 --contexts 20 --rounds 1 --repeats 1",
    )
    argv = _python("anatomy", *scale.published("qwen3"), *sizes, "--acceptance", PUBLISHED, *output)
    return Piece(
        "anatomy", "what realignment moves and costs, by batch size and context", 7.5, (Command(argv, writes),)
    )


def _calibrate(scale: Scale, pair: str) -> Piece:
    """In a dry run only the options are checked: the smallest grid takes minutes."""
    argv = _python("calibrate", *scale.published(pair), "--out", f"{{root}}/{SIMULATOR_DATA}")
    writes = (f"{SIMULATOR_DATA}/calibration", f"{SIMULATOR_DATA}/validation")
    measured = Command((*argv, "--minutes", "7.5"), writes)
    command = Command((*argv, "--help")) if scale.dry else measured
    return Piece(f"calibrate-{pair}", f"costs of the stages for the simulator, {pair} shapes", 8.9, (command,))


def _unrecorded(scale: Scale) -> Piece:
    """What recording brings; and a benchmark that is there if it fails."""
    output, writes = _result("bench-gpu-unrecorded")
    sizes = scale.pick(
        f"--batch-sizes 8 --repeats 3 {SHORT} --max-minutes 3",
        "--batch-sizes 2 --repeats 1 --max-new-tokens 2 --prompts-per-row 1",
    )
    extra = ("--methods", "inplace", "--acceptance", LENGTH_3, "--no-cuda-graphs")
    argv = _python("bench", *scale.published("qwen3"), *sizes, *extra, *output)
    return Piece("bench-unrecorded", "rounds that are not recorded, at batch 8", 5.0, (Command(argv, writes),))


def _shape_stable(scale: Scale) -> Piece:
    output, writes = _result("bench-gpu-stable")
    sizes = scale.pick(
        f"--batch-sizes 8 --repeats 3 {SHORT} --max-minutes 3",
        "--batch-sizes 2 --repeats 1 --max-new-tokens 2 --prompts-per-row 1",
    )
    extra = ("--methods", "inplace", "--acceptance", LENGTH_3, "--engine-option", "shape_stable=true")
    argv = _python("bench", *scale.published("qwen3"), *sizes, *extra, *output)
    command = Command(argv, writes)
    return Piece("bench-stable", "what shape-stable execution costs at batch 8", 5.0, (command,))


def _bundled(scale: Scale) -> Piece:
    output, writes = _result("bench-gpu-bundled")
    sizes = scale.pick(
        "--dtype bfloat16 --batch-sizes 1,8,32 --prompts-per-row 8 --max-new-tokens 64 --repeats 2 --max-minutes 4",
        "--batch-sizes 2 --prompts-per-row 1 --max-new-tokens 2 --repeats 1 --methods inplace",
    )
    argv = _python("bench", "--pair", "tiny", *scale.device, *sizes, *output)
    return Piece("bench-bundled", "bundled pair, natural acceptance", 8.0, (Command(argv, writes),))
