"""Values of which each page makes some: as frozen dataclasses, but for assignments at run time."""

from dataclasses import replace

import pytest

from crawlcw.model.urls import Location

pytestmark = pytest.mark.quick

HERE = Location("http://a.example/x", "http://a.example/x", "a.example")


def test_page_values_are_compared_and_hashed_by_their_fields():
    same = replace(HERE)

    assert same is not HERE
    assert {same: 1}[HERE] == 1
    assert replace(HERE, host="b.example") != HERE
