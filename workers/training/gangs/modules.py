"""A decoder's weights as modules of FSDP2, one for each layer, and the decoder that computes with them.

The decoder is the one of a single device: it holds tensors and knows no module. FSDP2 makes a module's whole weights in
memory that keeps its place: the same tensors are filled before a layer computes and emptied behind it. So the decoder
gets these tensors once, and every layer is computed inside its module's call, which is where FSDP2 acts.

Invariants: all ranks call in the same order with inputs of any shape; gradients are sums over the ranks, never means.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from workers.models.architecture import Architecture
from workers.models.families import LibraryModel, Shape
from workers.models.products import widen
from workers.training.back_ends import order_of
from workers.training.decoder import Decoder
from workers.training.gangs.group import RankGroup
from workers.training.gangs.layout import Shapes, ShardedLayout, StackedWeights
from workers.training.gangs.library import ShardedLibraryDecoder, layer_of, library_leaves
from workers.training.packing import PackedTokens
from workers.training.parameters import FlatParameters

if TYPE_CHECKING:
    import torch
    from torch import nn

PRECISIONS = {"fp32": "float32", "fp64": "float64", "bf16": "bfloat16"}


class _ShapeProbe:
    """Stands where a decoder expects its parameters: answers shapes, and notes which weights it wants as one leaf."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self.leaves: dict[tuple[str, ...], StackedWeights] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    @property
    def names(self) -> Sequence[str]:
        return list(self._shapes)

    def shape(self, name: str) -> Sequence[int]:
        return self._shapes[name]

    def exact_leaf(self, name: str) -> "torch.Tensor":
        """FSDP2 has one tensor of a weight."""
        return self.leaf(name)

    def leaf(self, *names: str) -> "torch.Tensor":
        import torch

        first, *rest = self._shapes[names[0]]
        rows = first + sum(self._shapes[name][0] for name in names[1:])
        self.leaves[names] = StackedWeights(names, (rows, *rest))
        return torch.empty(rows, *rest, device="meta")


class _Filled(_ShapeProbe):
    """The same, with the tensors that FSDP2 fills."""

    def __init__(
        self, shapes: Shapes, tensors: "dict[tuple[str, ...], torch.Tensor]", precision: str, device: str
    ) -> None:
        import torch

        super().__init__(shapes)
        self._tensors = tensors
        self.precision = precision
        self.compute = torch.empty(0, dtype=getattr(torch, PRECISIONS[precision]), device=device)
        """Says the type and the device of what is computed with."""

    def leaf(self, *names: str) -> "torch.Tensor":
        return self._tensors[names]


def leaves_of(shapes: Shapes, shape: Shape) -> tuple[StackedWeights, ...]:
    """Return the leaves that a decoder of these weights computes with, in the order of the whole buffer."""
    if isinstance(shape, LibraryModel):
        leaves = library_leaves(shapes, shape)
    else:
        asked = _ShapeProbe(shapes)
        Decoder(cast("FlatParameters", asked), shape)
        leaves = list(asked.leaves.values())
    order = order_of(shape, {name: tuple(sides) for name, sides in shapes.items()})
    place = {name: number for number, name in enumerate(order)}
    return tuple(sorted(leaves, key=lambda leaf: place[leaf.names[0]]))


