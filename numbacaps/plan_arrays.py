"""The arrays that plans are called with: refused by name where they do not fit."""

from numbacaps.arrays import check_out, describe


class PlanArrays:
    """What plans of a convolution and of routing have in common: they take C-contiguous arrays, where these lie.

    Who inherits it sets ``dtype``; ``_forms``, the :class:`numbacaps.forms.Form` of each array by name; and of the algorithm
    ``_on_host`` and ``_stays_on_host`` (:class:`numbacaps.algorithms.registry.Algorithm`).
    """

    def __reduce_ex__(self, protocol):  # what copy, deepcopy and pickle ask
        raise TypeError(
            f"a {type(self).__name__} is not copied or pickled: it holds kernels and memory of the device; make another"
        )

    def _operand(self, name, array):
        """An operand that is read, checked but for its device."""
        operand, form = describe(name, array), self._forms[name]
        if operand.form is not form or operand.on_device is self._on_host:
            if operand.shape != form.shape:
                raise ValueError(f"{name} has shape {operand.shape}; the plan takes {form.shape}")
            self._check(operand)
        return operand

    def _result(self, name, array, inputs):
        """The operand to write to, checked but for its device."""
        result, form = describe(name, array), self._forms[name]
        if result.form is not form or result.on_device is self._on_host:
            self._check(result)
        check_out(result, form.shape, inputs)
        return result

    def _check(self, operand):
        """Refuse what a plan cannot use as it lies."""
        if not (self._stays_on_host(operand) or operand.on_device):
            raise TypeError(f"{operand.name} is on the host; a plan takes device arrays")
        if operand.dtype != self.dtype:
            raise TypeError(
                f"{operand.name} has dtype {operand.dtype}; the plan takes {self.dtype}"
            )
        if not operand.is_contiguous:
            raise ValueError(
                f"{operand.name} is not C-contiguous; a plan takes C-contiguous arrays"
            )
