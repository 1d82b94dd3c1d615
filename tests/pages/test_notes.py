"""Notes and tags on the page of a kernel, and saved views of the list of kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app import guard
from cache_engine.cache.cache import open_cache
from cache_engine.model.key import CacheKey
from cache_engine.store.notes import View
from tests.helpers import make_store
from tests.pages.opening import Open, components, listed, sound

HOSTILE = "<b>x</b> **y** [z](javascript:alert(1)) $x^2$ :red[a]"


def _keys(store: Path) -> list[str]:
    return sorted(make_store(store).keys())


def _press(app: AppTest, label: str) -> AppTest:
    next(button for button in app.button if button.label == label).click()
    return app.run()


def test_a_note_is_written_shown_as_text_and_found(open_page: Open, compiled_store: Path) -> None:
    key = _keys(compiled_store)[0]
    app = sound(open_page(compiled_store, "kernel", key=key))
    next(field for field in app.text_input if field.label == "Note").set_value(HOSTILE)
    next(field for field in app.text_input if field.label == "Tags").set_value("Prod, check")
    sound(_press(app, "Save"))
    assert f"{HOSTILE} #check #prod" in [text.value for text in app.text]
    assert not any("javascript" in text.value for text in app.markdown)
    rows = listed(sound(open_page(compiled_store, "kernels", q="tag=prod")))
    assert [(row["Key"], row["Tags"], row["Note"]) for row in rows] == [(key[:12], "check prod", HOSTILE)]
    assert len(listed(sound(open_page(compiled_store, "kernels", q="tag!=pr*")))) == len(_keys(compiled_store)) - 1


def test_a_note_that_is_not_allowed_is_refused_with_a_sentence(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernel", key=_keys(compiled_store)[0]))
    next(field for field in app.text_input if field.label == "Tags").set_value("<script>")
    _press(app, "Save")
    assert [error.value for error in app.error] == ["The note was not saved."]
    assert any("'<script>' is not a tag" in text.value for text in app.text)


def test_the_note_of_an_evicted_kernel_is_still_shown(open_page: Open, compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        key = _keys(compiled_store)[0]
        cache.admin.annotate(key, text="keep an eye on it")
        cache.store.delete(CacheKey(key))
    app = open_page(compiled_store, "kernel", key=key)
    assert not app.exception
    assert "keep an eye on it" in [text.value for text in app.text]


def test_after_a_search_all_kernels_are_shown_again_and_a_view_is_opened(open_page: Open, compiled_store: Path) -> None:
    """The search is a parameter that the field is bound to, so that a callback may not simply remove it."""
    open_cache(compiled_store).admin.save_view(View("fp16", {"q": ["fp16"], "arch": ["sm_90"]}))
    app = sound(_press(sound(open_page(compiled_store, "kernels", q="zzz")), "Clear search and filters"))
    assert (app.text_input(key="q").value, len(listed(app))) == ("", 4)
    app = sound(open_page(compiled_store, "kernels", q="zzz", dtype="fp32"))
    app.button(key="view-0").click()
    assert (sound(app.run()).text_input(key="q").value, len(listed(app))) == ("fp16", 1)


def test_a_view_is_saved_opened_and_deleted(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernels", q="bf16", arch=["sm_80", "sm_90"], sort="created", asc="true"))
    before = [row["Key"] for row in listed(app)]
    next(field for field in app.text_input if field.label == "Name").set_value(HOSTILE)
    sound(_press(app, "Save this view"))
    (view,) = open_cache(compiled_store).admin.views()
    assert (view.name, view.address) == (
        HOSTILE, {"q": ["bf16"], "arch": ["sm_80", "sm_90"], "sort": ["created"], "asc": ["true"]}
    )  # fmt: skip
    app = sound(open_page(compiled_store, "kernels"))
    assert len(listed(app)) > len(before)
    app.button(key="view-0").click()
    assert [row["Key"] for row in listed(sound(app.run()))] == before
    app.button(key=f"delete-{HOSTILE}").click()
    sound(app.run())
    assert open_cache(compiled_store).admin.views() == []


def test_a_note_that_was_changed_meanwhile_is_not_replaced(open_page: Open, compiled_store: Path) -> None:
    admin, key = open_cache(compiled_store).admin, _keys(compiled_store)[0]
    app = sound(open_page(compiled_store, "kernel", key=key))
    next(field for field in app.text_input if field.label == "Note").set_value("mine")
    admin.annotate(key, text="theirs")
    app = _press(app, "Save")
    assert [error.value for error in app.error] == ["The note was not saved."]
    next(field for field in app.text_input if field.label == "Note").set_value("both")
    sound(_press(app, "Save"))
    assert admin.note_words(CacheKey(key)) == "both"


def test_the_chosen_view_is_deleted_though_another_was_saved_meanwhile(open_page: Open, compiled_store: Path) -> None:
    admin = open_cache(compiled_store).admin
    for name in ("b", "c"):
        admin.save_view(View(name))
    app = sound(open_page(compiled_store, "kernels"))
    (_, button) = [one for one in app.button if one.label == "Delete"]
    admin.save_view(View("a"))
    button.click()
    sound(app.run())
    assert [view.name for view in admin.views()] == ["a", "b"]


def test_a_view_that_this_page_did_not_save_opens_with_what_is_known(open_page: Open, compiled_store: Path) -> None:
    foreign = {"view": ["SQL"], "embed": ["true"], "page": ["1e308"], "arch": ["sm_90"], "sort": ["x'"], "": ["x"]}
    open_cache(compiled_store).admin.save_view(View("of a newer version", foreign))
    app = sound(open_page(compiled_store, "kernels"))
    app.button(key="view-0").click()
    assert {row["Target"] for row in listed(sound(app.run()))} == {"sm_90"}


def test_a_view_shows_its_columns(open_page: Open, compiled_store: Path) -> None:
    open_cache(compiled_store).admin.save_view(View("few", {}, ("Key", "Note", "no such column")))
    app = sound(open_page(compiled_store, "kernels"))
    app.button(key="view-0").click()
    (told,) = (one for one in components(sound(app.run())) if "rows" in one)
    assert told["wanted"] == {"generation": 1, "names": ["Key", "Note", "no such column"]}


def test_readers_who_may_not_change_the_store_see_but_write_nothing(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = open_cache(compiled_store).admin
    key = _keys(compiled_store)[0]
    admin.annotate(key, text="seen by all")
    admin.save_view(View("of all"))
    monkeypatch.setenv("GEMM_CACHE_DASHBOARD_READ_ONLY", "yes")
    app = sound(open_page(compiled_store, "kernel", key=key))
    assert "seen by all" in [text.value for text in app.text]
    app = sound(open_page(compiled_store, "kernels"))
    assert [button.key for button in app.button if button.key and "view" in button.key] == ["view-0"]
    assert not [button for button in app.button if button.label in ("Save", "Save this view", "Delete")]
    assert not guard.may().granted
