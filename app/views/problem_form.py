"""The form of a problem, on Compile and Predict. Its values are in the address, and both pages share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import widgets
from app.presenters import forms
from app.presenters.shared import Row

IN_A_ROW = 4


_VALUES, _SET, _PAGE = "values of the form", "fields that have their values", "page of the form"
_ADDRESS = "address of the form"


def follow(page: str, *every_form: Sequence[forms.Field]) -> None:
    """Gives the fields the values in the address, before any field is drawn.

    Streamlit could bind the fields to the address too, but only for one page: it drops a bound field's parameter from a
    link to another page, and forgets a link's value when the reader goes to another page.

    Args:
        page: the page's title.
        every_form: all fields of the page.
    """
    asked = widgets.address()
    renamed = forms.present_names(asked)
    if renamed != asked:
        st.query_params.from_dict(renamed)
        st.rerun()
    if st.session_state.get(_PAGE) != page:
        st.session_state[_PAGE], st.session_state[_SET] = page, set()
    given, opened = _of_form(asked), widgets.is_just_opened(page)
    if given == st.session_state.get(_ADDRESS):
        return
    st.session_state[_ADDRESS] = given  # once: what the reader types before the page is drawn to its end is newer
    for one in {one.key: one for form in every_form for one in form}.values():
        if one.key in given:
            put(one, one.from_address(given[one.key]))
        elif not opened:  # the browser went back on this page, to where the field had its default
            put(one, one.default)


def put(one: forms.Field, value: Any) -> None:
    """Gives a field a value, if the form can show it, before the field is drawn."""
    if one.takes(value):
        _values()[one.key] = value
        st.session_state.setdefault(_SET, set()).discard(one.key)


def fill_in(form: Sequence[forms.Field]) -> Row:
    """Draws all fields of a form, the rare ones under "More"; returns their values by name."""
    rare = [one for one in form if one.rare]
    values = draw_fields([one for one in form if not one.rare])
    if rare:
        changed = any(_values().get(one.key, one.default) != one.default for one in rare)
        with st.expander("More", expanded=changed):
            values |= draw_fields(rare)
    write_address(form, values)
    return values


def write_address(form: Sequence[forms.Field], values: Row) -> None:
    """Writes the values of the drawn fields that are not defaults into the address."""
    wanted = {one.key: one.in_address(values[one.name]) for one in form if values[one.name] != one.default}
    before = _of_form(widgets.address())
    st.session_state[_ADDRESS] = wanted
    for name in before.keys() - wanted.keys():
        del st.query_params[name]
    changed = {name: texts for name, texts in wanted.items() if texts != before.get(name)}
    if changed:
        st.query_params.update(changed)


def _of_form(asked: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {name: texts for name, texts in asked.items() if name.startswith(forms.PREFIX)}


def _values() -> Row:
    """The last value of each field that was drawn, on either page."""
    found: Row = st.session_state.setdefault(_VALUES, {})
    return found


def draw_fields(fields: Sequence[forms.Field]) -> Row:
    """Draws fields in rows; returns their values by name."""
    values: Row = {}
    for start in range(0, len(fields), IN_A_ROW):
        for one, column in zip(fields[start : start + IN_A_ROW], st.columns(IN_A_ROW), strict=False):
            values[one.name] = draw(one, column)
    return values


def draw(one: forms.Field, place: DeltaGenerator) -> Any:
    """Draws the widget of a field; returns its value."""
    already_set: set[str] = st.session_state.setdefault(_SET, set())
    if one.key not in already_set or one.key not in st.session_state:
        value = _values().get(one.key)
        st.session_state[one.key] = value if one.takes(value) else one.default
        already_set.add(one.key)
    value = _drawn(one, place)
    _values()[one.key] = value
    return value


def _drawn(one: forms.Field, place: DeltaGenerator) -> Any:
    named: Any = {"key": one.key, "help": one.help}
    if one.kind is forms.FieldKind.NUMBER:
        return place.number_input(one.label, 1, one.most, **named)
    if one.kind is forms.FieldKind.TEXT:
        return place.text_input(one.label, max_chars=forms.LONGEST_TEXT, **named)
    if one.kind is forms.FieldKind.SWITCH:
        return place.toggle(one.label, **named)
    choices = [str(choice) for choice in one.choices]
    if one.kind is forms.FieldKind.SEVERAL:
        return place.multiselect(one.label, choices, **named)
    return place.selectbox(one.label, choices, **named)
