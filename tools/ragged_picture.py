"""Draw docs/ragged.svg: why a batch becomes ragged, what a wrong position does, what a right layout does.

``python tools/ragged_picture.py`` writes the file, ``--check`` only compares (exit code 1). The numbers follow from
`ACCEPTED` and `DRAFTS`; cells show a token's position in its row.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).parent.parent / "docs" / "ragged.svg"
CONTEXT, DRAFTS, ACCEPTED = 4, 4, (1, 4, 2)  # tokens before the round, drafts a row, drafts accepted of each row
KEPT = [accepted + 1 for accepted in ACCEPTED]  # the target's own token comes on top
ENDS = [CONTEXT + kept for kept in KEPT]
CELL, ROW = 30, 42
WIDTH, HEIGHT = 880, 500
INK, FAINT, RED, GREEN = "#1f2933", "#5f6c7b", "#b3400f", "#00724f"
FILLS = {  # kind of token -> fill, border
    "context": ("#e6e9ee", "#9aa5b1"),
    "draft": ("#ffffff", "#5f6c7b"),
    "accepted": ("#c3e8d8", "#009e73"),
    "rejected": ("#fbdccf", "#d55e00"),
    "masked": ("#ffffff", "#cbd2d9"),
    "target": ("#c9def4", "#0072b2"),
    "next": ("#fbe7a9", "#b07d00"),
}
STRUCK = ("rejected", "masked")
LEGEND = (
    ("context", "context"), ("accepted", "draft, accepted"), ("rejected", "draft, rejected"),
    ("target", "target’s own"), ("next", "next round’s first draft"), ("masked", "masked"),
)  # fmt: skip


def text(x: float, y: float, words: str, *, size: int = 14, color: str = INK, extra: str = "") -> str:
    """A line of text."""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}"{extra}>{words}</text>'


def cell(x: float, y: float, kind: str, label: str, color: str = INK) -> str:
    """One token."""
    fill, border = FILLS[kind]
    box = (
        f'<rect x="{x + 1:g}" y="{y:g}" width="{CELL - 2}" height="{CELL - 2}" rx="4" fill="{fill}" stroke="{border}"/>'
    )
    middle = ' text-anchor="middle"' + (' font-weight="700"' if kind in ("next", "target") else "")
    label_ = text(x + CELL / 2, y + 19, label, size=13, color=color, extra=middle) if label else ""
    line = f'<path d="M{x + 5:g} {y + 23:g}l20 -18" stroke="{border}" stroke-width="1.5"/>'
    return box + label_ + line * (kind in STRUCK)


def tokens(row: int) -> list[str]:
    """Kinds of a row's tokens after the round, by position."""
    return ["context"] * CONTEXT + ["accepted"] * ACCEPTED[row] + ["target"]


def verified(x: float, y: float) -> Iterator[str]:
    """Before anything is dropped: each row's drafts, and how many are accepted."""
    for i, accepted in enumerate(ACCEPTED):
        top = y + i * ROW
        for column in range(CONTEXT + DRAFTS):
            place = column - CONTEXT
            kind = "context" if place < 0 else "accepted" if place < accepted else "rejected"
            yield cell(x + column * CELL, top, kind, str(column))
        yield text(x + (CONTEXT + DRAFTS) * CELL + 12, top + 19, f"accepts {accepted}")


def ragged(x: float, y: float) -> Iterator[str]:
    """After the round: rows of different lengths."""
    for i, kept in enumerate(KEPT):
        top = y + i * ROW
        for column, kind in enumerate(tokens(i)):
            yield cell(x + column * CELL, top, kind, str(column))
        yield text(x + ENDS[i] * CELL + 12, top + 19, f"+{kept} tokens")


def continued(x: float, y: float, *, right: bool) -> Iterator[str]:
    """The next round's first token: at the batch's common end, or at each row's own."""
    for i, end in enumerate(ENDS):
        top, at = y + i * ROW, end if right else max(ENDS)
        for column, kind in enumerate(tokens(i)):
            yield cell(x + column * CELL, top, kind, str(column))
        for column in range(end + right, CONTEXT + DRAFTS):  # where rejected drafts still stand
            yield cell(x + column * CELL, top, "masked" if right else "rejected", "")
        wrong = at != end
        yield cell(x + at * CELL, top, "next", str(at), RED if wrong else INK)
        words, color = (f"should be {end}", RED) if wrong else ("right", GREEN)
        yield text(x + (max(ENDS) + 1) * CELL + 8, top + 19, words, size=13, color=color)


def panel(
    x: float, y: float, title: str, note: tuple[str, str], body: Iterator[str], color: str = INK
) -> Iterator[str]:
    """A heading, rows of tokens, and two lines below."""
    yield text(x, y, title, size=16, color=color, extra=' font-weight="700"')
    yield from body
    for i, line in enumerate(note):
        yield text(x, y + 20 + 3 * ROW + 14 + 19 * i, line, size=13, color=FAINT)


def legend(x: float, y: float) -> Iterator[str]:
    """What the colours mean."""
    for kind, words in LEGEND:
        yield f'<g transform="translate({x:g} {y:g}) scale(.6)">{cell(0, 0, kind, "")}</g>'
        yield text(x + 24, y + 13, words, size=13, color=FAINT)
        x += 44 + 7 * len(words)


def picture() -> str:
    """The SVG file."""
    left, right, top, low = 32, 456, 44, 264
    panels = [
        *panel(
            left, top, "1  Each row drafts 4, the target verifies",
            (
                "Numbers are positions. From the first wrong draft on, all are",
                "rejected; the target adds one token of its own.",
            ),
            verified(left, top + 18),
        ),
        *panel(
            right, top, "2  The batch is ragged",
            ("Rows gain different numbers of tokens,", "but a tensor has one width for all of them."),
            ragged(right, top + 18),
        ),
        *panel(
            left, low, "3  One position for all rows: silently wrong", 
            ("Short rows skip positions, and the mask lets them see", "rejected drafts. The text changes silently."),
            continued(left, low + 18, right=False), RED,
        ),
        *panel(
            right, low, "4  Each row at its own end: exact",
            ("Positions count the row’s own tokens; rejected drafts", "are masked. Same tokens as decoding alone."),
            continued(right, low + 18, right=True), GREEN,
        ),
    ]  # fmt: skip
    body = "\n".join([*panels, *legend(left, HEIGHT - 32)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" font-family="Helvetica, Arial, sans-serif">\n'
        "<title>Why batch speculative decoding goes wrong</title>\n"
        f"<desc>Three rows accept {ACCEPTED[0]}, {ACCEPTED[1]} and {ACCEPTED[2]} of {DRAFTS} drafts, so their lengths "
        "differ. If all continue at one position, short rows see rejected drafts; each must continue at its own end."
        "</desc>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="#ffffff"/>\n'
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="12" fill="none" stroke="#d3d9e0"/>\n'
        f"{body}\n</svg>\n"
    )


def main(arguments: list[str]) -> int:
    """Write or check the file; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit code 1 where the file differs")
    if parser.parse_args(arguments).check:
        return int(not FILE.exists() or FILE.read_text(encoding="utf-8") != picture())
    FILE.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
