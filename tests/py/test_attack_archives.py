# SPDX-License-Identifier: Apache-2.0
"""P17: hostile archives: files of torch.save in both forms, numpy's, and compressed ones. As test_attack_corpus.py has it:
each is opened by the package and by the commands and refused with an error that names it, within a second and 256 MiB;
nothing is run, nothing is written anywhere."""

from __future__ import annotations

import gzip
from collections import Counter

import attack_archives as hostile
import pytest
import torch
from attack import Corpus, Shape
from test_attack_corpus import Answers, Bench, changes, fixture_bench, photograph, problems

pytestmark = pytest.mark.long

__all__ = ["fixture_bench"]
LEAST_SHAPES = 150
# What stands in many places is taken apart up to the limit of all nodes, 512 MiB, and no further.
UP_TO_THE_LIMIT = {"pt-pickle/memo-doubling-of-tuples", "pt-pickle/a-text-in-many-places"}
MAX_SECONDS, MAX_BYTES = 10, 640 << 20


def put(corpus: Corpus, group: str, name: str, data: bytes, file_name: str, harmless: bool = False) -> None:
    path = corpus.place(group, name) / file_name
    path.write_bytes(data)
    value = {"t": torch.tensor([1.0, 2.0, 3.0, 4.0])} if harmless else None
    passes = ("show",) if (group, name) == ("npz", "a-wrong-sum") else ()  # it does not look at the contents
    corpus.add(group, name, "file", path, harmless=harmless, value=value, passes=passes)


def judged(shape: Shape, answers: dict[str, Answers]) -> list[str]:
    if shape.name in UP_TO_THE_LIMIT:
        for what, answer in answers.items():
            if answer["seconds"] > MAX_SECONDS or answer["grown"] > MAX_BYTES:
                return [f"{shape.name}: {what}: {answer['seconds']:.1f} s, {answer['grown'] >> 20} MiB"]
            answer |= {"seconds": 0, "grown": 0}
    return problems(shape, answers)


def fill(corpus: Corpus) -> None:
    bait = str(corpus.bait)
    streams = {f"call-{name}": hostile.state(stream) for name, stream in hostile.calls(bait).items()}
    for name, stream in (streams | hostile.STREAMS).items():
        put(corpus, "pt-pickle", name, hostile.archive(stream), f"{name}.pt")
    for name, stream in streams.items():
        put(corpus, "pt-older-pickle", name, hostile.legacy(stream), f"{name}.bin")
    for name, data in hostile.archives().items():
        put(corpus, "pt-archive", name, data, f"{name}.pt")
    for name, data in hostile.older().items():
        put(corpus, "pt-older", name, data, f"{name}.pt")
    # A pickle by the name of something else: CVE-2025-10155.
    for suffix in ("safetensors", "npz", "npy"):
        put(corpus, "pickle-by-another-name", suffix, hostile.state(hostile.calls(bait)["system"]), f"x.{suffix}")
    for name, data in (hostile.numpys(bait) | hostile.packed_numpys()).items():
        put(corpus, "npz", name, data, f"{name}.npz")
    for name, data in hostile.compressed().items():
        put(corpus, "compressed", name, data, name)


@pytest.fixture(name="filled")
def fixture_filled(bench: Bench) -> Bench:
    fill(bench.corpus)
    return bench


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_P17_hostile_archives_are_refused(filled: Bench) -> None:
    shapes = filled.corpus.shapes
    assert len({shape.name for shape in shapes}) == len(shapes) >= LEAST_SHAPES
    assert len({shape.path.read_bytes() for shape in shapes}) >= len(shapes) - 2, "two shapes are the same"
    before = photograph(filled.bait, filled.cwd), photograph(filled.folder / "corpus", loosely=True)
    answers = filled.run(shapes)
    print(len(shapes), "shapes", dict(Counter(shape.group for shape in shapes)))
    found = [problem for shape in shapes for problem in judged(shape, answers[shape.name])]
    assert not found, f"{len(found)} of {len(shapes)} shapes\n" + "\n".join(found)
    after = photograph(filled.bait, filled.cwd), photograph(filled.folder / "corpus", loosely=True)
    assert not changes(before[0] | before[1], after[0] | after[1])


def test_what_the_hostile_archives_are_made_of_is_read(bench: Bench) -> None:
    """Controls: without what is wrong they are files like others; and torch reads them too."""
    corpus = bench.corpus
    put(corpus, "control", "archive", hostile.archive(), "a.pt", harmless=True)
    put(corpus, "control", "compressed", gzip.compress(hostile.archive()), "c.pt.gz", harmless=True)
    answers = bench.run(corpus.shapes)
    assert not [problem for shape in corpus.shapes for problem in problems(shape, answers[shape.name])]
    for shape in corpus.shapes[:1]:
        assert torch.load(shape.path, weights_only=True)["t"].tolist() == [1, 2, 3, 4]
