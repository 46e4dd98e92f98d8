"""Left-right mirror images of transitions, for robots that are symmetric."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.envs.transforms import Transform

from unilab.errors import ConfigError

Mirror = Mapping[NestedKey, tuple[Tensor, Tensor]]
"""By key: index and sign ``[width]``, with which ``mirrored = value[..., index] * sign``."""


class SymmetryTransform(Transform):
    """Mirrors a share of each batch that a replay buffer samples.

    It acts on the first rows of the batch: samplers draw rows in random order, so no further draw
    is needed. Entries of the mirror and their ``("next", ...)`` are mirrored; rewards and flags
    stay.

    Args:
        mirror: ``env.mirror``, or a mapping of your own keys.
        share: part of the rows that is mirrored.

    Examples:
        >>> import torch
        >>> from unilab.data import SymmetryTransform, make_replay_buffer
        >>> buffer = make_replay_buffer(1_000, batch_size=4, keys=["obs", ("next", "obs")])
        >>> lateral = {"obs": (torch.tensor([0, 1]), torch.tensor([1.0, -1.0]))}  # vx, vy
        >>> buffer = buffer.append_transform(SymmetryTransform(lateral))
        >>> ones = torch.ones(8, 2)
        >>> data = TensorDict({"obs": ones, ("next", "obs"): ones}, [8])
        >>> _ = buffer.extend(data)
        >>> buffer.sample()["obs"][:, 1]
        tensor([-1., -1.,  1.,  1.])
    """

    def __init__(self, mirror: Mirror, share: float = 0.5) -> None:
        super().__init__()
        if not isinstance(mirror, Mapping) or not mirror:
            raise ConfigError(
                f"mirror must map keys to index and sign, got {mirror!r}: declare the mirror of "
                "the task, or train without symmetry"
            )
        if not 0.0 < share <= 1.0:
            raise ConfigError(f"share must be in (0, 1], got {share}")
        self._mirror = dict(mirror)
        self._share = share

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not tensordict.batch_dims:  # buffer[i]
            return tensordict
        rows = round(self._share * tensordict.batch_size[0])
        return _reflect(tensordict, self._mirror, rows)


def mirrored(data: TensorDictBase, mirror: Mirror) -> TensorDictBase:
    """The mirror image of data, ``[*B]``; entries that do not change are shared with it.

    For augmentation: ``torch.cat([data, mirrored(data, mirror)])``.
    """
    return _reflect(data.copy(), dict(mirror), data.batch_size[0])


def _reflect(
    data: TensorDictBase, mirror: dict[NestedKey, tuple[Tensor, Tensor]], rows: int
) -> TensorDictBase:
    """Replace entries of the data by ones whose first rows are mirrored."""
    for key, (index, sign) in mirror.items():
        value = data.get(key, None)
        if value is None:
            raise ConfigError(f"the data must have {key!r} of the mirror, got none")
        if value.shape[-1] != index.shape[0]:
            raise ConfigError(
                f"{key!r} must have {index.shape[0]} columns as in the mirror, got "
                f"{value.shape[-1]}"
            )
        if index.device != value.device:
            mirror[key] = index, sign = index.to(value.device), sign.to(value.device)
        following = ("next", key) if isinstance(key, str) else ("next", *key)
        for place in (key, following):
            value = data.get(place, None)
            if value is not None:
                image = value[:rows].index_select(-1, index).mul_(sign)
                data.set(place, torch.cat((image, value[rows:])))
    return data
