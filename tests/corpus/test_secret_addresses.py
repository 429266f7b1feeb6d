"""Passwords, tokens and signatures in addresses: sent where they belong, told and kept nowhere."""

import base64
import json

import pytest

from nanoeuler.cli import main
from nanoeuler.corpus.addresses import authorization, resolve, shown, without_login, without_secrets
from nanoeuler.corpus.download import SourceFile, download
from nanoeuler.corpus.gutenberg_mirror import fetch_book
from nanoeuler.corpus.remote_file import Patience
from nanoeuler.errors import UserError
from nanoeuler.workflow.start import write_pipeline
from tests.servers import Fault

QUICK = Patience(attempts=2, first_pause=0.01, silence=5.0)
SIGNATURE = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
QUERY = f"?X-Amz-Signature={SIGNATURE[:9]}&sig={SIGNATURE[9:18]}&x={SIGNATURE}&part=7"
HIDDEN = ("s3cret", "ada", SIGNATURE[:9], SIGNATURE[9:18])


def login(address: str) -> str:
    return address.replace("://", "://ada:s3cret@")


def hides(text: str) -> bool:
    return bool(text) and not any(secret in text for secret in HIDDEN)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("https://ada:s3cret@example.org/a", "https://example.org/a"),
        ("https://s3cret@example.org:8080/a?part=7", "https://example.org:8080/a?part=7"),
        ("https://ada:s3/cret@example.org/a", "https://example.org/a"),
        ("https://ada:s3@cret@example.org/a", "https://example.org/a"),
        ("https://example.org/@user/a", "https://example.org/@user/a"),
        ("https://example.org:80/a@b", "https://example.org:80/a@b"),
        ("https://h/a?token=s3cret&id=12#top", "https://h/a?token=…&id=12#top"),
        ("https://h/a?API_KEY=s3cret;x=y", "https://h/a?API_KEY=…;x=y"),
        (f"https://h/a?x={SIGNATURE}", "https://h/a?x=…"),
        ("to http://ada:s3cret@h/ and http://ada@k/", "to http://h/ and http://k/"),
    ],
)
def test_what_is_told_of_an_address_has_no_secrets(address, told):
    assert shown(address) == told


def test_a_password_goes_to_its_host_alone():
    address = "https://ada:s3%2Fcret@example.org:81/a?b"
    assert without_login(address) == "https://example.org:81/a?b"
    said = authorization(address)["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(said) == b"ada:s3/cret"
    assert authorization("https://example.org/a") == {}


def test_a_download_with_a_password_works_and_keeps_no_secret(server, tmp_path, capsys):
    records = [{"instruction": f"Say {n}.", "output": f"{n}"} for n in range(9)]
    server.put("own.json", json.dumps(records).encode())
    server.fail("/own.json", Fault(status=503), Fault(truncate=True, after=100))
    address = login(f"{server.url}/own.json") + QUERY
    config = {
        "sources": {"instructions": {"own": {"url": address}}},
        "sft": {"validation_share": 0.2},
    }
    command = ["instructions", "--name", "own", "--output", str(tmp_path / "own"), "--config"]
    assert main([*command, json.dumps(config)]) == 0
    sent = {seen.headers.get("Authorization") for seen in server.seen}
    assert sent == {"Basic " + base64.b64encode(b"ada:s3cret").decode()}
    assert hides(capsys.readouterr().err)
    kept = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) >= 4
    assert all(map(hides, kept))
    assert json.loads((tmp_path / "own/manifest.json").read_text())["url"].endswith("part=7")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=404),
        Fault(status=403),
        Fault(status=500),
        Fault(truncate=True),
        Fault(status=302, headers={"Location": "ftp://ada:s3cret@h/?sig=" + SIGNATURE[:9]}),
        Fault(status=302, headers={"Location": "http://ada:s3cret@h:99999/?sig=" + SIGNATURE[:9]}),
    ],
)
def test_no_error_tells_a_secret(server, tmp_path, fault):
    server.put("file", b"x" * 1_000)
    server.fail("/file", *[fault] * 9)
    address = login(f"{server.url}/file") + QUERY
    with pytest.raises(UserError) as caught:
        download(SourceFile(address), tmp_path / "file", patience=QUICK)
    assert hides(str(caught.value))
    kept = [path.name + path.read_text() for path in tmp_path.iterdir()]
    assert not kept or all(map(hides, kept))


def test_no_refusal_of_an_address_tells_a_secret(server, tmp_path):
    for address in ("http://ada:s3cret@/x", "ftp://ada:s3cret@h/x", "file://ada:s3cret@h"):
        with pytest.raises(UserError) as caught:
            resolve(address)
        assert hides(str(caught.value))
    with pytest.raises(UserError) as caught:
        fetch_book(login(server.url), 12, tmp_path / "book.txt", 0, QUICK)
    assert hides(str(caught.value))


def test_the_configuration_that_a_run_keeps_has_no_secrets(tmp_path):
    class Job:
        class rule:
            name = "write_report"

    config = {"sources": {"web": {"shards": [{"url": login("https://h/a") + QUERY}]}}, "run": "a"}
    write_pipeline(tmp_path / "pipeline.json", config, {Job(): []})
    kept = json.loads((tmp_path / "pipeline.json").read_text())["config"]
    assert kept == without_secrets(config)
    assert kept["run"] == "a"
    assert hides((tmp_path / "pipeline.json").read_text())
