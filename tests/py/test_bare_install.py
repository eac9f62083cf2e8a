# SPDX-License-Identifier: Apache-2.0
"""Installing from source. The lines of the pages run as printed, in a Debian system that has only the packages which
the pages name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from bare_root import BareRoot, bare_root, checked
from pages import ROOT, Block, Reader, blocks

pytestmark = [pytest.mark.root, pytest.mark.long]


@dataclasses.dataclass
class Stranger(Reader):
    """Follows a page inside a root, in its folder /src."""

    root: BareRoot = dataclasses.field(kw_only=True)

    def run(self, command: list[str], *, fails: bool = False) -> str:
        return self.root.run("sh", "-c", 'cd /src && exec "$@"', "sh", *command)


def block(page: str, begins: str) -> Block:
    return next(found for found in blocks(page) if found.first.startswith(begins))


@pytest.fixture(scope="module", name="stranger")
def a_clone_in_a_bare_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    line = block("docs/how-to/installing.md", "apt-get install")
    packages = [word for word in line.text.split() if word != "\\"][3:]
    with bare_root(tmp_path_factory.mktemp("bare"), ",".join(["sudo", *packages])) as root:
        checked("git", "clone", "--quiet", ROOT, root.folder / "src")
        stranger = Stranger(root.folder / "src", root=root)
        stranger.do(line, None)  # installs nothing more
        yield stranger


def test_the_tutorial_of_C_can_be_followed_from_its_first_line(stranger: Stranger) -> None:
    stranger.follow(blocks("docs/tutorials/c.md"))
    assert (stranger.root.folder / "usr/local/include/pawl.h").exists()


def test_the_reference_of_C_installs_and_links(stranger: Stranger) -> None:
    [program] = [found.text for found in blocks("docs/tutorials/c.md") if found.language == "c"]
    (stranger.folder / "train.c").write_text(program)
    stranger.do(block("docs/reference/c.md", "make install"), None)
    assert "first step: 1\n" in stranger.run(["sh", "-c", "rm -rf runs; ./train 3"])
