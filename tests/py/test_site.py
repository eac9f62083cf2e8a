# SPDX-License-Identifier: Apache-2.0
"""The site of the documents (make docs) builds without a warning, and works in a browser."""

from __future__ import annotations

import functools
import http.server
import os
import pathlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator

import needs
import pytest
from waiting import HANG_SECONDS

pytestmark = pytest.mark.server

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(name="site", scope="module")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, built anew and served."""
    needs.need("server")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "tools/docs/mkdocs.yml", "-d", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_site_opens_in_a_browser_and_its_search_finds_a_page(site: str) -> None:
    from playwright.sync_api import ConsoleMessage, sync_playwright

    chromium = shutil.which("chromium")
    assert chromium, "the browser is missing: tools/install-deps.sh browser"
    wrong: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            wrong.append(message.text)

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=HANG_SECONDS * 1000)
        page = browser.new_page()
        page.set_default_timeout(HANG_SECONDS * 1000)
        page.on("console", note)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: request.url.startswith(site) or wrong.append(f"asks {request.url}"))
        page.goto(f"{site}/index.html")
        page.click("input.md-search__input")
        # The index is loaded then; and the page listens to keys, not to changes of the field.
        page.get_by_text("Type to start searching").wait_for()
        page.locator("input.md-search__input").press_sequentially("power failure")
        page.click("a.md-search-result__link[href*='crash-safety.html']")
        page.wait_for_url("**/crash-safety.html*")
        assert "Crash safety" in page.title()
        for name, words in (
            ("python-interface", "pawl.CheckpointManager"),
            ("c-interface", "pawl_open"),
            ("commands", "pawl verify"),
        ):
            page.goto(f"{site}/reference/{name}.html")
            assert words in page.inner_text("article"), name
        page.goto(f"{site}/explanation/benchmarks.html")
        assert page.evaluate("[...document.querySelectorAll('article img')].every(i => i.complete && i.naturalWidth)")
        browser.close()
    assert not wrong, wrong
