# SPDX-License-Identifier: Apache-2.0
"""The drawings of states and paths in docs/explanation are what this script draws. `--write` draws them anew.

Boxes stand in a grid; an arrow leads from the edge of one box to that of another."""

from __future__ import annotations

import dataclasses
from html import escape

import common

FOLDER = common.ROOT / "docs/explanation"
HIGH, DOWN = 34, 76
HEAD = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="black"/></marker></defs>'
)


@dataclasses.dataclass
class Drawing:
    wide: int  # of a box
    right: int  # from one column to the next
    boxes: dict[str, tuple[int, int, str]]  # key: column, row, text
    arrows: list[tuple[str, str, str]]  # from, to, what is written at its middle

    def middle(self, key: str) -> tuple[float, float]:
        column, row, _ = self.boxes[key]
        return 10 + self.wide / 2 + column * self.right, 10 + HIGH / 2 + row * DOWN

    def edge(self, key: str, towards: str) -> tuple[float, float]:
        """Where the line between the middles of two boxes leaves the first."""
        (x, y), (to_x, to_y) = self.middle(key), self.middle(towards)
        part = min(
            self.wide / 2 / abs(to_x - x) if to_x != x else 1,
            HIGH / 2 / abs(to_y - y) if to_y != y else 1,
        )
        return x + (to_x - x) * part, y + (to_y - y) * part

    def svg(self) -> str:
        width = 20 + self.wide + self.right * max(column for column, _, _ in self.boxes.values())
        height = 20 + HIGH + DOWN * max(row for _, row, _ in self.boxes.values())
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="13" text-anchor="middle">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            HEAD,
        ]
        for key, (_, _, text) in self.boxes.items():
            x, y = self.middle(key)
            fill = "#d7e6f1" if text.split()[0].isupper() else "#eef2f5"
            out.append(
                f'<rect x="{x - self.wide / 2:g}" y="{y - HIGH / 2:g}" width="{self.wide}" height="{HIGH}" rx="5" '
                f'fill="{fill}" stroke="#2f6f9f"/>'
            )
            out.append(f'<text x="{x:g}" y="{y + 4.5:g}" fill="black">{escape(text)}</text>')
        for start, end, text in self.arrows:
            (x, y), (to_x, to_y) = self.edge(start, end), self.edge(end, start)
            out.append(
                f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="black" '
                'marker-end="url(#tip)"/>'
            )
            above = -7 if y == to_y else 4
            out.append(
                f'<text x="{(x + to_x) / 2:.1f}" y="{(y + to_y) / 2 + above:.1f}" font-size="11" fill="black" '
                f'stroke="white" stroke-width="4" paint-order="stroke">{escape(text)}</text>'
            )
        return "\n".join([*out, "</svg>"]) + "\n"


