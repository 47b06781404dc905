"""``python3 uses.py FOLDER``: what Instances*.v and exempt.txt say of theorems, against the proofs as Coq read them.

Coq notes in its .glob files what every definition and proof refers to. An example called THEOREM_applies must refer to
the theorem, by itself or through what it refers to. So must the proof that is said to rest on it, which has an example.
"""

import re
import sys
from pathlib import Path

DEFINED = re.compile(r"(?:prf|thm|def|ind|inst|rec|class|lem|ex|coe|not|var|proj|constr|sec) \d+:\d+ \S+ (\S+)$")
REFERS = re.compile(r"R\d+:\d+ (RaggedSpec\.\S+) \S+ (\S+) \w+$")
RESTS = re.compile(r"(\w+): the proof of (\w+) rests on it, and that is applied$")
APPLIES = "_applies"
Name = tuple[str, str]  # a module's, and that of what it defines
Uses = dict[Name, set[Name]]


def read_uses(folder: Path) -> Uses:
    """What each name refers to."""
    uses: Uses = {}
    for file in sorted(folder.glob("*.glob")):
        module, current = f"RaggedSpec.{file.stem}", set()
        for line in file.read_text().splitlines():
            if found := DEFINED.match(line):
                current = uses.setdefault((module, found[1]), set())
            elif found := REFERS.match(line):
                current.add((found[1], found[2]))
    return uses


def all_of(uses: Uses, name: Name) -> set[str]:
    """What a name refers to, by itself or through others."""
    seen, waiting = set[Name](), [name]
    while waiting:
        more = uses.get(waiting.pop(), set()) - seen
        seen |= more
        waiting += more
    return {each for _, each in seen}


def faults(folder: Path) -> list[str]:
    """What is said, and is not so."""
    uses = read_uses(folder)
    examples = {each.removesuffix(APPLIES): (module, each) for module, each in uses if each.endswith(APPLIES)}
    theorems = {name: (module, name) for module, name in uses}
    lines = (folder / "exempt.txt").read_text().splitlines()
    said = [(found[1], found[2]) for line in lines if (found := RESTS.match(line))]
    return [
        *(f"{name}{APPLIES} does not apply it" for name, each in examples.items() if name not in all_of(uses, each)),
        *(f"the proof of {by} does not rest on {name}" for name, by in said if name not in all_of(uses, theorems[by])),
        *(f"{by} is not applied" for _, by in said if by not in examples),
    ]


if __name__ == "__main__":
    found = faults(Path(sys.argv[1]))
    print("".join(f"  {fault}\n" for fault in found), end="")
    sys.exit(bool(found))
