"""Matrix capsules (Hinton, Sabour and Frosst 2018, "Matrix capsules with EM routing"): poses that cluster.

A capsule is a pose, a matrix of 4x4, and an activation. With A = B = C = D = 32, of a digit of 28x28:

===========  ==========================================================  ====================  ==========
layer        what it does                                                result                parameters
===========  ==========================================================  ====================  ==========
Conv1        A windows of 5x5, stride 2, ReLU                            A x 14 x 14                  832
PrimaryCaps  of every position alone: B poses, linear, and their         B x 14 x 14 x (16+1)      17,952
             activations, sigmoid
ConvCaps1    windows of 3x3, stride 2: EM routing to C parents           C x 6 x 6 x (16+1)       147,520
ConvCaps2    windows of 3x3: EM routing to D parents                     D x 4 x 4 x (16+1)       147,520
class        all D x 4 x 4 children: EM routing to a parent a class      10 x (16+1)                5,140
===========  ==========================================================  ====================  ==========

The paper's small one has A = 64, B = 8, C = D = 16, and 68 thousand parameters in place of 319 thousand.

A child votes for a parent's pose by its own pose times the parent's matrix. EM routing fits a Gaussian to the votes of each
parent. A parent is active if its votes lie close together.

Two things are special about the class layer. A capsule type has one matrix at all positions, for what it saw looks alike
anywhere. So that its position is not lost, **coordinate addition** adds the row and the column of its receptive field's
centre to two elements of its votes, those of a translation. A matrix of 4x4 does so by homogeneous coordinates: a fifth
column of the pose holds row and column, and a fifth row of the matrix, (0, 0, 0, 1), sends it to the last column of the
vote.

    [ pose | row    ]   [    matrix     ]
    [      | column ] x [               ]  =  pose x matrix, plus (row, column, 0, 0) in the last column
    [      | 0      ]   [---------------]
    [      | 0      ]   [ 0   0   0   1 ]

So the votes stay a product, and :func:`numbacaps.torch.capsule_routing` computes them without storing one. The twin adds
the coordinates to stored votes, as the paper says it.

Trained as in the paper: the spread loss, whose margin grows linearly from 0.2 to 0.9, batches of 64, and a weight decay of
2e-7. The paper names neither a learning rate nor initial weights, so these are choices of ours. It sees objects of 32x32;
Conv1's padding of 2 gives a digit the same grids.

EM routing divides by variances, so in float32 the network and its twin, both as close to float64, drift apart within some
tens of steps: compare their accuracies over seeds, not their losses step by step.
"""

from experiments.measuring import opponents
from experiments.training import stored_votes
from experiments.training.schedules import DecayingAdam, Ramp

torch = opponents.torch()
import numbacaps.torch as nt  # noqa: E402  (where torch is)

nn = torch.nn
MARGIN = Ramp(0.2, 0.9, steps=2480)  # 40 epochs of 4,000 digits
_POSE = 4
_CONV1 = 5  # window of Conv1, of which half is padding


class ClassCapsules(nn.Module):
    """A capsule a class, of all capsules of a grid: one matrix for a type and a class, and coordinate addition.

    Parameters
    ----------
    in_channels, classes : int
    places : Tensor (H, W, 2)
        Row and column of every position.

    Attributes
    ----------
    weight : Parameter (classes, in_channels, 4, 4)
    beta_u, beta_a : Parameters (classes,)
    """

    def __init__(self, in_channels, classes, places):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, in_channels, _POSE, _POSE))
        self.beta_u = nn.Parameter(torch.zeros(classes))
        self.beta_a = nn.Parameter(torch.zeros(classes))
        places = nn.functional.pad(places, (0, _POSE - 2))[..., None]  # (H, W, 4, 1)
        self.register_buffer("places", places, persistent=False)
        row = torch.tensor([0.0] * (_POSE - 1) + [1.0])
        self.register_buffer("row", row, persistent=False)

    def forward(self, poses, activations):
        """Poses (N, classes, 4, 4) and activations (N, classes) of the classes.

        Parameters
        ----------
        poses : Tensor (N, in_channels, H, W, 4, 4)
        activations : Tensor (N, in_channels, H, W)
        """
        x = torch.cat((poses, self.places.expand(*poses.shape[:5], 1)), 5)
        w = torch.cat((self.weight, self.row.expand(*self.weight.shape[:2], 1, -1)), 2)
        w = w[:, :, None, None].expand(-1, -1, *poses.shape[2:4], -1, -1).contiguous()
        betas = {"beta_u": self.beta_u, "beta_a": self.beta_a}
        y, a = nt.capsule_routing(x, w, activations=activations, **betas, routing="em")
        return y[:, :, 0, 0], a[:, :, 0, 0]


