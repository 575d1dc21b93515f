"""Who hears of the operators that PyTorch calls, as its counters of operations do."""

import torch


class Listener(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode that notes the operators that are called under it.

    Attributes
    ----------
    heard : list of str
        Their names, those of this package without its prefix.
    """

    def __init__(self):
        super().__init__()
        self.heard = []

    def __torch_dispatch__(self, operator, types, given=(), named=None):
        self.heard.append(operator._schema.name.removeprefix("numbacaps::"))
        return operator(*given, **(named or {}))
