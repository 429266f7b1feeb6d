"""Precisely the file of a path is read, locally as over HTTP, and its good rows beside bad ones."""

import base64
from pathlib import Path
from urllib.parse import quote

import duckdb
import pytest
from record_samples import prepared
from web_pages import make_parquet, run, sources

from nanoeuler.corpus.instructions import prepare
from nanoeuler.corpus.page_filters import Filters
from nanoeuler.corpus.record_files import read_records
from nanoeuler.errors import UserError

ODD = base64.b85decode(
    "P(e~L6#x|=6(ALu(x|cn92Eo=02Kxm1{?qY00IC200aR60001C0RR91Vif=ttN|6Q0TtVqg1QeJ6$BLk6$TXs8~^|S"
    "0ssI21OX%f003`pWgu^EWgu^EWgu^EWgu^EWgu^EWgu^EWgu^EWgu^EWgsK~004A%Zy<DcZy<DcZy<DcZy<DcZy<Dc"
    "Zy<DcZy<DcZy<DcZy*%_6(AKL73<}xtpywv1Qh@k1{DSz00002000040RaF20RI61003ka02TBB74!iWsPoT>4jdH("
    "6#x|m6$Tst00062000C5HUIzsbZByAWgv8Da%E*8bZByAWgv8Da%E*8bZByAWgv8Da%E*8bZByAWgv8Da%E*8bZByA"
    "Wgs>H003rhb#fs8W^Z+JApd4>b#fs8W^Z+JApd4>b#fs8W^Z+JApd4>b#fs8W^Z+JApd4>b#fs86#x|$6&4kY+k^QH"
    "92Ei;02Kxm1{?qY00IC200IF40001G6#x~00TqA&72vhi%Lg140u=xi1{DSz00002000020X6^t0A^`+Wg!1%X?A5G"
    "|7K}+Wg!1%X?A5G|7K}+Wg!1%X?A5G|7K}+Wg!1%X?A5G|7K}+Wg!0*02LM$78Qr$ww3`L6#^9i6$TXs8~^|S0ssI2"
    "0s#R4003qc02N#nTougDu*M7=6#^9i6$TXs8~^|S0ssI20s$ld0047ocp!6Wcp!6Wcp!6Wcp!6Wcp!6Wcp!6Wcp!6W"
    "cp!6Wcpw!789X%r7zT4=Xk~3-"
    "6$Ahk3?%{>0%>F=08AVJ000#XB?1@(bY*ySB>+qu0000M3>jP*EG7UP6$}|A1^^it0%>Fw02TxmQWjDs2uU0j02Kfg"
    "0suS~1Q`YyCIAEg001Tc92E>1B?bT)7zA`>cytv276caJ0T$u`CR#}x6#x|g6#@V}7LWlM1{o#*1ONa47PJBu1SSX;"
    "v;qJbEG7UP6$}{_1{oLvX=D`u7629i762vyNelo0CIB223>g&$85jg~Wq5QI02Tli02Tly07(o002Tli044wy000>*"
    "CIB223>hT`02vqpX=D`u76cYj7E&g>0!bVd02Kfg0suS~1Q`YyCIAEg001Tc92E>1B?bT)7zA`>cytv276cZm0v4(Q"
    "CXNG192Ec+02KlNJQmmi83q|900aO402cfL76c}|0v7xN02wSM02~zz86^e)85ja-WEB7w0v1RXNG7-"
    "iNgNdb6#x|i06Z1~83q|900IC2044w&6$}|A1^^it1axJ1bQJ&=0v5Ib7PbK<fCfn%6#x|g6#@V}7Hk;?872S%0000"
    "M{s9&OCb$I_{s90PEG7UP6$}|A1^^it0%>Fw02TrkNES#Ywg*WZ6#x|g6#@V}76KUt872S%0000c02~zz86^e)85jg"
    "~Wq5QI02TrkjsX^q0Ve(jNgNdb6#x|i06Z2*83q|900IC202bB(76K-=2Nu==04N}EVRCVGWppiLaBwYQa&m8XAa-"
    "SPb7^mGATl;CFfK6}EF1s;8~^|SS^@w7P(e~L"
)
"""Six rows of id and text, in row groups of 2, 0, 2, 1 and 1, written by pyarrow with checksums.

Of the third group, the first row has an id that is not UTF-8 and the second such a text; the fourth
is a single bad row.
"""
BESIDE = {  # a path → one that it matches as a pattern
    "train[1].parquet": "train1.parquet",
    "a*b.parquet": "axb.parquet",
    "q?.parquet": "qz.parquet",
    "**/x.parquet": "y/x.parquet",
    "[[x]].parquet": "[x.parquet",
    "back\\*slash.parquet": "back*slash.parquet",
}
PLAIN = (
    "int_score=5/x.parquet",
    "we'ird\".parquet",
    "~/x.parquet",
    "hf:/x.parquet",
    "{a,b}.parquet",
)


