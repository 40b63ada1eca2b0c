"""Names of parameters: those the optimizer knows, else those of the modules that hold them."""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WRAPPED = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")


def list_parameters(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer, in its order."""
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def name_parameters(optimizer: Any) -> list[str]:
    """Name the parameters of an optimizer; ``param_3`` is one that nobody has a name for.

    Looking through all objects of the process takes long, and is done only where the optimizer was
    not given names.
    """
    names = [
        str(name)
        for group in optimizer.param_groups
        for name in (group.get("param_names") or [""] * len(group["params"]))
    ]
    parameters = list_parameters(optimizer)
    if not all(names) or len(names) != len(parameters):
        known = _find_in_modules({id(tensor) for tensor in parameters})
        names = [known.get(id(tensor), "") for tensor in parameters]
    return [_unwrap(name) or f"param_{place}" for place, name in enumerate(names)]


def _find_in_modules(wanted: set[int]) -> dict[int, str]:
    """Find names in the modules of this process that are part of no other one."""
    kind = sys.modules["torch"].nn.Module
    # Not isinstance: that asks the object for its class, and some objects answer with an error.
    modules = [one for one in gc.get_objects() if issubclass(type(one), kind)]
    inner = {id(child) for one in modules for child in one._modules.values() if child is not None}
    found: dict[int, str] = {}
    for module in modules:
        if id(module) in inner:
            continue
        for name, tensor in module.named_parameters():
            if id(tensor) in wanted:
                found.setdefault(id(tensor), name)
    return found


def _unwrap(name: str) -> str:
    """Leave out what wrappers such as DDP and the compiler put before a name."""
    while name.startswith(_WRAPPED):
        name = name[name.index(".") + 1 :]
    return name.replace("._fsdp_wrapped_module", "").replace("._checkpoint_wrapped_module", "")


def local_part(tensor: Any) -> Any:
    """Return what this rank holds of a tensor that may be spread over ranks."""
    return getattr(tensor, "_local_tensor", tensor)