class StoredClassCapsules(ClassCapsules):
    """The same with stored votes, to which the coordinates are added."""

    def forward(self, poses, activations):
        """As :meth:`ClassCapsules.forward`."""
        made = torch.einsum("ncyxab,pcbd->npcyxad", poses, self.weight)
        V = made + nn.functional.pad(self.places, (_POSE - 1, 0))  # to the last column
        V = V.flatten(5).flatten(2, 4)[:, :, None, None]  # (N, P, 1, 1, I, 16)
        a = activations.flatten(1)[:, None, None, None]
        mu, a_out = stored_votes.em(V, a, self.beta_u, self.beta_a)
        return mu[:, :, 0, 0].unflatten(-1, (_POSE, _POSE)), a_out[:, :, 0, 0]


class MatrixCapsNet(nn.Module):
    """The matrix capsule network, with routing that stores no votes.

    Parameters
    ----------
    side : int
        Rows and columns of an image.
    filters : int
        A.
    capsules : three int
        B, C and D.
    window, stride : int
        Of both ConvCaps, and of Conv1.
    classes : int

    Raises
    ------
    ValueError
        The image is too small for the windows.
    """

    adam = DecayingAdam(rate=1e-2, decay=0.5, every=500, weight_decay=2e-7)
    conv_layer, class_layer = nt.RoutedCapsuleConv2d, ClassCapsules

    def __init__(self, side=28, filters=32, capsules=(32, 32, 32), window=3, stride=2, classes=10):
        super().__init__()
        B, C, D = capsules
        places = centres(side, window, stride)
        self.conv1 = nn.Conv2d(1, filters, _CONV1, stride, padding=_CONV1 // 2)
        self.poses = nn.Conv2d(filters, B * _POSE * _POSE, 1)
        self.activations = nn.Conv2d(filters, B, 1)
        self.caps1 = self.conv_layer(B, C, window, stride=2, routing="em")
        self.caps2 = self.conv_layer(C, D, window, routing="em")
        self.classes = self.class_layer(D, classes, places)
        for layer in (self.caps1, self.caps2, self.classes):
            nn.init.normal_(layer.weight, std=_POSE**-0.5)  # votes vary as poses do

    def forward(self, x, labels=None):
        """See digits.

        Parameters
        ----------
        x : Tensor (N, 1, side, side, 1, 1)
        labels
            Not looked at.

        Returns
        -------
        poses : Tensor (N, classes, 4, 4)
        activations : Tensor (N, classes)
        """
        features = self.conv1(x[..., 0, 0]).relu()
        a = self.activations(features).sigmoid()
        grid = self.poses(features).unflatten(1, (-1, _POSE * _POSE))  # (N, B, 16, rows, columns)
        poses = grid.movedim(2, -1).contiguous().unflatten(-1, (_POSE, _POSE))
        return self.classes(*self.caps2(*self.caps1(poses, a)))

    def loss(self, outputs, x, labels, step):
        """Sum of the images' losses, of what :meth:`forward` returned, with the margin of a step."""
        return nt.spread_loss(outputs[1], labels, MARGIN.at(step), reduction="sum")

    @staticmethod
    def test_loss(activations, labels):
        """Mean spread loss with the last margin, so that epochs can be compared."""
        return nt.spread_loss(activations, labels, MARGIN.last)


class MatrixCapsNetTwin(MatrixCapsNet):
    """The same with stored votes, routed by plain PyTorch."""

    conv_layer, class_layer = stored_votes.StoredConv2d, StoredClassCapsules


def centres(side, window=3, stride=2):
    """Row and column (H, W, 2) of the centres of the receptive fields of ConvCaps2, from 0 to 1 across the image.

    Raises
    ------
    ValueError
        ConvCaps2 has no position.
    """
    primary = (side - 1) // stride + 1
    rows = (primary - window) // 2 + 1 - (window - 1) if primary >= window else 0
    if rows < 1:
        least = stride * (3 * window - 3) + 1
        raise ValueError(f"side is {side}; windows of {window} take {least} or more")
    first = (window - 1) / 2 * stride * (1 + 2)  # half a window of ConvCaps1, and half of ConvCaps2
    at = (first + 2 * stride * torch.arange(rows) + 0.5) / side
    return torch.stack(torch.meshgrid(at, at, indexing="ij"), 2)