@pytest.mark.parametrize("name", [*BESIDE, *PLAIN])
def test_a_path_is_no_pattern(server, tmp_path, name):
    def write(name: str, text: str) -> Path:
        (server.root / name).parent.mkdir(parents=True, exist_ok=True)
        scores = "case when i % 3 = 0 then 3 else 1 end as int_score"
        select = f"select '{text} ' || i as text, {scores} from range(300) r(i)"
        return make_parquet(tmp_path / "written", select=select).rename(server.root / name)

    file = write(name, "right")
    if beside := BESIDE.get(name):
        write(beside, "wrong")
    found = []
    for number, address in enumerate((file, f"{server.url}/{quote(name)}")):
        folder = tmp_path / f"out[{number}]*"
        folder.mkdir()
        record, pages = run(sources(address), folder, Filters(min_score=3, min_characters=1))
        assert (record["way"], record["kept"]) == (("local", "ranges")[number], 100)
        found.append(pages)
    assert found[0] == found[1]
    assert {text.split()[0] for *_, text in found[0]} == {"right"}
    assert [record["int_score"] for _, record in read_records(file, name)] == [3, 1, 1] * 100


def test_a_folder_of_a_path_adds_no_field_to_records(tmp_path, monkeypatch):
    folder = tmp_path / "weight=0" / "system=x"
    folder.mkdir(parents=True)
    select = "select 'Say ' || i as instruction, i::varchar as output from range(9) r(i)"
    path = make_parquet(folder / "x[1].parquet", select=select)
    manifest = prepared(prepare, path, 0.2)[0]
    assert (manifest["records"], manifest["bad"], manifest["not_read"]) == (9, {}, {})
    monkeypatch.chdir(tmp_path)
    relative = path.relative_to(tmp_path).rename("~x?.parquet")
    assert prepare(str(relative), {}, 0.2, tmp_path / "own")["records"] == 9


def test_row_groups_without_rows_and_bad_rows_are_the_same_locally_and_over_http(server, tmp_path):
    address = server.put("odd.parquet", ODD)
    for number, place in enumerate((server.root / "odd.parquet", address)):
        (tmp_path / str(number)).mkdir()
        record, pages = run(sources(place), tmp_path / str(number))
        assert pages == [("a", "", "one " * 9), ("b", "", "two " * 9), ("f", "", "six " * 9)]
        assert (record["rows"], record["rows_read"], record["row_groups"]) == (6, 6, 5)
        assert {key: value for key, value in record["dropped"].items() if value} == {"not UTF-8": 3}


def test_a_few_bad_rows_among_many_are_found_and_many_are_damage(tmp_path):
    def write(bad: str) -> Path:
        text = f"case when {bad} then '\\xff'::blob else encode('text ' || i) end as text"
        return make_parquet(tmp_path / "a.parquet", select=f"select {text} from range(20000) r(i)")

    path = write("i in (0, 2047, 2048, 9000, 19999)")
    (tmp_path / "out").mkdir()
    record, pages = run(sources(path), tmp_path / "out")
    assert (record["kept"], record["dropped"]["not UTF-8"]) == (19_995, 5)
    left = [i for i in range(20_000) if i not in (0, 2047, 2048, 9000, 19999)]
    assert pages == [(f"a:{i}", "", f"text {i}") for i in left]
    with pytest.raises(UserError, match=r"damaged, or not a parquet file .*not valid UTF8"):
        run(sources(write("i % 5 = 0")), tmp_path / "out")


def test_a_record_that_is_not_utf8_is_one_bad_record(tmp_path):
    path = tmp_path / "odd.parquet"
    path.write_bytes(ODD)
    rows = [record for _, record in read_records(path, "odd")]
    assert [record["id"] for record in rows] == ["a", "b", b"\xff", "d", "e", "f"]
    texts = ["one " * 9, "two " * 9, "three " * 9, b"\xff", b"\xff", "six " * 9]
    assert [record["text"] for record in rows] == texts


def test_a_row_group_beyond_duckdbs_usual_memory_is_read(tmp_path, monkeypatch):
    """Of 101 MB, which DuckDB reads at once where they are not compressed."""
    monkeypatch.setattr("nanoeuler.corpus.parquet_pages.MEMORY", 100_000_000)
    text = "repeat(md5(i::varchar), 3125) as text"
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(
            f"copy (select {text} from range(1010) r(i)) to '{tmp_path}/a.parquet' "
            "(format parquet, compression uncompressed, row_group_size 1000000)"
        )
    (tmp_path / "out").mkdir()
    record, _ = run(
        sources(tmp_path / "a.parquet"),
        tmp_path / "out",
        Filters(max_bytes_per_shard=1_000_000, min_score=0),
    )
    assert (record["row_groups"], record["kept"]) == (1, 10)
