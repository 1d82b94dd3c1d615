"""Sources: complete, and a pure function of what the key hashes."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cache_engine.kernels import source
from cache_engine.kernels.family import Family
from cache_engine.kernels.select import FAMILIES, choose
from cache_engine.kernels.source import RENDER_VERSION, render, template_digest
from cache_engine.model.gemm import DType, GemmProblem

TINY = {"tiny.cu": "kernel(N)\n", "tiny.py": "kernel()\n"}


def test_rendering_has_not_changed_without_its_version() -> None:
    """RENDER_VERSION stands in every key for what render() does; this pins the two together."""
    assert RENDER_VERSION == "1"
    assert render("tiny.cu", {"N": 8, "TYPE": "float"}, TINY) == "#define N 8\n#define TYPE float\n\nkernel(N)\n"
    python = render("tiny.py", {"N": 8, "TYPE": "bf16"}, TINY)
    assert python == "CONSTANTS = {\n    'N': 8,\n    'TYPE': 'bf16',\n}\n\nkernel()\n"


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_source_includes_nothing(family: Family) -> None:
    """What is compiled is what is hashed: no file is read by the compiler but Triton's own."""
    problem = GemmProblem(64, 64, 64, dtype=next(iter(family.flops_per_clock)), arch="sm_90")
    text = render(family.template, family.constants(problem, family.configs(problem)[0]))
    if family.template.endswith(".cu"):
        assert "#include" not in text
        assert re.search(r"KERNEL(_ALONE)?\(THREADS\)", text)
    else:
        imported = re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
        assert set(imported) == {"collections", "typing", "triton"}
        compile(text, "source", "exec")


def test_a_template_may_not_include_a_system_header(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Its content would reach the compiler without reaching the key."""
    monkeypatch.setattr(source, "_TEMPLATES", tmp_path)
    (tmp_path / "bad.cu").write_text("#include <mma.h>\n")  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"bad\.cu includes <mma\.h>"):
        render("bad.cu", {})


@pytest.mark.parametrize(
    ("template", "edited"),
    [("tensor_core.cu", "tensor_core.cu"), ("tensor_core.cu", "primitives.cuh"), ("triton_matmul.py",) * 2],
)
def test_a_template_edited_under_a_running_process_changes_neither_its_digests_nor_its_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, template: str, edited: str
) -> None:
    """Were they read at two times, a source of the new text would be published under the key of the old."""
    monkeypatch.setattr(source, "_TEMPLATES", shutil.copytree(source._TEMPLATES, tmp_path / "templates"))
    source._text.cache_clear()
    try:
        digest, text = template_digest(template), render(template, {"N": 8})
        with (tmp_path / "templates" / edited).open("a") as file:
            file.write("# error\n")
        assert (template_digest(template), render(template, {"N": 8})) == (digest, text)
        source._text.cache_clear()  # as in another process
        assert template_digest(template) != digest
        assert render(template, {"N": 8}) != text
    finally:
        source._text.cache_clear()


def test_a_result_of_fp8_has_an_epilogue_of_its_own_whose_text_is_in_the_key() -> None:
    problem = GemmProblem(64, 64, 64, dtype="fp8_e4m3", arch="sm_90")
    family, config = choose(problem)
    usual = family.constants(problem, config)
    of_fp8 = family.constants(replace(problem, out_dtype=DType.FP8_E4M3), config)
    assert set(of_fp8) - set(usual) == {"FP8_EPILOGUE"}
    assert of_fp8["FP8_EPILOGUE"] == template_digest("fp8_epilogue.cuh")
    assert "two_codes" not in render(family.template, usual)
    text = render(family.template, of_fp8)
    assert "two_codes" in text
    assert text.count("struct Epilogue {") == 1


@pytest.mark.parametrize("template", [one.template for one in FAMILIES.values() if one.template.endswith(".cu")])
def test_every_template_has_the_epilogue_that_results_of_fp8_replace(template: str) -> None:
    assert render(template, {}).count(source._text("epilogue.cuh")) == 1


def test_families_have_templates_of_their_own() -> None:
    digests = {template_digest(family.template) for family in FAMILIES.values()}
    assert len(digests) == len(FAMILIES)
