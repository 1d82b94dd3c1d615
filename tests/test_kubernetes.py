"""The manifests of docs/kubernetes.md, judged by the schemas of Kubernetes itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
PAGE = (Path(__file__).parent.parent / "docs" / "kubernetes.md").read_text()


def _deployment() -> dict[str, Any]:
    """The server of the page, with the container that checks the image before it starts."""
    server, init, *_ = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    server["spec"]["template"]["spec"].update(init)
    return dict(server)


@pytest.mark.soak
@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_the_manifests_are_what_kubernetes_takes(version: str) -> None:
    """Run ``pip install kubernetes-validate`` before; its schemas are 108 MB."""
    judge = pytest.importorskip("kubernetes_validate")
    deployment = _deployment()
    judge.validate(deployment, version, strict=True)
    deployment["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(judge.ValidationError):
        judge.validate(deployment, version, strict=True)


def test_every_mount_of_the_manifests_has_its_volume() -> None:
    pod = _deployment()["spec"]["template"]["spec"]
    mounts = {mount["name"] for one in (*pod["containers"], *pod["initContainers"]) for mount in one["volumeMounts"]}
    assert {volume["name"] for volume in pod["volumes"]} <= mounts
    assert mounts - {volume["name"] for volume in pod["volumes"]} <= {"image"}, "the page says how an image is mounted"
