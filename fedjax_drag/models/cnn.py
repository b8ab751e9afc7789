"""provisional"""
import flax.linen as nn

from fedjax_drag.models.conv import Conv, max_pool


class CNN(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x):
        x = max_pool(nn.relu(Conv(32, 5)(x)))
        x = max_pool(nn.relu(Conv(64, 5)(x)))
        x = nn.relu(nn.Dense(512)(x.reshape(x.shape[0], -1)))
        return nn.Dense(self.num_classes)(x)


def cnn(num_classes: int, variant: str = "emnist"):
    """A CNN."""
    return CNN(num_classes)
