"""Networks whose tensors are shared out to several devices by torch's fully_shard (FSDP2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Give each device a part of every tensor of a network, A of PH layers included.

    Blocks inside of a sequence are gathered one at a time, and the rest together. PH layers stay
    what they are: no layer of its own is a unit.

    Args:
        model: The network, changed in place.
        mesh: The devices.
    """
    from torch.distributed.fsdp import fully_shard

    for module in reversed(list(model.modules())):  # from the inside out
        if not isinstance(module, nn.Sequential):
            continue
        for block in module:
            if any(True for _ in block.children()) and any(True for _ in block.parameters()):
                fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def is_sharded(model: nn.Module) -> bool:
    """Return whether the tensors of a network are shared out."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


def hold_whole(model: nn.Module, *, whole: bool) -> None:
    """Let each device hold the whole network, or its share again; all processes must call it.

    An evaluation needs it: processes may have different numbers of batches, and a process that
    gathers tensors for a batch which others do not have would wait for them without end.

    Args:
        model: The network, which is shared out.
        whole: Whether to gather all tensors, or to drop those of others.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            keep = whole or module is model  # as torch treats the outermost by default
            module.set_reshard_after_forward(not keep, recurse=False)
            if whole:
                module.unshard()
            else:
                module.reshard()


def gather(model: nn.Module) -> dict[str, Tensor]:
    """Return the whole tensors of a network in the first process; all processes have to call it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=options)  # type: ignore[return-value]


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load whole tensors into a network, which may be shared out.

    Args:
        model: The network.
        weights: Its tensors by name.
    """
    if not is_sharded(model):
        model.load_state_dict(dict(weights))
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(model, dict(weights), options=StateDictOptions(full_state_dict=True))
