"""Names, shares and lengths of time, as the sentences of the advisor and of its neighbours write them."""


def name_of(policy: str) -> str:
    """Write a policy at the beginning of a sentence."""
    return policy[:1].upper() + policy[1:]


def percent(share: float) -> str:
    """Write a share for a sentence."""
    return f"{share * 100:.0f} %"


def span(seconds: float) -> str:
    """Write a length of time for a sentence."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
