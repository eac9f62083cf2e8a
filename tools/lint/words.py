# SPDX-License-Identifier: Apache-2.0
"""The project speaks of itself alone: no notes to oneself, no ticket numbers, no paths of a machine, no hosts of
package registries. Comments use common words. Comments of the C code and documents have at most 100 columns. Sentences
of documents, comments, docstrings and help texts are short. Text ends with a line feed, has no trailing blanks, and
every source states its licence."""

from __future__ import annotations

import inspect
import io
import re
import tokenize
from collections.abc import Iterator

import common

# Character classes keep the words out of this file itself.
WORDS = {
    r"\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b": "no notes to oneself",
    r"(?i)\bissue[ ]#?\d|(?<![\w&])#\d{1,4}\b(?!\w)": "no ticket numbers",
    r"(?i)\b(this|my|our|your|earlier|next|last) sessio[n]\b": "no sessions",
    r"(?<![\w.])/(wor[k]|roo[t]|hom[e])/\w": "no paths of somebody's machine",
    r"(?i)\b(pyp[i]|pythonhoste[d]|npmj[s]|pytorc[h])\.(org|com)\b": "no hosts of registries",
    r"(?i)\b(deb|ftp|archive|security)\.(debia[n]|ubunt[u])\.": "no hosts of registries",
}
# In the library nothing names a place in the file system either.
LIBRARY_WORDS = {r"(?<!\w)/tm[p]\b": "no fixed folders"}
# Plain English in comments, messages and documents: the private phrase, and what to write instead.
PLAIN = {
    r"\bwhoever\b|\b(some|no|any|every)body\b": "name the process, the caller, another writer",
    r"\bwho (opens|comes|writes|reads|asks|calls|has|had|wants|knows|is|may|must)\b": "name the process or the caller",
    r"\b(is|are|be|was|were|been) told\b|\bsays so\b": "reports, returns an error, prints",
    r"\bgo(es|ing)? by\b": "uses",
    r"\bgo(es|ing)? on\b|\bwent on\b": "continues, resumes",
    r"\blies?\b": "is stored in",
    r"\b(has|have|had) come\b": "was written, exists",
    r"\bsummed\b": "checksummed",
    r"(?<![Tt]here )\b(is|are) no (?!(longer|more|such|way|need|less|right)\b)[a-z]+": "is not a",
    r"what is (here|there) and not": "files that exist locally but not remotely",
    r"\b(a|every|each|one|two|\d+|small) trainings?\b(?! (script|program|job|run|loop|step|state|data|process|set))": (
        "training run"
    ),
    r"\bbesides?\b": "compared with, next to",
    r"\bwhole\b(?! (numbers?\b|bytes\b|or\b|\")|\(|,)": "complete",
    r"\bmend(s|ed|ing)?\b": "repair, fix",
}
PRODUCT = ("include/", "src/", "tune/", "cli/", "python/")
PLAIN_FOLDERS = (*PRODUCT, "tests/", "examples/", "bench/", "tools/")
# What a comment may cite: promises of crash-safety.md, tests/requirements.md, edges of architecture.md.
CODE = re.compile(r"\b([PRET])(\d+)\b")
LAST_CODE = {"P": 18, "R": 160, "E": 7, "T": 0}
COLUMNS = 100
MAX_WORDS = 25  # in a sentence
ITEM = r"\s*(?:[-*]|\d+\.)\s"
TEXT = ("*", "*/*", "*/**/*")
SOURCES = (".c", ".h", ".py", ".sh", ".pyi")
SCRIPTS = ("Makefile", "meson_options.txt", "run")
PLAIN_TYPES = (".md", ".build", ".sh")
QUOTES = "tests/requirements.md"  # has the words of the requirements
BINARY = {".safetensors", ".bin", ".zip", ".pt", ".png", ".gz"}
NO_WORDS = {"LICENSE"}


def check(name: str, text: str) -> list[str]:
    problems = []
    words = dict(WORDS)
    if name.startswith(("src/", "include/", "tune/", "python/", "cli/")):
        words |= LIBRARY_WORDS
    for pattern, why in words.items():
        for match in re.finditer(pattern, text):
            if why == "no ticket numbers" and name.endswith((".py", ".c", ".h", ".csv")) and match[0].startswith("#"):
                continue  # colours, formats and preprocessor lines
            problems.append(f"{name}:{common.line_of(text, match.start())}: '{match[0]}': {why}")
    return problems


def prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """First line and text of each comment and docstring, of each string of the product, and of a page without code."""
    strings = name.startswith(PRODUCT)
    if name.endswith((".c", ".h")):
        for found in re.finditer(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', text, re.DOTALL):
            if found[0].startswith("/") or (strings and " " in found[0]):
                yield common.line_of(text, found.start()), found[0]
        return
    if name.endswith(".md"):
        text = re.sub(r"(?ms)^( *)```.*?^\1```$", lambda found: "\n" * found[0].count("\n"), text)
        yield 1, re.sub(r"`[^`]+`", "code", text)
        return
    if not name.endswith((".py", ".pyi")):
        for number, line in enumerate(text.split("\n"), 1):
            if comment := re.search(r"(?:^|\s)##? (?!-)(.*)|description: '(.*)'", line):
                yield number, comment[0]
        return
    begins = True  # a statement, where a string is a docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_text = begins or (strings and " " in token.string)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and is_text):
            yield token.start[0], token.string
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def check_english(name: str, text: str) -> list[str]:
    problems = []
    for first, words in prose(name, text):
        for pattern, instead in PLAIN.items():
            for match in re.finditer(pattern, words, re.IGNORECASE):
                line = first + words[: match.start()].count("\n")
                problems.append(f"{name}:{line}: '{match[0]}': write {instead}")
        for found in CODE.finditer(words if words.startswith("/*") else ""):
            if int(found[2]) > LAST_CODE[found[1]]:
                problems.append(f"{name}:{first}: {found[0]} is defined in no document")
    return problems


def check_comment_columns(name: str, text: str) -> list[str]:
    problems = []
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"\s*(/\*|\*[ /])", line) and len(line.expandtabs(8)) > COLUMNS:
            problems.append(f"{name}:{number}: a comment of more than {COLUMNS} columns")
    return problems


