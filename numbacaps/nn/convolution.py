"""A layer's convolution: a plan for one batch size, whose kernel is packed when it has changed."""

from numbacaps.plan import Plan


class Convolution(Plan):
    """A plan whose passes read what was packed, where they read a packed kernel.

    What it needs besides, the first call of each pass allocates; no other call does, so that they
    can be captured.
    """

    def compile(self, wanted):
        """Compile what a pass, "forward", "input" or "kernel", launches, its activation too."""
        passes = self._plain if wanted == "kernel" else self._of(wanted)
        passes.compile(wanted)

    @property
    def packs_forward(self):
        """The forward pass reads what :meth:`pack_forward` made of the kernel."""
        return self.packs("forward")

    @property
    def packs_backward(self):
        """The input's gradient reads what :meth:`pack_backward` made of the kernel."""
        return self.packs("input")

    def pack_forward(self, w, stream):
        """Make the forward pass ready for a kernel, which it takes until the kernel changes."""
        self.launch_pack("forward", w, stream)

    def pack_backward(self, w, stream):
        """The same for the input's gradient."""
        self.launch_pack("input", w, stream)

    def forward(self, x, w, out, stream):
        """Write the output; arrays in the geometry's layout."""
        self.launch_forward(x, w, out, stream, self.packs_forward)

    def forward_activated(self, x, w, sums, out, stream):
        """Write the sums and, behind the activation, the output; where it ``activates``."""
        self.launch_activated(x, w, sums, out, stream, self.packs_forward)

    def backward_input(self, w, dy, dx, stream):
        """Write the input's gradient."""
        self.launch_backward(None, w, dy, dx, None, stream, self.packs_backward)

    def backward_differentiated(self, w, dy, sums, dx, stream):
        """Write the gradient of the sums from which the activation made the input; where it ``differentiates``."""
        self.launch_differentiated(w, dy, sums, dx, stream, self.packs_backward)

    def backward_kernel(self, x, dy, dw, stream):
        """Write the kernel's gradient."""
        self.launch_backward(x, None, dy, None, dw, stream)
