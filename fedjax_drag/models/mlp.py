"""provisional"""
import flax.linen as nn


class MLP(nn.Module):
    num_classes: int
    hidden: tuple

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        for h in self.hidden:
            x = nn.relu(nn.Dense(h)(x))
        return nn.Dense(self.num_classes)(x)


def mlp(num_classes: int, hidden=(500,)):
    """An MLP."""
    return MLP(num_classes, tuple(hidden))
