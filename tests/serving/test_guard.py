"""Who may use a server: this machine, or clients with a key."""

import json
import socket

import pytest

from nanoeuler.errors import UserError
from nanoeuler.serving.guard import is_loopback
from nanoeuler.serving.server import bind, run
from tests.serving.server import ServerProcess

KEYS = ("a first key of some length", "and a second one")


@pytest.fixture(scope="module")
def server(tmp_path_factory, base_folder):
    folder = tmp_path_factory.mktemp("guard")
    lines = "# who may ask\r\n" + "\r\n".join(KEYS) + "\r\n\r\n"
    (folder / "keys").write_bytes(lines.encode("utf-8-sig"))
    options = "--api-key-file", folder / "keys", "--host", "0.0.0.0", "--give-weights"
    with ServerProcess(folder, base_folder, *options) as server:
        yield server


@pytest.fixture(scope="module")
def open_server(tmp_path_factory, base_folder):
    with ServerProcess(tmp_path_factory.mktemp("open"), base_folder) as server:
        yield server


def test_a_key_is_asked_for_by_everything_but_page_and_health(server):
    for path in ("/v1/models", "/metrics", "/v1/nothing"):
        response = server.get(path)
        assert response.status == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert json.loads(response.data)["error"]["code"] == "invalid_api_key"
    for path in ("/", "/page.js", "/page.css", "/health"):
        assert server.get(path).status == 200
    for wrong in ("Bearer nothing", "Bearer ", f"Basic {KEYS[0]}", KEYS[0]):
        assert server.get("/v1/models", Authorization=wrong).status == 401
    for key in KEYS:
        assert server.get("/v1/models", Authorization=f"Bearer {key}").status == 200


def test_a_key_opens_the_weights_where_they_are_given(server):
    key = {"Authorization": f"Bearer {KEYS[0]}"}
    (listed,) = json.loads(server.get("/v1/models", **key).data)["data"]
    address = f"/browser/{listed['id']}/weights"
    assert server.get(address).status == 401
    assert len(server.get(address, **key).data) == listed["nanoeuler"]["browser"] > 0


def test_a_key_is_enough_whatever_the_page(server):
    """As behind a proxy, which asks by another name than the page's."""
    key = f"Bearer {KEYS[0]}"
    for origin in ("https://example.org", "null", "http://["):
        response = server.get("/v1/models", Authorization=key, Origin=origin)
        assert response.status == 200
        assert "access-control-allow-origin" not in response.headers


def test_pages_that_are_named_may_use_a_server_without_a_key(tmp_path, base_folder):
    page = "https://chat.example.org"
    options = "--origin", f"{page}:443/", "--origin", "http://LOCALHOST:9000"
    with ServerProcess(tmp_path, base_folder, *options) as server:
        for origin in (page, "http://localhost:9000"):
            response = server.get("/v1/models", Origin=origin)
            assert response.status == 200
            assert response.headers["access-control-allow-origin"] == origin
        assert server.get("/v1/models", Origin=page, Host="chat.example.org").status == 200
        asks = {"Access-Control-Request-Method": "POST"}
        asks["Access-Control-Request-Headers"] = "authorization,content-type"
        before = server.pool.request(
            "OPTIONS", f"{server.url}/v1/completions", headers={"Origin": page} | asks
        )
        assert before.status == 200
        assert before.headers["access-control-allow-headers"] == "authorization,content-type"
        for other in ("https://example.org", "http://chat.example.org", "http://localhost:9001"):
            refused = server.get("/v1/models", Origin=other)
            assert refused.status == 403
            assert "access-control-allow-origin" not in refused.headers
            assert f"({other})" in json.loads(refused.data)["error"]["message"]


def test_pages_of_other_sites_are_refused(open_server):
    assert open_server.get("/v1/models", Origin="https://example.org").status == 403
    for origin in ("null", "http://[", "http://[::1", f"{open_server.url}.example.org"):
        response = open_server.get("/v1/models", Origin=origin)
        assert (response.status, json.loads(response.data)["error"]["type"]) == (
            403,
            "permission_error",
        )
    assert open_server.get("/v1/models", Origin=open_server.url).status == 200
    assert open_server.get("/v1/models", Host="example.org").status == 403
    assert open_server.get("/v1/models", Host=f"localhost:{open_server.port}").status == 200


def test_the_page_needs_nothing_from_elsewhere(open_server):
    page = open_server.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in ("/", "/page.js", "/page.css"):
        assert b"//" not in open_server.get(path).data.replace(b"// ", b"").replace(b"\n//", b"")


def test_an_answer_is_sent_at_once():
    """Without TCP_NODELAY every reply would wait for the client's delayed acknowledgement."""
    with bind("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_of_two_servers_that_start_together_one_is_told_that_the_port_is_taken():
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", first.getsockname()[1]) as second:
        first.listen()
        with pytest.raises(UserError, match="cannot be bound there"):
            run(None, second, "never said")


def test_names_of_this_machine():
    names = {"localhost": True, "127.0.0.1": True, "127.8.0.1": True, "::1": True}
    others = {"": False, "0.0.0.0": False, "10.0.0.1": False, "::": False, "example.org": False}
    for name, expected in (names | others).items():
        assert is_loopback(name) == expected


def test_what_cannot_be_served_is_refused_in_one_sentence(command, base_folder, tmp_path):
    (tmp_path / "short").write_text("abc\n")
    (tmp_path / "keys").write_text(f"{KEYS[0]}\n")
    (tmp_path / "empty").write_text("\n# no key\n")
    (tmp_path / "accents").write_text("a first key of some length\ncafé au lait, with sugar\n")
    (tmp_path / "large").write_bytes(b"a key of some length\n" * 100_000)
    key = ["--api-key-file"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, said in (
            ([], "no model was given"),
            ([tmp_path / "nothing"], "no such folder"),
            ([tmp_path / "short"], "short: a file; give the model folder"),
            ([base_folder, "--host", "0.0.0.0"], "give --api-key-file"),
            ([base_folder, "--api-key-file", tmp_path / "none"], "cannot be read"),
            ([base_folder, "--api-key-file", tmp_path / "empty"], "has no key"),
            ([base_folder, "--api-key-file", tmp_path / "short"], "shorter than 16"),
            ([base_folder, *key, tmp_path / "accents"], "line 2: a key has characters"),
            ([base_folder, *key, tmp_path / "large"], "larger than 1,048,576 bytes"),
            ([base_folder, "--origin", "chat.example.org"], "give the page's scheme, host"),
            ([base_folder, "--origin", "http://["], "give the page's scheme, host"),
            ([base_folder, "--origin", "*"], "any page could use this server"),
            ([base_folder, "--context", 97], "has a context of 96 tokens; give 2 to that"),
            ([base_folder, "--port", port], "cannot be bound"),
            ([base_folder, "--port", 70000], "must be from 0 to 65535"),
            ([base_folder, "--host", "nothing.invalid", "--api-key-file", "x"], "cannot be read"),
            ([base_folder, "--host", "a..b", *key, tmp_path / "keys"], "is no address of this"),
            ([base_folder, "--rows", 0], "--rows 0: it must be above 0"),
            ([base_folder, "--seconds", "nan"], "--seconds nan: it must be above 0"),
        ):
            status, _, error = command("serve", *arguments)
            assert status == 1
            assert said in error
            assert len(error.strip().splitlines()) == 1
