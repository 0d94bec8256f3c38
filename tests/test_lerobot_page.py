"""`docs/lerobot.md`, run as written: its commands and examples, over a dataset of the id that it names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stories.conftest import Shell
from tests.toys.lerobot import CAMERA, write_lerobot
from tests.toys.servers import HubServer

PAGE = (Path(__file__).parents[1] / "docs" / "lerobot.md").read_text(encoding="utf-8")
SHOWN = """
assert batch["observation", "image"].shape == (64, 2, 32, 48, 3)
assert batch["observation", "image_is_pad"].shape == (64, 2)
assert batch["action_is_pad"].shape == (64, 8)
assert len(ds.valid_rows) == 13
"""
SCALED = """
assert action.shape == (64, 8, 2)
assert parts["train"].batch_size == 64
assert policy.weight.grad.isfinite().all()
"""


@pytest.mark.slow
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_lerobot(tmp_path / "pusht", videos=(), images=False)
    info = folder / "meta/info.json"
    about = json.loads(info.read_text())
    about["features"]["observation.image"] = about["features"].pop(CAMERA)
    info.write_text(json.dumps(about))
    for camera in [path for path in folder.rglob(CAMERA) if path.is_dir()]:
        camera.rename(camera.with_name("observation.image"))
    write_lerobot(tmp_path / "recordings/pick", "v3.0", videos=())
    install, download, convert = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()
    assert install == "pip install 'offline-data[lerobot]'"
    windows, scale = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with HubServer({"lerobot/pusht": folder}) as hub:
        shell = Shell(tmp_path, {"HF_ENDPOINT": hub.url})
        monkeypatch.chdir(tmp_path)
        for line in (download, convert.replace("~", str(tmp_path))):
            assert shell.run(*line.split()[1:]).stdout
        code = f"{windows}\n{SHOWN}\n{scale}\n{SCALED}"
        line = [sys.executable, "-W", "error", "-c", code]
        done = subprocess.run(
            line, cwd=tmp_path, env=shell.environ, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert "local:pick@" in shell.run("list", "-q").stdout