def paragraphs(lines: list[str], first: int, item: str = ITEM) -> Iterator[tuple[int, str]]:
    """First line and text of each paragraph and list item. Skips what is indented elsewhere: examples and diagrams."""
    kept: list[str] = []
    in_item = False
    for number, line in enumerate([*lines, ""], first):
        begin, is_indented = re.match(item, line), line.startswith(("  ", "\t"))
        is_example = is_indented and not begin and not in_item
        if kept and (begin or is_example or not line.strip() or (in_item and not is_indented)):
            yield number - len(kept), " ".join(kept)
            kept = []
        in_item = bool(begin) or (in_item and (is_indented or not line.strip()))
        if line.strip() and not is_example:
            kept.append(line[begin.end() if begin else 0 :].strip())


def lines_of_page(text: str) -> list[str]:
    """Without tables, headings and blocks of code."""
    text = re.sub(r"(?ms)^( *)```.*?^\1```$", lambda found: "\n" * found[0].count("\n"), text)
    return ["" if line.lstrip().startswith(("|", "#", "<!--")) else line for line in text.split("\n")]


def lines_of_comment(comment: str) -> list[str]:
    """A comment in C. One behind a line of code is one paragraph."""
    first, *rest = comment[2:-2].split("\n")
    if all(line.lstrip().startswith("*") or not line.strip() for line in rest):
        return [first.strip(), *(re.sub(r"\s*\* ?", "", line, count=1) for line in rest)]
    return [" ".join(comment[2:-2].split())]


def paragraphs_of_source(name: str, text: str) -> Iterator[tuple[int, str]]:
    """First line and text of each paragraph of a comment, docstring or help text of the product."""
    for first, words in prose(name, text):
        if words.startswith("/*"):
            yield from paragraphs(lines_of_comment(words), first)
        elif words.startswith(('"""', 'r"""', "#")) and name.endswith((".py", ".pyi")):
            yield from paragraphs(inspect.cleandoc(words.strip('r#" ')).split("\n"), first, ITEM + r"|\s+\w+:\s")
    for found in re.finditer(r'\.about =((?:\s*"(?:\\.|[^"\\])*")+)', text):
        about = "".join(re.findall(r'"((?:\\.|[^"\\])*)"', found[1]))
        for paragraph in about.split("\\n\\n"):
            yield common.line_of(text, found.start()), paragraph


def check_sentences(name: str, found: Iterator[tuple[int, str]]) -> list[str]:
    """Sentences are short. A piece of code is one word, the target of a link is none."""
    problems = []
    for line, paragraph in found:
        plain = re.sub(r"`+[^`]+`+", "code", paragraph)
        plain = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", plain)
        for sentence in re.split(r"(?<=[^.][.!?])[*_)\"]*\s+| · ", plain):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > MAX_WORDS:
                start = " ".join(words[:6])
                problems.append(f"{name}:{line}: a sentence of {len(words)} words, not {MAX_WORDS}: '{start} ..'")
    return problems


def check_columns(name: str, text: str) -> list[str]:
    """A document's lines, but for tables, headings and what cannot be broken."""
    text = re.sub(r"(?ms)^( *)```.*?^\1```$", lambda found: "\n" * found[0].count("\n"), text)
    return [
        f"{name}:{number}: a line of more than {COLUMNS} columns"
        for number, line in enumerate(text.split("\n"), 1)
        if len(line) > COLUMNS and not line.lstrip().startswith(("|", "#", "!")) and " " in line.strip()
    ]


def main() -> None:
    problems, checked = [], 0
    for path in common.files(*TEXT):
        name = common.name(path)
        if path.suffix in BINARY or "/corpus/" in name or "/golden/" in name:
            continue
        try:
            text = common.text_of(path)
        except UnicodeDecodeError:
            continue
        checked += 1
        if name not in NO_WORDS:
            problems += check(name, text)
        if (name.startswith(PLAIN_FOLDERS) or path.name in SCRIPTS or path.suffix in PLAIN_TYPES) and name != QUOTES:
            problems += check_english(name, text)
        if name.startswith(PRODUCT) and path.suffix in (".c", ".h", ".py", ".pyi"):
            problems += check_sentences(name, paragraphs_of_source(name, text))
        if path.suffix in (".c", ".h"):
            problems += check_comment_columns(name, text)
        if path.suffix == ".md":
            problems += check_sentences(name, paragraphs(lines_of_page(text), 1)) + check_columns(name, text)
        if text and not text.endswith("\n"):
            problems.append(f"{name}: does not end with a line feed")
        if path.suffix != ".md":
            blanks = re.search(r"[ \t]+$", text, re.MULTILINE)
            if blanks:
                problems.append(f"{name}:{common.line_of(text, blanks.start())}: blanks at the end of a line")
        if path.suffix in SOURCES and text.strip() and "SPDX-License-Identifier: Apache-2.0" not in text[:300]:
            problems.append(f"{name}: has no SPDX line")
    common.finish(problems, checked, "text files")


if __name__ == "__main__":
    main()
