"""A server behind a real nginx or Caddy, by the lines that docs/serving.md shows."""

import json
import re
import shutil
import socket
import subprocess

import pytest
import urllib3
from checkouts import ROOT

from tests.serving.server import ServerProcess
from tests.waiting import wait_until

KEY = "a key of some length"
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def shown(language):
    """What docs/serving.md shows in a block of this language."""
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def nginx(folder, port, lines):
    paths = "".join(
        f"{name}_temp_path {folder}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"pid {folder}/pid; error_log {folder}/errors; daemon off; events {{}}"
        f"http {{ access_log off; {paths} server {{ listen 127.0.0.1:{port}; {lines} }} }}"
    )
    return ["nginx", "-c", folder / "nginx.conf", "-e", folder / "errors"]


def caddy(folder, port, lines):
    (folder / "Caddyfile").write_text(
        "{\n admin off\n auto_https off\n}\n"
        + lines.replace("chat.example.org", f"http://127.0.0.1:{port}")
    )
    return ["caddy", "run", "--config", folder / "Caddyfile"]


PROXIES = {"nginx": nginx, "caddy": caddy}


class Proxy:
    """A proxy's address, and the process once it has a server to pass requests to."""

    def __init__(self, name, folder):
        self.name, self.folder, self.port = name, folder, free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self, server):
        lines = shown(self.name).replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        command = PROXIES[self.name](self.folder, self.port, lines)
        with open(self.folder / "proxy.log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self.answers, self.process, self.folder / "proxy.log")

    def answers(self):
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", self.port)) == 0

    def get(self, path, **headers):
        return urllib3.request("GET", self.address + path, headers=headers)


@pytest.fixture(params=PROXIES)
def proxy(request, tmp_path):
    if shutil.which(request.param) is None:
        pytest.skip(f"there is no {request.param}")
    proxy = Proxy(request.param, tmp_path)
    yield proxy
    if proxy.process is not None:
        proxy.process.terminate()
        proxy.process.wait(60)


def test_the_page_works_with_a_key(proxy, tmp_path, base_folder):
    (tmp_path / "keys").write_text(KEY)
    with ServerProcess(tmp_path, base_folder, "--api-key-file", tmp_path / "keys") as server:
        proxy.start(server)
        assert b"page.js" in proxy.get("/").data
        asks = {"Origin": proxy.address}  # as a browser does for the page's own requests
        assert proxy.get("/v1/models", **asks).status == 401
        listed = proxy.get("/v1/models", **asks, Authorization=f"Bearer {KEY}")
        assert listed.status == 200
        (model,) = json.loads(listed.data)["data"]
        reply = urllib3.request(
            "POST",
            f"{proxy.address}/v1/completions",
            json={"model": model["id"], "prompt": "The", "max_tokens": 3, "stream": True},
            headers={**asks, "Authorization": f"Bearer {KEY}"},
        )
        assert reply.data.endswith(b"data: [DONE]\n\n")


def test_the_page_works_without_a_key_where_its_origin_is_allowed(proxy, tmp_path, base_folder):
    with ServerProcess(tmp_path, base_folder, "--origin", proxy.address) as server:
        proxy.start(server)
        assert b"page.js" in proxy.get("/").data
        assert proxy.get("/v1/models", Origin=proxy.address).status == 200
        assert proxy.get("/v1/models", Origin="https://example.org").status == 403
