"""Kernels of other frameworks on the pages Kernel and Compare: what is known, what is not, and why one missed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.caches import scan
from app.presenters.framework_kernels import Address
from cache_engine.frameworks.values import Place
from tests.frameworks.fixtures import unpack
from tests.pages.opening import Open, code_of, frames, listed, sound


class Machine:
    """Caches of two frameworks, and pages that show them."""

    def __init__(self, folder: Path, open_page: Open) -> None:
        self.store = folder / "store"
        self.triton, self.cutile = unpack("triton", folder), unpack("cutile", folder)
        self._open = open_page

    def entry(self, kernel: str, arch: str = "", warps: str = "") -> Address:
        """Triton's entry of this kernel."""
        for metadata in sorted(self.triton.glob(f"*/{kernel}.json")):
            text = metadata.read_text()
            if (not arch or f'"arch": {arch}' in text) and (not warps or f'"num_warps": {warps}' in text):
                return Address(Place("triton", self.triton, ""), metadata.parent.name)
        raise LookupError(kernel)

    def show(self, page: str, **parameters: str) -> AppTest:
        """The page, when the scan that it starts has ended."""
        app = self._open(self.store, page, **parameters)
        scan.scanner().look(60)
        return app.run()

    def kernel(self, address: Address, **parameters: str) -> AppTest:
        """The page Kernel."""
        return self.show("kernel", cache=address.cache, entry=address.id, **parameters)

    def compare(self, one: Address, other: Address, **parameters: str) -> AppTest:
        """The page Compare."""
        sides = {"cache_a": one.cache, "entry_a": one.id, "cache_b": other.cache, "entry_b": other.id}
        return self.show("compare", **sides, **parameters)


