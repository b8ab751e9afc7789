"""provisional"""
import flax.linen as nn

from fedjax_drag.models.conv import Conv, max_pool


class LeNet(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x):
        x = max_pool(nn.relu(Conv(6, 5, "VALID")(x)))
        x = max_pool(nn.relu(Conv(16, 5, "VALID")(x))).reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(120)(x))
        x = nn.relu(nn.Dense(84)(x))
        return nn.Dense(self.num_classes)(x)


def lenet(num_classes: int):
    """A LeNet."""
    return LeNet(num_classes)
