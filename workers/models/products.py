"""Matrix products of bf16 on processors that have no instructions for it.

There torch multiplies bf16 number by number: with AVX2 alone at 1 to 8 billion operations a second, where fp32 makes
60. `widen` gives such a process other kernels for these products: both factors become fp32, the product is made in
fp32, as a processor with those instructions adds too, and the result is rounded once. A factor's copy in fp32 lives as
long as its product. All else that torch computes stays, and products of other types go to torch's own kernels.
"""

import contextlib
import ctypes
import warnings
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv")
"""Each also writes into a given tensor; the ones that add also do so in place."""
ATTENTION = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward")

M_MMAP_THRESHOLD = -3
OWN_PAGES_BYTES = 2**20


def widen(precision: str, device: str) -> None:
    """Make products of bf16 quick in this process, where it computes them on a processor that cannot."""
    if precision == "bf16" and device == "cpu" and not supported():
        _install()


@cache
def supported() -> bool:
    """Tell whether this processor multiplies bf16 itself."""
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def _install() -> "torch.library.Library":
    """Return the library whose kernels stand in the place of torch's for as long as it lives."""
    import torch

    _return_copies()
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for name in PRODUCTS:
            computed = getattr(torch.ops.aten, name).default
            for variant in (name, f"{name}.out", *([f"{name}_"] if name.startswith(("add", "badd")) else [])):
                _replace(library, variant, partial(_product, computed, variant.endswith("_")))
        for name in ATTENTION:
            _replace(library, name, partial(_attention, getattr(torch.ops.aten, name).default))
    return library


def _return_copies() -> None:
    """Have copies lie in pages of their own, which go back at once. Among what is kept they would leave gaps: a third
    of a trainer's memory."""
    with contextlib.suppress(AttributeError, OSError):  # only glibc has the setting
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, OWN_PAGES_BYTES)


def _replace(library: "torch.library.Library", name: str, widened: Any) -> None:
    import torch

    kernel = torch.library.get_kernel(f"aten::{name}", "CPU")

    def call(keys: Any, first: "torch.Tensor", second: "torch.Tensor", *others: Any, **named: Any) -> Any:
        if second.dtype == torch.bfloat16:
            return widened(first, second, *others, **named)
        return kernel.call_boxed(keys, first, second, *others, **named)

    library.impl(name, call, "CPU", with_keyset=True)  # type: ignore[no-untyped-call]


def _product(
    computed: Any, in_place: bool, *given: "torch.Tensor", out: "torch.Tensor | None" = None, **named: Any
) -> "torch.Tensor":
    found: torch.Tensor = computed(*(each.float() for each in given), **named)
    target = given[0] if in_place else out
    return found.to(given[0].dtype) if target is None else target.copy_(found)


def _attention(computed: Any, *given: Any, **named: Any) -> "tuple[torch.Tensor, ...]":
    """Results have the type of what they are made of, but sums of exponentials, which are fp32 in torch as well."""
    import torch

    query = given[0]
    wide = [each.float() if _is_narrow(each) else each for each in given]
    found = computed(*wide, **{name: each.float() if _is_narrow(each) else each for name, each in named.items()})
    return tuple(each if each.dim() < query.dim() else each.to(torch.bfloat16) for each in found)


def _is_narrow(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