@pytest.fixture
def machine(open_page: Open, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with nothing but these."""
    found = Machine(tmp_path, open_page)
    monkeypatch.setenv("GEMM_CACHE_CACHES", f"triton={found.triton}:cutile={found.cutile}")
    return found


def _rows(app: AppTest, *columns: str) -> dict[object, tuple[object, ...]]:
    """The rest of each row of the table with these columns, by the first."""
    (frame, *_) = [one for one in frames(app) if set(columns) <= set(one.columns)]
    return {row[0]: row[1:] for row in frame[list(columns)].itertuples(index=False, name=None)}


def test_a_kernel_has_a_page_with_what_is_known_and_why_the_rest_is_not(machine: Machine) -> None:
    address = machine.entry("tile")
    app = sound(machine.kernel(address))
    facts = _rows(app, "Property", "Value")
    assert facts["Framework"] == ("Triton",)
    assert facts["Directory"] == (str(machine.triton),)
    assert (facts["Name"], facts["Target"], facts["Version"]) == (("tile",), ("sm_90a",), ("3.9.0",))
    assert facts["Spills per thread"] == ("unknown: Triton does not store the report of ptxas",)
    parts = _rows(app, "Part", "Size", "File")
    file = machine.triton / address.id / "tile.ptx"
    assert parts["ptx"] == (file.stat().st_size, f"{address.id}/tile.ptx")
    assert set(parts) == {"group", "cubin", "json", "llir", "ptx", "source", "ttgir", "ttir"}
    assert str(facts["Registers per thread"][0]).isdecimal()


def test_its_texts_are_those_of_the_files_and_come_with_its_machine_code(machine: Machine) -> None:
    address = machine.entry("tile")
    shown = code_of(sound(machine.kernel(address, part="Code")))
    assert [*shown] == ["MLIR", "TTIR", "TTGIR", "LLIR", "PTX", "SASS", "json", "group"]
    files = machine.triton / address.id
    assert shown["json"] == (files / "tile.json").read_text().rstrip("\n")
    written = (files / "tile.ptx").read_text().splitlines()
    assert [line for line in shown["PTX"].splitlines() if line.strip() and line not in map(str.rstrip, written)] == []
    assert "HGMMA" in shown["SASS"]


def test_the_inputs_of_its_key_are_listed_and_those_that_are_not_stored(machine: Machine) -> None:
    app = sound(machine.kernel(machine.entry("scale", "90", "8"), part="Cache key"))
    assert _rows(app, "Input", "From", "Value")["num_warps"] == ("option", "8")
    assert any("Not stored: the build of Triton" in one.value for one in app.text)


def test_what_the_doctor_finds_wrong_with_it_is_said_with_the_cure(machine: Machine) -> None:
    address = machine.entry("tile")
    (machine.triton / address.id / "tile.llir").write_bytes(b"")
    found = _rows(sound(machine.kernel(address)), "Finding", "Detail", "What to do")
    assert found["empty file"][0] == f"{address.id}/tile.llir"
    assert "delete the entry" in str(found["empty file"][1])


def test_a_link_to_an_entry_that_is_gone_says_so(machine: Machine) -> None:
    address = machine.entry("tile")
    shutil.rmtree(machine.triton / address.id)
    app = machine.kernel(address)
    assert not app.exception
    assert app.error[0].value == "No cache that is looked at has this entry."
    assert address.id in app.text[-1].value


@pytest.mark.parametrize("cache", ["triton=/etc", "nothing", "=", "no-such-kind=/etc", "triton=%00%0a"])
def test_a_link_leads_to_no_file_that_is_no_entry(machine: Machine, cache: str) -> None:
    """However it is made up."""
    app = machine.show("kernel", cache=cache, entry="passwd")
    assert not app.exception
    assert app.error[0].value == "No cache that is looked at has this entry."
    assert not frames(app)


def test_an_entry_whose_name_is_markup_is_only_ever_text(machine: Machine) -> None:
    name = "**bold** <b>x"
    (machine.triton / name).mkdir()
    app = sound(machine.kernel(Address(Place("triton", machine.triton, ""), name)))
    assert name in app.code[0].value
    assert not [one for one in app.markdown if "bold" in one.value]


def test_two_entries_are_compared_by_the_inputs_of_their_keys_and_by_what_came_of_them(machine: Machine) -> None:
    one, other = machine.entry("scale", "90", "8"), machine.entry("scale", "80")
    app = sound(machine.compare(one, other))
    heads = f"1: {one.id[:12]}", f"2: {other.id[:12]}"
    (differences,) = [one for one in frames(app) if "Meaning" in one.columns]
    rows = set(differences[["Input", "From", *heads, "Meaning"]].itertuples(index=False, name=None))
    assert ("num_warps", "option", "8", "4", "") in rows
    assert ("arch", "target", "90", "80", "another GPU: its kernels are compiled apart") in rows
    (resources,) = [one for one in frames(app) if "target" in set(one.get("Property", []))]
    rows = set(resources[["Property", *heads]].itertuples(index=False, name=None))
    assert ("target", "sm_90a", "sm_80") in rows
    assert any(one.value.startswith("Parts with other bytes: ") for one in app.text)


def test_an_entry_is_not_compared_by_key_with_one_of_another_framework(machine: Machine) -> None:
    machine.show("caches")
    app = machine.show("caches", part="Entries", kind="cutile")
    assert {row["Framework"] for row in listed(app)} == {"cuTile"}
    key = looking_ids(machine)[0]
    app = sound(machine.compare(machine.entry("tile"), Address(Place("cutile", machine.cutile, ""), key)))
    assert "They are of different frameworks: their keys have nothing in common." in [one.value for one in app.info]
    assert not [one for one in frames(app) if "Meaning" in one.columns]


def looking_ids(machine: Machine) -> list[str]:
    """The ids of cuTile's entries."""
    source = scan.sources().by_kind["cutile"]
    return [seen.id for seen in source.scan(Place("cutile", machine.cutile, ""), {})]


def test_the_second_of_two_is_chosen_from_a_list_of_the_same_framework(machine: Machine) -> None:
    first = machine.entry("tile")
    app = sound(machine.show("compare", cache_a=first.cache, entry_a=first.id))
    assert [row["Framework"] for row in listed(app)] == ["Triton"] * 3  # without the first


def test_a_search_for_kernels_says_how_many_of_other_frameworks_match(machine: Machine) -> None:
    machine.show("caches")
    links = [each.proto for each in sound(machine.show("kernels", text="tile sm_90a")).get("page_link")]
    (link,) = [each for each in links if "of other frameworks" in each.label]
    assert link.label == "3 entries of other frameworks"  # also those of cuTile
    assert "tile" in link.query_string
    assert not [
        each
        for each in machine.show("kernels", text="no such kernel").get("page_link")
        if "of other frameworks" in each.proto.label
    ]


def test_a_filter_of_one_view_breaks_no_other_that_has_it_too(machine: Machine) -> None:
    """One of them binds it to the address; a quick reader's next change comes before the binding is gone."""
    (target, *_) = machine.show("kernels", view="Other frameworks").multiselect(key="arch").options
    app = machine.show("kernels", view="Other frameworks", arch=target)
    assert sound(app).multiselect(key="arch").value == [target]
    app.segmented_control(key="view").set_value("This store")
    sound(app.run())
    assert app.multiselect(key="arch").value == []
    assert "arch" not in app.query_params
