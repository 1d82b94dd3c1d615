"""What people install: the wheel, without the checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import served

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True, text=True)
    (built,) = folder.glob("gemm_cache-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``gemm-cache`` of an environment that has the wheel, and borrows what it depends on from this one."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, text=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    # A bare path: .pth files over there, that of the checkout among them, are not read.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin" / "gemm-cache"


def test_the_wheel_claims_no_name_but_its_own(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"cache_engine"}
    assert [name for name in names if "benchmarks" in name or "traces" in name] == []
    for needed in (
        "_bundled/app/main.py",
        "_bundled/app/icon.svg",
        "_bundled/app/components/static/kernel_table.js",
        "_bundled/app/components/static/tables.css",
        "_bundled/app/.streamlit/config.toml",
        "_bundled/pages/overview.py",
        "_bundled/docs/dashboard.md",
        "_bundled/sample_data/model_gemm_shapes.csv",
        "_bundled/sample_data/model_configs.json",
        "kernels/templates/tensor_core.cu",
        "kernels/templates/primitives.cuh",
        "index/schema.sql",
    ):
        assert f"cache_engine/{needed}" in names


def test_the_installed_command_compiles_and_samples(installed: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        command = [str(installed), "--store", str(tmp_path / "store"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = [str(installed.with_name("python")), "-c", "import cache_engine; print(cache_engine.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert Path(found.strip()).is_relative_to(installed.parent.parent)
    assert "compiled" in run("compile", "64", "48", "80", "--dtype", "fp32", "--arch", "sm_90")
    assert "hit (disk)" in run("compile", "64", "48", "80", "--dtype", "fp32", "--arch", "sm_90")


def test_the_installed_dashboard_shows_every_page(installed: Path, first_visit: Page, compiled_store: Path) -> None:
    """In a browser that has no file of the checkout's dashboard."""
    page = first_visit
    with served([str(installed)], compiled_store) as address:
        page.goto(address)
        for heading in ("Kernels", "Workload", "Compile", "Storage", "Overview"):
            page.get_by_role("link", name=heading, exact=True).first.click(timeout=60_000)
            expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible(timeout=60_000)
            expect(page.get_by_test_id("stAlertContentError")).to_have_count(0)
        expect(page.get_by_test_id("stMetric").filter(has_text="Kernels")).to_contain_text("4", timeout=60_000)
        key = next((compiled_store / "metadata").rglob("*.json")).stem
        page.goto(f"{address}/kernel?key={key}&part=Code")
        expect(page.get_by_role("textbox", name="SASS code")).to_be_visible(timeout=60_000)
