"""The packaged robot models: MJCF with primitive geoms only, nothing to download."""

from __future__ import annotations

from pathlib import Path

from unilab.errors import ConfigError, did_you_mean

__all__ = ["model_path"]


def model_path(name: str) -> Path:
    """The MJCF file of a packaged robot model.

    Args:
        name: The model's file name without its ending, for instance ``"go2"``.

    Returns:
        The path of an existing ``.xml`` file.

    Raises:
        ConfigError: No such model is packaged.

    >>> model_path("go2").name
    'go2.xml'
    """
    models = {path.stem: path for path in Path(__file__).parent.glob("*.xml")}
    if name not in models:
        raise ConfigError(
            f"no robot model named {name!r}{did_you_mean(name, models)}; "
            f"the packaged ones are {', '.join(sorted(models))}"
        )
    return models[name]