class ShardedWeights:
    """This rank's parts of all weights, as FSDP2 holds them."""

    def __init__(
        self,
        shapes: Shapes,
        shape: Shape,
        group: RankGroup,
        precision: str,
        frozen: bool = False,
        recompute: bool = False,
    ) -> None:
        """The weights are undefined until `put`."""
        import torch

        widen(precision, group.device)
        self.cut = ShardedLayout(leaves_of(shapes, shape), group.ranks)
        self.shapes = shapes
        self.compute_dtype = getattr(torch, PRECISIONS[precision])
        self.dtype = torch.float32 if precision == "bf16" and not frozen else self.compute_dtype
        self.root, self.layers, owners = _modules(self.cut.leaves, self.dtype, frozen)
        _shard([*self.layers.values(), self.root], group, self.compute_dtype, self.dtype)
        self.root.to_empty(device=group.device)
        self._parameters: list[Any] = [owners[leaf.names].get_parameter(_name(leaf)) for leaf in self.cut.leaves]
        self.put(torch.zeros(self.cut.length(group.rank), dtype=self.dtype))
        tensors: dict[tuple[str, ...], torch.Tensor] = {}
        modules: list[Any] = [*self.layers.values(), self.root]
        for module in modules:
            module.unshard()
            own = [leaf for leaf in self.cut.leaves if owners[leaf.names] is module]
            tensors.update({leaf.names: module.get_parameter(_name(leaf)) for leaf in own})
            module.reshard()
        filled = cast("FlatParameters", _Filled(shapes, tensors, precision, group.device))
        self.decoder: ShardedDecoder | ShardedLibraryDecoder
        if isinstance(shape, LibraryModel):
            self.decoder = ShardedLibraryDecoder(filled, shape, self.root, self.layers, recompute)
        else:
            self.decoder = ShardedDecoder(filled, shape, self.root, self.layers, recompute)

    def put(self, own: "torch.Tensor") -> None:
        """Compute with this rank's part from now on."""
        import torch

        for module in (*self.layers.values(), self.root):
            cast("Any", module).reshard()  # a root that only ever runs forward keeps what it once put together
        at = 0
        with torch.no_grad():
            for parameter in self._parameters:
                local = parameter.to_local()
                local.copy_(own[at : at + local.numel()].view(local.shape))
                at += local.numel()

    def take_gradient(self, into: "torch.Tensor") -> None:
        """Move the gradient of the passes since the last call into a buffer laid out as this rank's part."""
        at = 0
        for parameter in self._parameters:
            size = parameter.to_local().numel()
            part, gradient = into[at : at + size], parameter.grad
            part.zero_() if gradient is None else part.copy_(gradient.to_local().flatten())
            parameter.grad = None
            at += size


class ShardedDecoder(Decoder):
    """Computes each layer inside the module that holds its weights, and all of it inside the root."""

    def __init__(
        self,
        parameters: FlatParameters,
        architecture: Architecture,
        root: "nn.Module",
        layers: "dict[str, nn.Module]",
        recompute: bool,
    ) -> None:
        super().__init__(parameters, architecture, recompute=recompute)
        self._root = root
        self._modules = dict(zip(map(id, self._layers), layers.values(), strict=True))

    def begin(self) -> None:
        """There is nothing to try: this decoder knows what it computes."""

    def scores(self, batch: PackedTokens) -> "tuple[torch.Tensor, torch.Tensor]":
        found: tuple[torch.Tensor, torch.Tensor] = self._root(super().scores, batch)
        return found

    def _through(self, layer: Any, *given: Any) -> "torch.Tensor":
        found: torch.Tensor = self._modules[id(layer)](super()._through, layer, *given)
        return found

    def _through_last(self, layer: Any, *given: Any) -> "torch.Tensor":
        found: torch.Tensor = self._modules[id(layer)](super()._through_last, layer, *given)
        return found


def _modules(
    leaves: tuple[StackedWeights, ...], dtype: "torch.dtype", frozen: bool
) -> "tuple[nn.Module, dict[str, nn.Module], dict[tuple[str, ...], nn.Module]]":
    """Return the root, its layers by prefix, and the module that owns each leaf; weights have shapes and no memory."""
    import torch
    from torch import nn

    class Holder(nn.Module):
        def forward(self, run: Callable[..., Any], *given: Any, **named: Any) -> Any:
            return run(*given, **named)

    root, layers, owners = Holder(), nn.ModuleDict(), {}
    root.add_module("layers", layers)
    for leaf in leaves:
        prefix = layer_of(leaf.names[0])
        if prefix and prefix not in layers:
            layers[prefix] = Holder()
        owner = layers[prefix] if prefix else root
        meta = torch.empty(leaf.shape, dtype=dtype, device="meta")
        owner.register_parameter(_name(leaf), nn.Parameter(meta, requires_grad=not frozen))
        owners[leaf.names] = owner
    return root, dict(layers.items()), owners


def _shard(modules: "list[nn.Module]", group: RankGroup, compute_dtype: "torch.dtype", dtype: "torch.dtype") -> None:
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=dtype, cast_forward_inputs=False)
    mesh = group.mesh()
    for module in modules:
        fully_shard(module, mesh=mesh, mp_policy=policy)
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def _name(leaf: StackedWeights) -> str:
    """Return a leaf's name as a parameter of its module."""
    return "_".join(leaf.names).replace(".", "-")
