"""What the layers with several PH matrices share: recurrent layers and their cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from phnn import functional, init
from phnn.algebra import real
from phnn.nn._layer import PHLayer
from phnn.nn._weight import (
    PHWeight,
    check_divisible,
    real_dtype,
    register_weight,
    restore_algebras,
)
from phnn.structure import Choice, Structure

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

_WEIGHT = "weight"


class Layout(NamedTuple):
    """How the rows and columns of one matrix are divided; each part has components of its own.

    Attributes:
        gates: Parts of the rows.
        sides: Parts of the columns: the two directions that a layer above reads.
    """

    gates: int = 1
    sides: int = 1


def _of_owner(letter: str) -> property:
    """Return a property that reads one tensor of the matrix from the layer."""
    return property(lambda self: getattr(self._owner, letter + self.suffix))


class PHMatrix(PHWeight):
    """One matrix of a layer that has several; its tensors are the layer's, by name."""

    A, F, U, V, W = map(_of_owner, "AFUVW")

    def __init__(self, owner: PHMatrices, suffix: str) -> None:
        self._owner = owner
        self.suffix = suffix
        self.structure = owner.structures[suffix]
        self.groups = owner.layouts[suffix].gates
        self.bias: Tensor | None = getattr(owner, "bias" + suffix, None)

    @property
    def default_std(self) -> float:
        """Standard deviation of torch's default weight: one for all matrices of the layer."""
        return self._owner.default_std

    @property
    def weight(self) -> Tensor:
        """The assembled H, of the shape of torch's matrix."""
        return self._owner.assemble(self.suffix)


