"""The plain PyTorch loop over clients, the baseline of a round."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as flax_nn
import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from benchmarks.networks import GROUPS, Network, Nnx
from fedjax_drag.data import FederatedDataset
from fedjax_drag.models import cnn, lenet
from fedjax_drag.models.mlp import MLP


def torch_round(
    model: flax_nn.Module | nn.Module,
    data: FederatedDataset,
    cohort_size: int,
    local_steps: int,
    batch_size: int,
    device: str = "cpu",
) -> Callable[[], None]:
    """A function that runs one FedAvg round as it is commonly written in PyTorch.

    Images are preprocessed once, before the loop, and a batch is a random index into them. All of it is on one device.

    Args:
      model: what runs, or the Flax module of a workload whose PyTorch counterpart runs.
      data: a partitioned data set.
      cohort_size: S.
      local_steps: U.
      batch_size: B.
      device: PyTorch's name of it. On ``"cuda"`` products of matrices and convolutions are TF32, as JAX's are by
        default.
    """
    assert data.rows is not None
    assert data.counts is not None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    images = torch.from_numpy(np.array(data.preprocess(data.train.x))).permute(0, 3, 1, 2).contiguous().to(device)
    labels = torch.from_numpy(data.train.y.astype(np.int64)).to(device)
    lists = [row[:count].astype(np.int64) for row, count in zip(data.rows, data.counts, strict=True)]
    rows = [torch.from_numpy(own).to(device) for own in lists]
    rng = np.random.default_rng(0)
    net: Any = (model if isinstance(model, nn.Module) else _counterpart(model)).to(device)
    theta = [p.detach().clone() for p in net.parameters()]
    loss_fn = nn.CrossEntropyLoss()

    def one_round() -> None:
        total = [torch.zeros_like(p) for p in theta]
        for client in rng.choice(len(rows), cohort_size, replace=False):
            with torch.no_grad():
                for p, start in zip(net.parameters(), theta, strict=True):
                    p.copy_(start)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
            for _ in range(local_steps):
                index = rows[client][torch.randint(len(rows[client]), (batch_size,), device=device)]
                optimizer.zero_grad()
                loss_fn(net(images[index]), labels[index]).backward()
                optimizer.step()
            for acc, p, start in zip(total, net.parameters(), theta, strict=True):
                acc += p.detach() - start
        for start, acc in zip(theta, total, strict=True):
            start += acc / cohort_size
        if device == "cuda":
            torch.cuda.synchronize()

    return one_round


def torch_device() -> str:
    """PyTorch's name of the kind of device that JAX computes on; ``"cpu"`` where PyTorch cannot use it."""
    return "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"


def _counterpart(model: flax_nn.Module) -> Any:
    """The PyTorch form of a workload's network, for its images and ten classes."""
    if isinstance(model, MLP):
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10))
    if model == lenet(10):
        return nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip
    if model == cnn(10, "pooled_once"):
        return nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip
    assert model == cnn(10)
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


class TorchNetwork(nn.Module):
    """A network of :mod:`benchmarks.networks`, made for images of a shape ``[H, W, C]``."""

    def __init__(self, network: Network, shape: Sequence[int]) -> None:
        super().__init__()
        self.network, self.made = network, nn.ModuleList()
        network(_Torch(self.made, "made"), torch.zeros(1, shape[2], *shape[:2]))

    def forward(self, x: Any) -> Any:
        return self.network(_Torch(self.made), x)


class _Torch(Nnx):
    """PyTorch's layers; images have their channels first."""

    space = (2, 3)
    relu = staticmethod(torch.relu)

    def plain(self, x: Any, features: int, k: int, stride: int = 1, same: bool = False) -> Any:
        return self.layer(lambda: nn.Conv2d(x.shape[1], features, k, stride, same * (k // 2), bias=not same))(x)

    def dense(self, x: Any, features: int) -> Any:
        return self.layer(lambda: nn.Linear(x.shape[-1], features))(x)

    def norm(self, x: Any) -> Any:
        return self.layer(lambda: nn.GroupNorm(GROUPS, x.shape[1]))(x)

    def pool(self, x: Any) -> Any:
        return nn.functional.max_pool2d(x, 2)
