"""CapsNet (Sabour, Frosst and Hinton 2017, "Dynamic routing between capsules"): digits as vectors that agree.

Four layers see a digit of 28x28, and three draw it again:

===========  ==========================================================  ==================  ==========
layer        what it does                                                result              parameters
===========  ==========================================================  ==================  ==========
Conv1        256 windows of 9x9, ReLU                                    256 x 20 x 20           20,992
PrimaryCaps  windows of 9x9, stride 2: 32 capsules of 8 elements at a    32 x 6 x 6 x 8       5,308,672
             position, squashed
DigitCaps    1,152 children vote by a matrix of their own for each of    10 x 16              1,474,560
             10 parents, and dynamic routing weighs the votes
decoder      512 and 1024 ReLUs, a sigmoid for every pixel               28 x 28              1,411,344
===========  ==========================================================  ==================  ==========

The length of a class capsule says whether its digit is there; its direction says how it is written. The decoder sees the
capsule of the label alone (in a test, the longest one), so that capsule has to hold all that the picture takes.

DigitCaps is where stored votes cost: 1,152 x 10 x 16 of them an image, read five times in three iterations.
:class:`SabourCapsNet` leaves them to :class:`numbacaps.torch.RoutedCapsuleLinear`, which stores none, and
:class:`SabourCapsNetTwin` to plain PyTorch. PrimaryCaps is a capsule convolution, whose capsules of one element are Conv1's
features; the twin's is ``torch.nn.Conv2d``. All else is the same code, and each loads the other's weights.

Trained as in the paper: margin loss, and 0.0005 of the squared differences of all pixels; Adam with TensorFlow's defaults
and a decaying rate. The paper names neither the decay nor the initial weights, so these are choices of ours. Its shifts by
up to 2 pixels are left out.
"""

from experiments.measuring import opponents
from experiments.training.modules import CLASS, PRIMARY, primary_grid
from experiments.training.schedules import DecayingAdam
from experiments.training.stored_votes import StoredLinear

torch = opponents.torch()
import numbacaps.torch as nt  # noqa: E402  (where torch is)

nn = torch.nn
_RECONSTRUCTION = 0.0005  # of the squared differences, so that the margin loss has the say
_STD = 0.1  # of DigitCaps' first weights


class PrimaryCaps(nn.Conv2d):
    """PrimaryCaps as a capsule convolution; its parameters lie as those of :class:`ConvolvedPrimaryCaps`.

    Attributes
    ----------
    precision : str
        How float32 is multiplied on CUDA devices.
    """

    precision = "auto"

    def forward(self, features):
        """Capsules (N, capsules, rows, columns, 8) of features (N, filters, H, W)."""
        w = self.weight.unflatten(0, (-1, PRIMARY)).movedim(1, -1)  # (capsules, filters, KH, KW, 8)
        how = {"stride": self.stride, "precision": self.precision}
        y = nt.capsule_conv2d(features[..., None, None], w[..., None, :], **how)
        return y[..., 0, :] + self.bias.view(-1, 1, 1, PRIMARY)


class ConvolvedPrimaryCaps(nn.Conv2d):
    """The same by PyTorch's own convolution."""

    def forward(self, features):
        """As :meth:`PrimaryCaps.forward`."""
        return super().forward(features).unflatten(1, (-1, PRIMARY)).movedim(2, -1)


class SabourCapsNet(nn.Module):
    """CapsNet, with routing that stores no votes.

    Parameters
    ----------
    side : int
        Rows and columns of an image.
    filters, capsules, window : int
        Of Conv1, of PrimaryCaps at a position, and of both.
    classes : int
    hidden : pair of int
        Units of the decoder's first two layers.

    Raises
    ------
    ValueError
        The image is smaller than the two windows.
    """

    adam = DecayingAdam()
    primary_layer, routed_layer = PrimaryCaps, nt.RoutedCapsuleLinear

    def __init__(self, side=28, filters=256, capsules=32, window=9, classes=10, hidden=(512, 1024)):
        super().__init__()
        grid = primary_grid(side, window)
        self.side, self.classes = side, classes
        self.conv1 = nn.Conv2d(1, filters, window)
        self.primary = self.primary_layer(filters, capsules * PRIMARY, window, stride=2)
        self.digits = self.routed_layer(capsules * grid * grid, classes, (1, PRIMARY), (1, CLASS))
        self.decoder = nn.Sequential(
            nn.Linear(classes * CLASS, hidden[0]),
            nn.ReLU(),
            nn.Linear(hidden[0], hidden[1]),
            nn.ReLU(),
            nn.Linear(hidden[1], side * side),
            nn.Sigmoid(),
        )
        nn.init.normal_(self.digits.weight, std=_STD)

    def forward(self, x, labels=None):
        """See digits, and draw them again.

        Parameters
        ----------
        x : Tensor (N, 1, side, side, 1, 1)
            From 0 to 1.
        labels : int64 Tensor (N,), optional
            Whose capsules are drawn; by default the longest.

        Returns
        -------
        capsules : Tensor (N, classes, 16)
        lengths : Tensor (N, classes)
        images : Tensor (N, side, side)
        """
        features = self.conv1(x[..., 0, 0]).relu()
        u = nt.squash(self.primary(features)).flatten(1, 3)  # (N, children, 8)
        v = self.digits(u[:, :, None])[:, :, 0]
        lengths = torch.linalg.vector_norm(v, dim=2)
        drawn = lengths.argmax(1) if labels is None else labels
        mask = nn.functional.one_hot(drawn, self.classes).to(v.dtype)
        images = self.decoder((v * mask[..., None]).flatten(1))
        return v, lengths, images.unflatten(1, (self.side, self.side))

    def loss(self, outputs, x, labels, step):
        """Sum of the images' losses, of what :meth:`forward` returned; the same at every step."""
        _, lengths, images = outputs
        squares = (images - x[:, 0, :, :, 0, 0]).square().sum()
        return nt.margin_loss(lengths, labels, reduction="sum") + _RECONSTRUCTION * squares

    @staticmethod
    def test_loss(lengths, labels):
        """Mean margin loss, which needs no image."""
        return nt.margin_loss(lengths, labels)


class SabourCapsNetTwin(SabourCapsNet):
    """The same with stored votes, routed by plain PyTorch, and PyTorch's convolution."""

    primary_layer, routed_layer = ConvolvedPrimaryCaps, StoredLinear
