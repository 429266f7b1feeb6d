"""A real headless Chromium, for tests of pages.

Playwright is in no lock, since no package brings a browser: install it and a Chromium to run these.
"""

import contextlib
import functools
import shutil

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
sync_api.expect.set_options(timeout=60_000)
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


WEBGPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")


@pytest.fixture(scope="module")
def browsers():
    """browsers(*flags) → a browser, the same for the same flags."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as playwright:

        @functools.cache
        def launch(*flags):
            options = {"executable_path": CHROMIUM, "args": ["--no-sandbox", *flags]}
            launched.append(playwright.chromium.launch(**options))
            return launched[-1]

        launched = []
        yield launch
        for browser in launched:
            browser.close()


@pytest.fixture(scope="module")
def browser(browsers):
    return browsers()


@pytest.fixture(scope="module")
def gpu_browser(browsers):
    """One that has WebGPU, computed by SwiftShader on the processor."""
    return browsers(*WEBGPU)


@contextlib.contextmanager
def watched(browser, address, **form):
    """A page, none of whose scripts may fail."""
    problems = []
    with browser.new_page(**form) as page:
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        yield page
        assert not problems


@pytest.fixture
def open_page():
    """open_page(browser, address) → a watched page, until the test ends."""
    with contextlib.ExitStack() as pages:
        yield lambda *where: pages.enter_context(watched(*where))
