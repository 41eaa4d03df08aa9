"""Errors of Karat, and their way between processes."""

import pytest

from karat import errors
from karat.errors import BugError, KaratError, OutOfMemoryError, packed, unpacked
from karat.ranks.shared_memory import StepAbandonedError

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, KaratError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("param", [None, "max_tokens"])
def test_every_error_comes_out_as_it_went_in(kind: type[KaratError], param: str | None) -> None:
    found = unpacked(*packed(kind("what came; what to do", param=param)))
    assert type(found) is kind and str(found) == "what came; what to do"
    assert (found.param, found.exit_code) == (param, kind.exit_code)
    assert packed(found) == packed(found, with_traceback=True), "only a bug has its traceback told"


def test_all_classes_are_there() -> None:
    assert len(CLASSES) > 20 and KaratError in CLASSES


def test_a_class_of_another_module_becomes_the_nearest_of_this_one() -> None:
    assert packed(StepAbandonedError("rank 1 gave up")) == ("RankError", "rank 1 gave up", None)


def test_memory_that_ran_out_is_no_bug() -> None:
    found = unpacked(*packed(MemoryError()))
    assert type(found) is OutOfMemoryError and str(found).startswith("memory ran out")


def test_another_exception_is_a_bug_with_its_name() -> None:
    try:
        raise ZeroDivisionError("by nothing")
    except ZeroDivisionError as error:
        found, traced = unpacked(*packed(error)), unpacked(*packed(error, with_traceback=True))
    assert type(found) is type(traced) is BugError and str(found) == "ZeroDivisionError: by nothing"
    assert str(traced).startswith("Traceback") and str(traced).endswith("ZeroDivisionError: by nothing\n")


@pytest.mark.parametrize("name", ["SurpriseError", "traceback", "packed", "Packed", ""])
def test_a_name_that_is_no_error_of_this_version_is_a_bug_that_names_it(name: str) -> None:
    found = unpacked(name, "what came", "n")
    assert type(found) is BugError and str(found) == f"{name}: what came" and found.param == "n"