class PHMatrices(nn.Module):
    r"""Base of the layers with several matrices :math:`H = \sum_i A_i \otimes F_i`.

    The names of the state follow torch's: where its layer has `weight_ih_l0`, this one has
    `A_ih_l0` and `F_ih_l0` (with a rank `V_ih_l0`, `W_ih_l0` and perhaps `U_ih_l0`). Biases keep
    their names. `layer.weight_ih_l0` assembles H, for reading only.
    """

    dense_type: ClassVar[Callable[..., nn.Module]]  # the torch layer that this one replaces
    dense_args: ClassVar[tuple[str, ...]]  # its hyperparameters: our attributes, its arguments

    structure: Structure | None  # of all matrices; None where they differ
    structures: dict[str, Structure]  # of each, by the suffixes of torch's weights
    layouts: dict[str, Layout]  # by the suffixes of torch's weights, in torch's order
    state_names: list[str]  # torch's names of its parameters, in its order

    def __init__(self, structure: Structure) -> None:
        super().__init__()
        self.structure = structure
        self.structures = {}
        self.layouts = {}
        self.state_names = []

    @property
    def default_std(self) -> float:
        """Standard deviation of torch's default weights."""
        raise NotImplementedError

    @property
    def matrices(self) -> dict[str, PHMatrix]:
        """The matrices, by torch's names of the weights."""
        return {_WEIGHT + suffix: PHMatrix(self, suffix) for suffix in self.layouts}

    def _make_state(
        self,
        dense: nn.Module,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        layouts: dict[str, Layout],
    ) -> None:
        """Register the state for the parameters of a torch layer.

        Args:
            dense: The layer, on the meta device.
            device: Where the state lives.
            dtype: Its type.
            layouts: How the weights of the torch layer are divided, by their suffixes.
        """
        options: dict[str, Any] = {"device": device, "dtype": real_dtype(self, dtype)}
        for name, parameter in dense.named_parameters():
            self.state_names.append(name)
            if name.startswith(_WEIGHT):
                suffix = name.removeprefix(_WEIGHT)
                layout = self.layouts[suffix] = layouts[suffix]
                if self.structure is not None:
                    self.structures[suffix] = self.structure
                structure, (rows, columns) = self.structures[suffix], parameter.shape
                check_divisible(
                    structure,
                    (f"the columns of {name}", columns // layout.sides),
                    (f"the rows of {name}", rows // layout.gates),
                )
                register_weight(self, structure, (rows, columns), suffix, **options)
            else:
                empty = torch.empty(parameter.shape, **options)
                self.register_parameter(name, nn.Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and biases with the variance of torch's; restore a fixed algebra."""
        for matrix in self.matrices.values():
            init.default_(matrix)

    def assemble(self, suffix: str) -> Tensor:
        """Return the assembled matrix H of this suffix, such as `_ih_l0`."""
        matrix, layout = PHMatrix(self, suffix), self.layouts[suffix]
        rules = matrix.algebra_tensor if matrix.rank is None else matrix.factors
        H = functional.kronecker_sum(rules, matrix.F, layout.gates)
        if layout.sides == 1:
            return H
        # F holds the sides beside each other, and H has components inside of sides
        sides: Tensor = H.unflatten(1, (matrix.n_in, layout.sides, -1))
        return sides.transpose(1, 2).flatten(1)

    def _tensors(self) -> list[Tensor]:
        """Return what torch's kernels take: assembled weights, and biases, in its order."""
        return [
            self.assemble(name.removeprefix(_WEIGHT))
            if name.startswith(_WEIGHT)
            else getattr(self, name)
            for name in self.state_names
        ]

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_WEIGHT) and name.removeprefix(_WEIGHT) in self.layouts:
            return self.assemble(name.removeprefix(_WEIGHT))
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith(_WEIGHT) and name.removeprefix(_WEIGHT) in self.layouts:
            suffix = name.removeprefix(_WEIGHT)
            raise AttributeError(
                f"{type(self).__name__} computes {name} from A{suffix} and F{suffix}, so it cannot "
                "be set; phnn.decompose.nearest finds A and F for a given weight, and to_dense() "
                "makes a torch layer that holds one"
            )
        super().__setattr__(name, value)

    @classmethod
    def like(
        cls,
        dense: nn.Module,
        *,
        structures: Mapping[str, Structure] | None = None,
        **choice: Unpack[Choice],
    ) -> Self:
        """Make a new PH layer with the arguments, device, dtype and mode of a torch layer.

        Args:
            dense: The torch layer.
            structures: A structure for each matrix, by torch's names. The real numbers as a fixed
                algebra make a dense matrix.
            choice: Instead, one structure for all: `n`, `algebra`, `learn_algebra`, `terms`,
                `rank`.
        """
        arguments = {name: getattr(dense, name) for name in cls.dense_args}
        first = next(dense.parameters())
        make: Callable[..., Self] = cls  # each layer class has the arguments of its torch twin
        if structures is not None:
            layer = make(**arguments, device="meta", dtype=first.dtype, algebra=real)
            layer._restructure(structures, first.device, first.dtype)
            return layer.train(dense.training)
        layer = make(**arguments, device=first.device, dtype=first.dtype, **choice)
        return layer.train(dense.training)

    def _restructure(
        self, structures: Mapping[str, Structure], device: torch.device, dtype: torch.dtype
    ) -> None:
        """Give each matrix a structure of its own, and fresh state."""
        layouts, names = self.layouts, {_WEIGHT + suffix for suffix in self.layouts}
        if structures.keys() != names:
            raise ValueError(
                f"{type(self).__name__} has the matrices {', '.join(sorted(names))}; got "
                f"structures for {', '.join(sorted(structures))}"
            )
        self.structures = {name.removeprefix(_WEIGHT): structures[name] for name in structures}
        several = set(structures.values())
        self.structure = several.pop() if len(several) == 1 else None
        for held in (self._parameters, self._buffers, self.state_names):
            held.clear()
        dense = self._make_dense({name: getattr(self, name) for name in self.dense_args})
        self._make_state(dense, device, dtype, layouts)

    def to_dense(self) -> nn.Module:
        """Return the torch layer that computes the same, equally trainable and in the same mode."""
        arguments = {name: getattr(self, name) for name in self.dense_args}
        dense = self._make_dense(arguments)
        for name, tensor in zip(self.state_names, self._tensors(), strict=True):
            source = "F" + name.removeprefix(_WEIGHT) if name.startswith(_WEIGHT) else name
            learns = getattr(self, source).requires_grad
            setattr(dense, name, nn.Parameter(tensor.detach().clone(), requires_grad=learns))
        return dense.train(self.training)

    def _make_dense(self, arguments: dict[str, Any]) -> nn.Module:
        """Make the torch layer on the meta device; its constructor checks the arguments."""
        return self.dense_type(**arguments, device="meta")

    @property
    def structure_repr(self) -> str:
        """The structures, as `repr` shows them."""
        if self.structure is not None:
            return str(self.structure)
        return "; ".join(f"{_WEIGHT}{suffix}: {s}" for suffix, s in self.structures.items())

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        for suffix, structure in self.structures.items():
            restored = restore_algebras(
                structure, ["A" + suffix], state_dict, prefix, local_metadata, error_msgs
            )
            if restored is None:
                return
            state_dict = restored
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def named_weights(model: nn.Module) -> Iterator[tuple[str, PHWeight]]:
    """Yield the PH weights of a model with their names: layers, and matrices of recurrent layers.

    Args:
        model: Any model, or a PH layer. Its own weight has an empty name.
    """
    for name, module in model.named_modules():
        if isinstance(module, PHLayer):
            yield name, module
        elif isinstance(module, PHMatrices):
            for weight, matrix in module.matrices.items():
                yield f"{name}.{weight}".lstrip("."), matrix
