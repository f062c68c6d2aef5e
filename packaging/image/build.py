#!/usr/bin/env python3
"""Builds the images of the charts, without a Docker daemon and without root: `make image` and `make serve-image`.

    .venv/bin/python packaging/image/build.py [ARCHIVE [IMAGE]]      default: build/image/gemlet.tar gemlet

Two layers: Python of Debian 12 with the libraries it needs, and gemlet with the image's extras. The native parts are
built here and must run there, so this machine needs Python 3.11, a C library no newer than Debian 12's, and apt-get.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from py_compile import PycInvalidationMode

import oci

SOURCE = Path(__file__).resolve().parents[2]
PYTHON, LIBC = (3, 11), (2, 36)
SUITE = "bookworm"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
PACKAGES = (
    "base-files", "busybox-static", "ca-certificates",
    "libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libbz2-1.0", "liblzma5", "libexpat1", "libffi8", "libssl3",
    "libuuid1", "libsqlite3-0", "libncursesw6", "libtinfo6", "libreadline8", "media-types", "tzdata",
    "libpython3.11-minimal", "libpython3.11-stdlib", "python3.11-minimal", "python3.11",
)  # fmt: skip
APPLETS = ("sh", "ls", "cat", "ps", "sleep", "env", "kill", "mkdir", "rm", "id", "stat", "vi", "top", "df", "ip")
PASSWORDS = "root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532:nonroot:/tmp:/bin/sh\n"
# As pip writes it: processes that multiprocessing spawns import it by another name, and must not run the command.
LAUNCHER = """\
#!/usr/bin/python3.11
from gemlet.__main__ import main

if __name__ == "__main__":
    main()
"""
EXTRAS = {"gemlet": "kube", "gemlet-serve": "serve,otel,onnx"}  # by image; packaging/docker has one with PyTorch
DIST_PACKAGES = "usr/local/lib/python3.11/dist-packages"


def main() -> None:
    archive = Path(sys.argv[1] if len(sys.argv) > 1 else SOURCE / "build/image/gemlet.tar").absolute()
    image_name = sys.argv[2] if len(sys.argv) > 2 else "gemlet"
    if image_name not in EXTRAS:
        sys.exit(f"error: {image_name!r} is not an image: expected {' or '.join(EXTRAS)}")
    _check_machine()
    work = SOURCE / "build" / "image"
    work.mkdir(parents=True, exist_ok=True)
    version = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["version"]
    image = oci.Image(
        name=f"docker.io/library/{image_name}:{version}",
        layers=[_layer(_base(work)), _layer(_gemlet(work / image_name, EXTRAS[image_name]))],
        command=["gemlet", "--help"],
        environment={
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        },
        labels={"org.opencontainers.image.title": image_name, "org.opencontainers.image.version": version},
    )
    archive.parent.mkdir(parents=True, exist_ok=True)
    oci.write(archive, image)
    print(f"{archive}: {image_name}:{version}, {archive.stat().st_size / 1e6:.0f} MB")


def _check_machine() -> None:
    hint = "hint: build it on Debian 12, or in a container of it"
    if sys.version_info[:2] != PYTHON:
        sys.exit(f"error: the image has Python 3.11, and this is {platform.python_version()}\n\n{hint}")
    name, libc = platform.libc_ver()
    if name != "glibc" or tuple(map(int, libc.split("."))) > LIBC:
        sys.exit(f"error: what is built with {name} {libc} does not run with the image's glibc 2.36\n\n{hint}")
    if not shutil.which("apt-get") or not Path(KEYRING).exists():
        sys.exit(f"error: apt-get or {KEYRING} is missing: the image is made of Debian's packages\n\n{hint}")


def _base(work: Path) -> Path:
    """The lower layer's directory: Debian's packages, unpacked. Fetched once, and again when the list changes."""
    digest = hashlib.sha256("\n".join((SUITE, *PACKAGES, *APPLETS, PASSWORDS)).encode()).hexdigest()[:16]
    root = work / f"base-{digest}"
    if root.exists():
        return root
    fresh, packages = work / "base.new", work / "packages"
    for directory in (fresh, packages):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
    _fetch(work / "apt", packages)
    for package in sorted(packages.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, fresh], check=True)
    for name in ("doc", "man", "info", "lintian", "bash-completion", "bug"):
        shutil.rmtree(fresh / "usr/share" / name, ignore_errors=True)
    for applet in APPLETS:
        (fresh / "bin" / applet).symlink_to("busybox")
    (fresh / "usr/bin/python3").symlink_to("python3.11")
    (fresh / "etc/passwd").write_text(PASSWORDS)
    (fresh / "etc/group").write_text("root:x:0:\nnonroot:x:65532:\n")
    # Debian's packages make these two when they are installed, and these are only unpacked.
    certificates = sorted((fresh / "usr/share/ca-certificates").rglob("*.crt"))
    (fresh / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
    (fresh / "etc/ssl/certs/ca-certificates.crt").write_bytes(b"".join(each.read_bytes() for each in certificates))
    (fresh / "tmp").chmod(0o1777)
    _compile(fresh, "usr/lib/python3.11")
    fresh.rename(root)
    return root


def _fetch(apt: Path, into: Path) -> None:
    """Downloads PACKAGES by an apt of its own: this machine's sources and packages stay as they are."""
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    mirror = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org")
    (apt / "sources.list").write_text(
        f"deb [signed-by={KEYRING}] {mirror}/debian {SUITE} main\n"
        f"deb [signed-by={KEYRING}] {mirror}/debian-security {SUITE}-security main\n"
    )
    (apt / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{apt}/sources.list";\nDir::Etc::sourceparts "-";\n'
        f'Dir::State::lists "{apt}/lists";\nDir::Cache "{apt}/cache";\nAPT::Sandbox::User "";\n'
    )
    environment = os.environ | {"APT_CONFIG": str(apt / "apt.conf")}
    subprocess.run(["apt-get", "-qq", "update"], check=True, env=environment)
    subprocess.run(["apt-get", "-qq", "download", *PACKAGES], check=True, env=environment, cwd=into)


def _gemlet(work: Path, extras: str) -> Path:
    """The upper layer's directory: gemlet of this checkout, and the packages it needs."""
    wheels, root = work / "wheels", work / "root"
    for directory in (wheels, root):
        shutil.rmtree(directory, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    tools = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # cmake and ninja of .venv
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, SOURCE],
        check=True, env=os.environ | tools,
    )  # fmt: skip
    (wheel,) = wheels.glob("gemlet-*.whl")
    target = root / DIST_PACKAGES
    subprocess.run([*pip, "install", "--no-compile", "--target", target, f"{wheel}[{extras}]"], check=True)
    shutil.rmtree(target / "bin", ignore_errors=True)  # they name this machine's Python
    launcher = root / "usr/local/bin/gemlet"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    _compile(root, DIST_PACKAGES)
    return root


def _compile(root: Path, below: str) -> None:
    """Byte code beside the sources: the image is read-only, and each start would compile them all again.

    Valid by hash, unchecked: the files' times are not kept.
    """
    mode = PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(root / below, quiet=2, stripdir=str(root), prependdir="/", invalidation_mode=mode)


def _layer(directory: Path) -> bytes:
    layer = oci.Layer()
    layer.directory(directory)
    return layer.bytes()


if __name__ == "__main__":
    main()
