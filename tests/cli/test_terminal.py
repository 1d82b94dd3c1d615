"""What is printed for people is plain text, whole and aligned, wherever it goes."""

from __future__ import annotations

import pytest

from cache_engine.cli.terminal import LEFT, RIGHT, print_fields, print_table


def test_a_piped_table_has_every_column_whole_and_no_escapes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_table({"key": LEFT, "n": RIGHT, "text": LEFT}, [("a" * 64, 1, "b" * 200), ("c", 20, "")], ("text",))
    assert capsys.readouterr().out == (f"key{' ' * 61}   n  text\n{'a' * 64}   1  {'b' * 200}\nc{' ' * 63}  20\n")


def test_a_narrow_terminal_gets_fewer_columns_and_none_cut_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    print_table({"key": LEFT, "x": LEFT, "y": RIGHT}, [("k" * 20, "x" * 20, 1)], ("x",))
    assert capsys.readouterr().out == f"key{' ' * 17}  y\n{'k' * 20}  1\n"


def test_text_from_a_store_is_no_markup_and_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "[bold red]x[/] :smile: \x1b[2J\nsecond\u2028third"
    print_table({"text": LEFT, "n": RIGHT}, [(hostile, 1)])
    print_fields({hostile: hostile})
    shown = hostile.replace("\x1b", "?").replace("\n", "?").replace("\u2028", "?")
    assert capsys.readouterr().out == f"text{' ' * (len(shown) - 4)}  n\n{shown}  1\n{shown}  {shown}\n"


def test_a_table_without_rows_is_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    print_table({"key": LEFT, "hits": RIGHT}, [])
    assert capsys.readouterr().out == "key  hits\n"
