"""Prepare an environment with the native AGFS client that the openviking wheel ships; print its interpreter.

Owns ``.venv-agfs``, apart from the project's own environment, whose packages it sees. Without its dependencies the
wheel is enough: the client imports none of them. Ends with 1 and one line if it cannot be installed here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv-agfs"
PACKAGE = "openviking==0.5.2"
INSTALL_SECONDS = 300
CHECK = """
from openviking.pyagfs import get_binding_client
get_binding_client()[0](None, config={"service_name": "t", "agfs": {}})
"""


def python_of(home: Path) -> Path:
    return home / ("Scripts" if os.name == "nt" else "bin") / "python"


def build(home: Path) -> None:
    """Make an environment. Raises CalledProcessError, TimeoutExpired."""
    run(sys.executable, "-m", "venv", "--without-pip", str(home))
    python = python_of(home)
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "-q")
    run(*pip, "install", "--no-deps", "--only-binary", ":all:", PACKAGE)
    site = run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(str(python), "-c", CHECK)


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=INSTALL_SECONDS)
    return done.stdout


def main() -> int:
    if not python_of(HOME).exists():
        building = HOME.with_name(f"{HOME.name}.{os.getpid()}")
        try:
            build(building)
            building.rename(HOME)
        except OSError as error:
            if not python_of(HOME).exists():  # somebody else was quicker otherwise
                print(f"{HOME.name} cannot be made: {error}")
                return 1
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            said = error.stderr or ""
            text = said if isinstance(said, str) else said.decode(errors="replace")
            reason = (text.strip().splitlines() or [str(error)])[-1]
            print(f"{PACKAGE} cannot be installed here: {reason}")
            return 1
        finally:
            shutil.rmtree(building, ignore_errors=True)
    print(python_of(HOME))
    return 0


if __name__ == "__main__":
    sys.exit(main())
