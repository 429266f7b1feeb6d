"""The image that the Dockerfile makes."""

import re
import subprocess
import sys
from pathlib import Path

DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"


def test_a_user_without_an_entry_in_the_password_file_has_a_name():
    """Snakemake asks for it, as for any user that `docker run --user` names."""
    (settings,) = re.findall("^ENV (.*)", DOCKERFILE.read_text(), re.MULTILINE)
    environment = dict(setting.split("=", 1) for setting in settings.split())
    ask = "import getpass, sys; sys.modules['pwd'] = None; print(getpass.getuser())"
    command = [sys.executable, "-c", ask]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == environment["USER"]
