"""The list of kernels: its links, ticks, headers and columns, by mouse and by keyboard."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Shown
from tests.browser.test_walk import WAIT_MS, at_rest
from tests.helpers import make_store

pytestmark = pytest.mark.browser


def _column(page: Page, name: str) -> list[str]:
    """The texts of a column, from the top."""
    names = [text.strip(" ▲▼") for text in page.get_by_role("columnheader").all_inner_texts()]
    return page.locator(f"tbody td:nth-child({names.index(name) + 1})").all_inner_texts()


def _first_link(page: Page) -> Locator:
    return page.locator("tbody a").first


def _open(page: Page, address: str) -> None:
    page.goto(address)
    expect(_first_link(page)).to_be_visible(timeout=WAIT_MS)
    at_rest(page)


def test_the_keyboard_alone_opens_a_kernel(page: Page, shown: Shown) -> None:
    """From the search field: tab to the first link, down one row, Enter."""
    _open(page, f"{shown.address}/kernels?sort=target&asc=true")
    page.get_by_role("searchbox", name="Search").focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        if _first_link(page).evaluate("link => link === document.activeElement"):
            break
    page.keyboard.press("ArrowDown")
    second = page.locator("tbody a").nth(1)
    expect(second).to_be_focused()
    key = second.inner_text()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/kernel\?key={key}[0-9a-f]{{52}}"), timeout=WAIT_MS)


def test_a_kernel_opens_in_a_new_tab_and_its_link_can_be_copied(page: Page, shown: Shown) -> None:
    _open(page, f"{shown.address}/kernels?q=fp16")
    (record,) = (record for record in make_store(shown.store).records() if record.problem.dtype == "fp16")
    assert _first_link(page).evaluate("link => link.href") == f"{shown.address}/kernel?key={record.key}"
    with page.context.expect_page() as opened:
        _first_link(page).click(button="middle")
    expect(opened.value.get_by_test_id("stCode").first).to_contain_text(record.name, timeout=WAIT_MS)
    expect(page).to_have_url(re.compile("/kernels"))


def test_a_kernel_is_named_in_its_tab_and_going_back_leads_to_the_same_list_with_no_key_in_its_address(
    page: Page, shown: Shown
) -> None:
    """A colleague who gets that address sees the list, not the kernel."""
    _open(page, f"{shown.address}/kernels?q=sm_90&sort=size")
    expect(page).to_have_title("Kernels · gemm-cache")
    page.get_by_role("button", name="Cubin size").click()
    expect(page).to_have_url(re.compile("asc=true"), timeout=WAIT_MS)
    at_rest(page)
    _first_link(page).click()
    expect(page).to_have_url(re.compile(r"/kernel\?key="), timeout=WAIT_MS)
    expect(page.get_by_test_id("stCode").first).to_be_visible(timeout=WAIT_MS)
    at_rest(page)
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"^[\d×]+ \S+ sm_90 · tensor_core"))
    expect(page).to_have_title(re.compile(r"^[\d×]+ \S+ sm_90 · tensor_core · gemm-cache$"))
    levels = page.locator("h1, h2, h3, h4").evaluate_all("all => all.map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    page.go_back()
    expect(page.locator("tbody tr")).to_have_count(2, timeout=WAIT_MS)
    expect(page.get_by_role("columnheader", name="Cubin size")).to_have_attribute("aria-sort", "ascending")
    expect(page.get_by_role("searchbox", name="Search")).to_have_value("sm_90")
    expect(page).not_to_have_url(re.compile("key="), timeout=WAIT_MS)
    with page.context.expect_page() as opened:
        page.context.new_page().goto(page.url)
    expect(opened.value.locator("tbody tr")).to_have_count(2, timeout=WAIT_MS)


def test_ticks_move_nothing_and_none_is_lost(page: Page, shown: Shown) -> None:
    """The second tick follows at once, as the page still answers the first."""
    _open(page, f"{shown.address}/kernels")
    boxes = page.locator("tbody input[type=checkbox]")
    before = boxes.nth(1).bounding_box()
    boxes.nth(0).check()
    boxes.nth(1).check()
    expect(page.get_by_text("2 kernels selected")).to_be_visible(timeout=WAIT_MS)
    at_rest(page)
    assert boxes.nth(1).bounding_box() == before
    assert [box.is_checked() for box in boxes.all()] == [True, True, False, False]
    page.get_by_role("button", name="Clear selection").click()
    expect(page.get_by_text("0 kernels selected")).to_be_visible(timeout=WAIT_MS)
    expect(page.locator("tbody input:checked")).to_have_count(0, timeout=WAIT_MS)


def test_a_header_sorts_all_kernels_by_the_address(page: Page, shown: Shown) -> None:
    """The default order shows the column that it sorts by, also on the screen of a small laptop."""
    page.set_viewport_size({"width": 1280, "height": 800})
    _open(page, f"{shown.address}/kernels")
    expect(page.get_by_role("columnheader", name="Last used")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_role("columnheader", name="Last used")).to_be_in_viewport(ratio=1)
    sizes = {record.key[:12]: record.size_bytes for record in make_store(shown.store).records()}
    page.get_by_role("button", name="Cubin size").click()
    expect(page).to_have_url(re.compile("sort=size&asc=false"), timeout=WAIT_MS)
    expect(page.get_by_role("columnheader", name="Cubin size")).to_have_attribute("aria-sort", "descending")
    assert _column(page, "Key") == sorted(sizes, key=sizes.__getitem__, reverse=True)
    page.get_by_role("button", name="Cubin size").click()
    expect(page.get_by_role("columnheader", name="Cubin size")).to_have_attribute(
        "aria-sort", "ascending", timeout=WAIT_MS
    )
    assert _column(page, "Key") == sorted(sizes, key=sizes.__getitem__)


def test_chosen_columns_stay_chosen(page: Page, shown: Shown) -> None:
    _open(page, f"{shown.address}/kernels")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("checkbox", name="Layout").uncheck()
    page.get_by_role("checkbox", name="Name").check()
    for _ in range(20):
        if page.get_by_role("button", name="Move Name earlier").is_disabled():
            break
        page.get_by_role("button", name="Move Name earlier").click()
    page.reload()
    expect(_first_link(page)).to_contain_text("gemm_", timeout=WAIT_MS)
    headers = page.get_by_role("columnheader").all_inner_texts()
    assert headers[1:3] == ["Name", "Key"]
    assert "Layout" not in headers
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("button", name="Usual columns").click()
    assert page.get_by_role("columnheader").all_inner_texts()[1:3] == ["Key", "Target"]


def test_a_search_by_gpu_says_what_it_means_and_one_without_a_match_what_to_change(page: Page, shown: Shown) -> None:
    _open(page, f"{shown.address}/kernels?text=h100")
    expect(page.get_by_text("h100: sm_90, sm_90a")).to_be_visible(timeout=WAIT_MS)
    assert set(_column(page, "Target")) == {"sm_90"}
    page.get_by_role("searchbox", name="Search").fill("hoper fp16")
    expect(page.get_by_text("No kernel matches hoper. Did you mean hopper?")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("searchbox", name="Search").fill("n=512 hopper")
    expect(page.locator("tbody tr")).to_have_count(1, timeout=WAIT_MS)


def test_three_ticked_kernels_are_compared_with_a_baseline(page: Page, shown: Shown) -> None:
    _open(page, f"{shown.address}/kernels?sort=target&asc=true")
    keys = [page.locator("tbody a").nth(number).inner_text() for number in range(3)]
    for number in range(3):
        page.locator("tbody input").nth(number).check()
        expect(page.get_by_text(re.compile(f"^{number + 1} kernels? selected$"))).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("link", name="Compare", exact=True).click()
    expect(page).to_have_url(re.compile(rf"compare\?a={keys[0]}.*&b={keys[1]}.*&more={keys[2]}"), timeout=WAIT_MS)
    table = page.get_by_role("table", name="Resources")
    heads = table.get_by_role("columnheader")
    expect(heads).to_have_text(["Property", *(f"{at}: {key}" for at, key in enumerate(keys, 1))], timeout=3 * WAIT_MS)
    expect(table.locator("td.marked").first).to_be_visible()
    page.get_by_role("table", name="Kernels").get_by_role("link", name="use").last.click()
    expect(page).to_have_url(re.compile(rf"compare\?a={keys[2]}.*&b={keys[0]}.*&more={keys[1]}"), timeout=WAIT_MS)
    order = [keys[2], keys[0], keys[1]]
    expect(heads).to_have_text(["Property", *(f"{at}: {key}" for at, key in enumerate(order, 1))], timeout=WAIT_MS)


def test_a_view_brings_back_the_search_and_the_columns(page: Page, dashboard: str, compiled_store: Path) -> None:
    _open(page, f"{dashboard}/kernels?q=fp16")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("checkbox", name="Batch").uncheck()
    page.get_by_role("button", name="Views").click()
    page.get_by_label("Name").last.fill("fp16, *few* columns")
    page.get_by_role("button", name="Save this view").click()
    expect(page.get_by_role("button", name="fp16, *few* columns")).to_be_visible(timeout=WAIT_MS)
    page.evaluate("localStorage.clear()")
    _open(page, f"{dashboard}/kernels")
    batch = page.get_by_role("columnheader", name="Batch")
    expect(batch).to_be_visible()
    page.get_by_role("button", name="Views").click()
    page.get_by_role("button", name="fp16, *few* columns").click()
    expect(batch).to_have_count(0, timeout=WAIT_MS)
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"[?&]q=fp16"), timeout=WAIT_MS)


def test_machine_code_stands_side_by_side_and_the_keyboard_scrolls_it(page: Page, shown: Shown) -> None:
    of = {record.arch: record.key for record in make_store(shown.store).records() if record.problem.dtype == "bf16"}
    page.goto(f"{shown.address}/compare?a={of['sm_80']}&b={of['sm_90']}&sass=true")
    code = page.get_by_role("region", name="Machine code side by side")
    expect(code).to_be_visible(timeout=3 * WAIT_MS)
    expect(code.locator("tr.part").filter(has_text=re.compile(r"[\d,]+ of [\d,]+ lines differ")).first).to_be_attached()
    expect(page.get_by_text(re.compile(r"^\d+% of the first kernel.s [\d,]+ lines differ"))).to_be_visible()
    code.focus()
    page.keyboard.press("End")
    page.wait_for_function("() => document.activeElement.scrollTop > 0", polling=50)
