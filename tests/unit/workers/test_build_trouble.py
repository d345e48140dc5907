"""What pip says of a package that cannot be installed becomes a code and words with a next step."""

from flexmarl.contracts.package_manifests import BuildRefusal
from workers.packages.building import NEWEST_VERIFIERS, trouble_of

CONFLICT = f"""
ERROR: Cannot install v1-tasks==1 because these package versions have conflicting dependencies.

The conflict is caused by:
    v1-tasks 1 depends on verifiers>=0.4
    The user requested (constraint) {NEWEST_VERIFIERS}

ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/en/latest/topics/dependency-resolution/
"""
"""Words of pip 25."""


def test_a_package_for_a_newer_verifiers_is_told_which_are_understood() -> None:
    code, told = trouble_of(CONFLICT, BuildRefusal.INSTALL_FAILED)
    assert code is BuildRefusal.NOT_UNDERSTOOD
    assert told == (
        "It needs verifiers 0.3 or newer, whose environments are not understood; environments of "
        "verifiers>=0.1.11,<0.3, which have load_environment, are."
    )


def test_an_index_that_is_away_is_told_apart_from_one_that_lacks_a_distribution() -> None:
    lacks = "ERROR: No matching distribution found for nowhere==1"
    assert trouble_of(lacks, BuildRefusal.INSTALL_FAILED)[0] is BuildRefusal.NOT_FOUND
    away = f"WARNING: NewConnectionError\n{lacks}"
    assert trouble_of(away, BuildRefusal.INSTALL_FAILED)[0] is BuildRefusal.INDEX_UNREACHABLE
