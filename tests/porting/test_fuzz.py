"""Damaged weights of other libraries are refused with one of our errors, or read as some model.

``fuzzing_forms.py`` lists the forms. ``make fuzz`` runs all truncations and a million random mutations of them.
"""

import fuzzing
import pytest
from fuzzing_forms import FORMS


@pytest.mark.parametrize("form", FORMS)
def test_random_damage_is_refused_or_harmless(form, tmp_path, pytestconfig):
    count = pytestconfig.getoption("--mutations") // len(FORMS)
    outcomes = fuzzing.part_of("mutations", tmp_path, form=form, count=count)["outcomes"]
    assert sum(outcomes.values()) == count
    by_result = {
        result: sum(number for name, number in outcomes.items() if name.endswith(result))
        for result in ("refused", "same digest", "another model")
    }
    assert by_result["refused"] > by_result["same digest"] > 0
    if FORMS[form].has_checksums:
        assert not by_result["another model"]


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_is_cut_off_is_refused(form, tmp_path):
    outcomes = fuzzing.part_of("truncations", tmp_path, form=form, stride=61)["outcomes"]
    assert set(outcomes) <= {"cut off: refused", "cut off: same digest"}
    # Only white space at the end of a text can be missing.
    assert outcomes.get("cut off: same digest", 0) <= FORMS[form].damaged.endswith(".json")
