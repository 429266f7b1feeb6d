"""`nanoeuler lesson`, where no browser is needed."""


def test_the_command_writes_the_page(command, tmp_path):
    status, _, said = command("lesson", "--output", tmp_path / "made" / "lesson.html")
    assert status == 0
    assert "lesson.html: open it in a browser" in said
    assert "Train a model in your browser" in (tmp_path / "made" / "lesson.html").read_text()
