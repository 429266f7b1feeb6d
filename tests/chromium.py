"""A real headless Chromium, for tests of pages.

Playwright is in no lock, since no package brings a browser: install it and a Chromium to run these.
"""

import shutil

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
sync_api.expect.set_options(timeout=60_000)
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as playwright:
        options = {"executable_path": CHROMIUM, "args": ["--no-sandbox"]}
        with playwright.chromium.launch(**options) as browser:
            yield browser
