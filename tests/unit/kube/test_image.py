"""The writer of container images: what it writes is found again by digest, and the same twice."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile

import pytest

from tests.oci import oci as packaged


@pytest.fixture(scope="module")
def oci():
    return packaged


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "tool").write_text("#!/bin/sh\n")
    (root / "bin" / "tool").chmod(0o755)
    os.link(root / "bin" / "tool", root / "bin" / "same")
    (root / "bin" / "short").symlink_to("tool")
    return root


def layer_of(oci, tree):
    layer = oci.Layer()
    layer.directory(tree)
    return layer.bytes()


def test_a_tree_is_a_layer_of_roots_files_without_times(oci, tree, tmp_path):
    content = layer_of(oci, tree)
    os.utime(tree / "bin" / "tool", (1, 1))
    assert layer_of(oci, tree) == content
    (tmp_path / "layer.tar").write_bytes(content)
    with tarfile.open(tmp_path / "layer.tar") as tar:
        entries = {entry.name: entry for entry in tar}
        assert set(entries) == {"bin", "bin/same", "bin/short", "bin/tool"}
        assert {(entry.uid, entry.gid, entry.mtime) for entry in entries.values()} == {(0, 0, 0)}
        assert entries["bin/tool"].mode == 0o755
        assert entries["bin/short"].linkname == "tool"
        assert tar.extractfile("bin/same").read() == tar.extractfile("bin/tool").read() == b"#!/bin/sh\n"


def test_every_part_of_an_archive_is_where_its_digest_says(oci, tree, tmp_path):
    shared = layer_of(oci, tree)
    images = [
        oci.Image(name=f"docker.io/library/{name}:1", layers=[shared], command=["/bin/tool"], environment={"A": "b"})
        for name in ("one", "two")
    ]
    archive = tmp_path / "images.tar"
    oci.write(archive, *images)
    content = archive.read_bytes()
    oci.write(archive, *images)
    assert archive.read_bytes() == content

    with tarfile.open(archive) as tar:
        names = tar.getnames()
        assert len(names) == len(set(names)), "a layer that two images have is in it once"

        def blob(descriptor):
            data = tar.extractfile(f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}").read()
            assert len(data) == descriptor["size"]
            assert f"sha256:{hashlib.sha256(data).hexdigest()}" == descriptor["digest"]
            return data

        assert json.load(tar.extractfile("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        index = json.load(tar.extractfile("index.json"))
        for image, described in zip(images, index["manifests"], strict=True):
            assert described["annotations"]["io.containerd.image.name"] == image.name
            manifest = json.loads(blob(described))
            config = json.loads(blob(manifest["config"]))
            assert config["config"]["Env"] == ["A=b"]
            (layer,) = manifest["layers"]
            assert blob(layer) == shared
            assert config["rootfs"]["diff_ids"] == [layer["digest"]], "not compressed"
