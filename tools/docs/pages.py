# SPDX-License-Identifier: Apache-2.0
"""A hook of MkDocs: pages that are made from the code, and links from the documents to files outside of docs/.

The command's page comes from `pawl help`, the one of C from the headers, the one of Python from the docstrings (by
mkdocstrings, which reads the sources). A linked file outside of docs/ becomes a part of the site: a page if it is one
of the project's documents, else a copy below files/.
"""

from __future__ import annotations

import ast
import os
import pathlib
import re
import shutil
import subprocess

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "python/pawl"
# Documents outside of docs/, as pages of the site.
OUTSIDE = {
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "src/README.md": "rooms.md",
    "tests/requirements.md": "requirements.md",
}
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^/\* -{20,} \d+\. (.+) \*/$", re.MULTILINE)
# The modules of Python's reference after the package itself.
MODULES = [
    "torch",
    "jax",
    "lightning",
    "huggingface",
    "accelerate",
    "ray",
    "orbax",
    "composer",
    "loggers",
    "train",
    "tune",
]


def linked(page: str, target: str) -> str:
    """The target of a link, from the root of the repository."""
    return os.path.normpath(os.path.join(os.path.dirname(page), target))


def place_of(path: str) -> str | None:
    """Where the site has a file of the repository; None: nowhere."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"files/{path}" if (ROOT / path).is_file() and not path.endswith(".md") else None


def moved_links(text: str, page: str, place: str) -> str:
    """The text of a page of the repository as the site's page needs it: its links lead to places of the site."""

    def moved(match: re.Match[str]) -> str:
        target = place_of(linked(page, match[1]))
        if target is None:
            return "]"  # a folder, or a page of the sources: its name remains
        return f"]({os.path.relpath(target, os.path.dirname(place) or '.')}{match[2] or ''})"

    parts, at = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(moved, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, LINK.sub(moved, text[at:])])


def command_page() -> str:
    """`pawl help` and the help of each command."""
    pawl = os.environ.get("PAWL_BIN") or shutil.which("pawl")
    if not pawl:
        raise PluginError("the page of the command needs the command: make package")

    def told(*arguments: str) -> str:
        environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1"}
        done = subprocess.run([pawl, *arguments], capture_output=True, text=True, check=True, env=environment)
        return f"```text\n{done.stdout.rstrip()}\n```\n"

    general = told("help")
    names = re.findall(r"^  ([a-z]+)  +\S", general.partition("what a TARGET is")[0], re.MULTILINE)
    parts = ["# Commands\n", "The output of `pawl help` and of `pawl help COMMAND`.\n", general]
    for name in names:
        parts += [f"## pawl {name}\n", told("help", name)]
    return "\n".join(parts)


def groups(section: str) -> list[tuple[str, str]]:
    """The declarations of a section of a header: a heading, and the lines as they stand there."""
    found = []
    for lines in re.split(r"\n\s*\n", section.strip("\n")):
        declared = re.sub(r"/\*.*?\*/", " ", lines, flags=re.DOTALL)
        names = re.findall(r"\b(?:struct|enum) (pawl_\w+) \{|\b\*?(pawl_\w+)\(", declared)
        name = next((a or b for a, b in names if a or b), None)
        if name is None and found:
            found[-1] = (found[-1][0], f"{found[-1][1]}\n\n{lines}")
        else:
            found.append((name or "", lines))
    return found


def c_page() -> str:
    """The public headers, section by section."""
    parts = [
        "# The C interface\n",
        "All public declarations, from the headers. [pawl from C](c.md) shows how to use them.\n",
    ]
    for header in ("pawl.h", "pawl_jobs.h"):
        text = (ROOT / "include" / header).read_text(encoding="utf-8")
        about = re.search(r"/\*\n(.*?) \*/", text, re.DOTALL)
        assert about
        intro = "\n".join(line[3:] for line in about[1].splitlines())
        parts += [f"## {header}\n", f"```text\n{intro.rstrip()}\n```\n"]
        pieces = SECTION.split(text.partition("#ifdef __cplusplus\n}")[0])
        for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
            parts += [f"### {header}: {title}\n"]
            for name, lines in groups(body):
                parts += [f"#### {name}\n" if name else "", f"```c\n{lines}\n```\n"]
    return "\n".join(parts)


def public_names(source: pathlib.Path) -> list[str]:
    """__all__ of a module, as its source has it."""
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    raise PluginError(f"{source} has no __all__")


def python_page() -> str:
    """What `import pawl` gives, by mkdocstrings."""
    names = [name for name in public_names(PACKAGE / "__init__.py") if not name.startswith("_")]
    parts = [
        "# The Python interface\n",
        "The docstrings. [The guide](python.md) shows their use.\n",
        "## pawl\n",
    ]
    parts += [f"::: pawl.{name}\n" for name in names]
    for module in MODULES:
        parts += [f"## pawl.{module}\n", f"::: pawl.{module}\n    options:\n      show_root_heading: false\n"]
    return "\n".join(parts)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    made = {
        "reference/commands.md": command_page(),
        "reference/c-interface.md": c_page(),
        "reference/python-interface.md": python_page(),
    }
    for path, place in OUTSIDE.items():
        made[place] = moved_links((ROOT / path).read_text(encoding="utf-8"), path, place)
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    sources = [(f"docs/{f.src_uri}", f) for f in files if f.src_uri.endswith(".md") and f.src_uri not in made]
    wanted = set()
    for page, file in sources:
        wanted |= {linked(page, match[1]) for match in LINK.finditer(FENCE.sub("", file.content_string))}
    for page in OUTSIDE:
        text = (ROOT / page).read_text(encoding="utf-8")
        wanted |= {linked(page, match[1]) for match in LINK.finditer(FENCE.sub("", text))}
    for path in sorted(wanted):
        place = place_of(path)
        if place and place.startswith("files/"):
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.generated_by:
        return markdown
    return moved_links(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)
