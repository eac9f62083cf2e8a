# SPDX-License-Identifier: Apache-2.0
"""Groups of workers: which worker is gone, disagrees or is stuck, whether a group starts again, files that two give."""

from __future__ import annotations

import pytest

from pawl.train.workers import End, Trouble, Worker, clash, late, look, may_start_again


def check(workers: list[Worker], trouble: Trouble, rank: int | None, words: str) -> None:
    assert look(workers, 4000, 9000) == (trouble, rank, words)


def test_P11_a_worker_without_a_sign_of_life_is_the_one() -> None:
    check([Worker(2), Worker(2, silent_ms=4000), Worker(3)], Trouble.WELL, None, "")
    check([Worker(2), Worker(2, silent_ms=4001), Worker(3)], Trouble.SILENT, 1, "rank 1 gave no sign of life for 4 s")
    check(  # once it has ended, silence is as it should be, but the others wait in vain
        [Worker(2), Worker(2, True, 4001), Worker(3)],
        Trouble.UNEQUAL,
        None,
        "report 3: rank 2 has reached it, but the train function of rank 1 has ended after 2; all workers must report "
        "equally often",
    )
    check([], Trouble.WELL, None, "")


def test_P11_unequal_numbers_of_reports_are_named_once_one_has_ended() -> None:
    check([Worker(3), Worker(1), Worker(3, True)], Trouble.WELL, None, "")  # rank 1 may still come to them
    check(
        [Worker(3), Worker(1, True), Worker(3, True)],
        Trouble.UNEQUAL,
        None,
        "report 2: rank 0 has reached it, but the train function of rank 1 has ended after 1; all workers must report "
        "equally often",
    )
    check([Worker(3), Worker(3, True), Worker(3, True)], Trouble.WELL, None, "")


def test_P16_a_group_is_stuck_when_none_of_it_makes_progress() -> None:
    still, moving = Worker(2, still_ms=9001), Worker(2, still_ms=9000)
    ended = Worker(2, True, still_ms=9001)
    check([still, still, moving], Trouble.WELL, None, "")  # the third may be what the others wait for
    words = "no worker came to a report for 9 s: rank 0 is at 2; rank 1 is at 2; rank 2 is at 2"
    check([still, still, still], Trouble.STUCK, None, words)
    words = "no worker came to a report for 9 s: rank 0 has ended after 2; rank 1 has ended after 2; rank 2 is at 2"
    check([ended, ended, still], Trouble.STUCK, None, words)
    check([ended, ended, ended], Trouble.WELL, None, "")
    assert look([Worker(0, False, 1 << 30, 1 << 30)] * 3, 0, 0) == (Trouble.WELL, None, "")  # no limits


def test_P11_those_that_have_not_come_are_named_and_many_are_counted() -> None:
    workers = [Worker(5), Worker(4), Worker(3, True), Worker(5)]
    assert late(workers, 5) == "rank 1 is at 4; rank 2 has ended after 3"
    assert late(workers, 3) == ""
    assert late(workers + [Worker(0)] * 16, 5).endswith("; rank 9 is at 0; and 10 more")
    assert late([Worker(0)] * 8, 1).endswith("; rank 7 is at 0")


@pytest.mark.parametrize(
    ("end", "n", "most", "again"),
    [
        (End.FAILED, 1, 0, False),
        (End.FAILED, 1, 1, True),
        (End.FAILED, 2, 1, False),
        (End.FAILED, 3, 3, True),
        (End.FAILED, 4, 3, False),
        (End.FAILED, 1 << 30, -1, True),
        (End.WRONG, 1, -1, False),
        (End.TOLD, 1, 5, False),
    ],
)
def test_R55_a_group_starts_again_as_often_as_it_may(end: End, n: int, most: int, again: bool) -> None:
    assert may_start_again(end, n, most) == again


def test_R44_one_name_with_different_contents_is_told() -> None:
    files = [
        ("b", 0, 3, 7),
        ("same", 0, 5, 9),
        ("own", 1, 1, 1),
        ("same", 2, 5, 9),
        ("b", 2, 3, 8),
        ("b", 1, 3, 7),
        ("a", 2, 0, 0),
    ]
    assert clash(files) == "ranks 0 and 2 both give the file 'b' with different contents"
    files[4] = ("b", 2, 3, 7)
    assert clash(files) is None
    files[3] = ("same", 2, 6, 9)
    assert clash(files) == "ranks 0 and 2 both give the file 'same' with different contents"
    assert clash([]) is None
