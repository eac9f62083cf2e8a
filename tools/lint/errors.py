# SPDX-License-Identifier: Apache-2.0
"""docs/reference/errors.md lists the error codes as the code has them. `--write` makes it anew.

The meanings come from pawl.h, names and exit statuses from the library, exceptions from py_error.c."""

from __future__ import annotations

import ctypes
import re

import common

PAGE = common.ROOT / "docs/reference/errors.md"
HEAD = """# Errors

A function of C returns 0 or one of these codes; `struct pawl_error` has the message, and `sys` is
`errno` where the system refused something. Python raises the exception, a `pawl.PawlError` with
`.code` and `.code_name`; it is also the builtin exception in parentheses. The command ends with the
status: 0 means success. [messages.md](messages.md) shows messages.

| code, its name | in Python | status | meaning | what to do |
|---|---|---|---|---|
"""
TAIL = """
\\* The same call may succeed later, although nothing was changed (`pawl_code_is_transient`).

`PAWL_ETIMEOUT` with `PAWL_SYS_WAITED` in `sys`: only the wait has ended, and what it waited for
continues.
"""
WHAT_TO_DO = {
    "EUSAGE": "correct the argument or option that the message names",
    "ENOMEM": 'free memory, or let saves use less: `Staging(mode="ring")`',
    "ENOTFOUND": "check the path, step or name: `pawl ls`. From a restore in C: begin a new training",
    "EEXISTS": "choose another place, or `overwrite`",
    "EBUSY": "wait for the save or process that the message names ([how](../explanation/crash-safety.md#one-writer)); "
    "a pinned, latest or best checkpoint needs `force`",
    "ECONFLICT": "end one of the two processes that write here",
    "ENOSPACE": "free space or keep less ([how](../how-to/troubleshooting.md)); earlier checkpoints are intact",
    "EIO": "look at the disk and the system's log; the next save writes everything again",
    "ETRANSIENT": "call again later; requests to a store were already repeated",
    "EAUTH": "grant the right, or give the credentials ([stores](../how-to/stores.md))",
    "ECORRUPT": "a restore takes an older checkpoint by itself; `pawl verify` lists the damage",
    "EVERSION": "install a newer pawl",
    "ETIMEOUT": "wait longer, or find what hangs: missing ranks are named",
    "ECANCELLED": "save again, if the state is still needed. Of many ranks, one died or was started again",
    "EMISMATCH": "compare what the message lists; `strict=False` restores the rest",
    "ELIMIT": "divide the input, or look for what made it so large",
    "EUNSUPPORTED": "do what the message proposes",
    "EREADONLY": "open the run without `read_only`, or choose another place",
    "EINTERNAL": "report it, with the message",
    "EDEVICE": "start the process again; `pawl doctor` tests the device",
}


def main() -> None:
    arguments = common.arguments()
    library = ctypes.CDLL(str(next((arguments.build / "src").glob("libpawl.so"))))
    library.pawl_code_name.restype = ctypes.c_char_p
    header = common.text_of(common.ROOT / "include/pawl.h")
    codes = re.findall(r"^\tPAWL_(E\w+) = (-\d+),? +/\* (.*?) \*/$", header, re.MULTILINE)
    source = common.text_of(common.ROOT / "python/pawl/py_error.c")
    rows = re.findall(r'\{PAWL_(E\w+), "(\w+)", "[^"]*",\s*(?:&PyExc_(\w+)|NULL)\}', source)
    exceptions = {code: (name, builtin) for code, name, builtin in rows}
    problems = [f"{code} has no exception" for code, *_ in codes if code not in exceptions]
    problems += [
        f"{code}: tools/lint/errors.py does not say what to do" for code, *_ in codes if code not in WHAT_TO_DO
    ]
    page = HEAD
    for code, number, meaning in codes:
        name, builtin = exceptions.get(code, ("", ""))
        python = f"`{name}`" + (f" (`{builtin}`)" if builtin else "")
        again = "\\*" if library.pawl_code_is_transient(int(number)) else ""
        status = library.pawl_code_exit_status(int(number))
        known_as = library.pawl_code_name(int(number)).decode()
        page += (
            f"| `PAWL_{code}` `{known_as}`{again} | {python} | {status} | {meaning} | {WHAT_TO_DO.get(code, '')} |\n"
        )
    page += TAIL
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")
    if not PAGE.exists() or common.text_of(PAGE) != page:
        problems.append("docs/reference/errors.md is not what the code says: tools/lint/errors.py --write")
    common.finish(problems, len(codes), "error codes")


if __name__ == "__main__":
    main()