DRAWINGS = {
    "path-of-a-save.svg": Drawing(
        200,
        270,
        {
            "caller": (0, 0, "THREAD OF THE CALLER"),
            "workers": (1, 0, "COPY AND I/O THREADS"),
            "saver": (2, 0, "THREAD OF THE SAVER"),
            "turn": (0, 1, "a turn, an id"),
            "plan": (0, 2, "plan: tensors to packs"),
            "stage": (0, 3, "memory from the arena"),
            "copy": (1, 3, "copy and checksum a unit"),
            "write": (1, 4, "write the unit"),
            "back": (0, 4, "return: tensors may change"),
            "settle": (2, 4, "link or fsync each pack"),
            "commit": (2, 5, "lease, manifest, rename"),
            "retention": (2, 6, "what to keep"),
            "pointers": (2, 7, "latest, best"),
        },
        [
            ("caller", "turn", "pawl_save"),
            ("turn", "plan", "writer.c, save.c"),
            ("plan", "stage", "plan.c"),
            ("stage", "copy", "stage.c"),
            ("copy", "back", "all copied"),
            ("copy", "write", "snapshot.c"),
            ("write", "settle", "write.c"),
            ("settle", "commit", "all durable"),
            ("commit", "retention", "commit.c: it exists"),
            ("retention", "pointers", "apply_retention.c"),
        ],
    ),
    "path-of-a-restore.svg": Drawing(
        220,
        300,
        {
            "pick": (0, 0, "selector to checkpoint, hold"),
            "match": (0, 1, "saved leaves to live tensors"),
            "plan": (0, 2, "which ranges, and where to"),
            "fetch": (0, 3, "read, check, copy each unit"),
            "filled": (0, 4, "filled memory"),
            "gone": (1, 3, "deleted, or damaged?"),
            "again": (1, 0, "a new or an older one"),
        },
        [
            ("pick", "match", "restore_pick.c"),
            ("match", "plan", "restore_match.c"),
            ("plan", "fetch", "reshard.c"),
            ("fetch", "filled", "fetch.c"),
            ("fetch", "gone", "failed"),
            ("gone", "again", "restore_gone.c"),
            ("again", "pick", "restore.c"),
        ],
    ),
    "save.svg": Drawing(
        100,
        185,
        {
            "staging": (0, 0, "STAGING"),
            "staged": (1, 0, "STAGED"),
            "written": (2, 0, "WRITTEN"),
            "committed": (3, 0, "COMMITTED"),
            "settled": (4, 0, "SETTLED"),
            "failed": (1, 1, "FAILED"),
        },
        [
            ("staging", "staged", "copied"),
            ("staged", "written", "files fsynced"),
            ("written", "committed", "published"),
            ("committed", "settled", "retention done"),
            ("staging", "failed", ""),
            ("staged", "failed", ""),
            ("written", "failed", ""),
        ],
    ),
    "save-rank-0.svg": Drawing(
        190,
        310,
        {
            "put": (0, 0, "put own packs and part"),
            "gather": (0, 1, "GATHER"),
            "lease": (0, 2, "lease still ours?"),
            "manifest": (0, 3, "write the manifest"),
            "files": (0, 4, "all files in the folder?"),
            "rename": (0, 5, "RENAME to checkpoint_N"),
            "ok": (0, 6, "verdict OK, retention"),
            "withdraw": (1, 3, "WITHDRAW: rename away"),
            "look": (1, 5, "LOOK"),
            "failed": (2, 3, "verdict FAILED, remove"),
            "lost": (2, 5, "LOST"),
        },
        [
            ("put", "gather", ""),
            ("gather", "lease", "all parts"),
            ("lease", "manifest", "yes"),
            ("manifest", "files", ""),
            ("files", "rename", "yes"),
            ("rename", "ok", "done"),
            ("gather", "withdraw", "failure, deadline"),
            ("lease", "withdraw", "no"),
            ("files", "withdraw", "no"),
            ("withdraw", "failed", ""),
            ("rename", "look", "failed or unknown"),
            ("look", "withdraw", "not there, lease ours"),
            ("look", "lost", "not there, lease lost"),
            ("look", "ok", "there, our token"),
        ],
    ),
    "save-rank-r.svg": Drawing(
        190,
        350,
        {
            "put": (0, 0, "put own packs and part"),
            "wait": (0, 1, "WAIT"),
            "withdraw": (0, 2, "WITHDRAW: rename away"),
            "look": (0, 3, "LOOK"),
            "lease": (0, 4, "lease still of this attempt?"),
            "lost": (0, 5, "LOST"),
            "verdict": (1, 1, "what the verdict says"),
            "renamed": (1, 2, "FAILED"),
            "ok": (1, 3, "OK"),
            "failed": (1, 4, "FAILED"),
        },
        [
            ("put", "wait", ""),
            ("wait", "verdict", "verdict.json"),
            ("wait", "withdraw", "rank 0 is gone, or the deadline"),
            ("withdraw", "renamed", "renamed"),
            ("withdraw", "look", "no such folder"),
            ("look", "ok", "checkpoint_N, our token"),
            ("look", "lease", "not there"),
            ("lease", "failed", "yes"),
            ("lease", "lost", "no"),
        ],
    ),
}


def main() -> None:
    arguments = common.arguments()
    problems = []
    for name, drawing in DRAWINGS.items():
        picture, text = FOLDER / name, drawing.svg()
        if arguments.write:
            picture.write_text(text, encoding="utf-8")
        if not picture.exists() or common.text_of(picture) != text:
            problems.append(f"docs/explanation/{name} is old: tools/lint/states.py --write")
    common.finish(problems, len(DRAWINGS), "drawings")


if __name__ == "__main__":
    main()
