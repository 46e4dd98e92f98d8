"""Import of an actor's builder, and which functions and classes may be one.

A checkpoint names its builder, and one of unknown origin may name anything: ``os:system`` is a
dotted path too. What a path may name is decided here, before it is called.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import sysconfig
import typing
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

from torch import nn

from unilab.errors import ActorContractError

#: what unilab is built on; actors are defined elsewhere.
_LIBRARIES = (
    "av cloudpickle dm_control functorch gymnasium hydra matplotlib mujoco numpy omegaconf onnx "
    "onnxruntime onnxscript pytest rich rsl_rl tensorboard tensordict torch torchgen torchrl tqdm"
)


def import_builder(path: str) -> Callable[..., Any]:
    """The builder at ``pkg.module:name``, imported and not called.

    A builder is a class of ``nn.Module``, or a function or class method that is annotated to
    return one, defined outside the standard library and the libraries that unilab is built on. Of
    unilab itself only classes are builders. The package is checked before it is imported, because
    an import runs code.

    Raises:
        ActorContractError: it is another object, or cannot be imported.
    """
    module, _, name = path.partition(":")
    if "__main__" in module.split("."):
        raise _refused(path, "be importable in every process", f"the script {module}", "move it")
    _check_package(path, module)
    try:
        found: Any = importlib.import_module(module)
        for i, part in enumerate(name.split(".")):
            if i and not isinstance(found, type):
                raise _refused(path, "be defined in its module or in a class", f"{found!r}")
            found = getattr(found, part)
    except ActorContractError:
        raise
    except Exception as error:  # third-party code may raise anything
        raise ActorContractError(
            f"actor builder {path!r} must be importable in every training process, got "
            f"{type(error).__name__}: {error}"
        ) from error
    _check_builder(path, found)
    return found


def _check_package(path: str, module: str) -> None:
    """Refuse a module of Python or of a library; finds its package without importing it."""
    package = module.partition(".")[0]
    if package in _LIBRARIES.split() or _of_python(package):
        raise _refused(path, "be of a package that defines actors", module)


def _of_python(package: str) -> bool:
    if package in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # imported in a way that left no spec
        return False
    # Python's own tests are in its folder, but not among the names.
    file = Path(spec.origin or "") if spec is not None else Path()
    installed = {"site-packages", "dist-packages"}.intersection(file.parts)
    return Path(sysconfig.get_path("stdlib")) in file.parents and not installed


def _check_builder(path: str, found: Any) -> None:
    """Refuse what is not a class of modules, nor annotated to return a module."""
    bound = isinstance(found, MethodType) and isinstance(found.__self__, type)
    if not bound and not isinstance(found, type | FunctionType):
        raise _refused(path, "be a class or a function", f"{found!r}")
    _check_package(path, str(found.__module__))  # a path may lead to what its module imports
    if isinstance(found, type):
        if not issubclass(found, nn.Module):
            raise _refused(path, "be a class of nn.Module", f"{found!r}")
        return
    if found.__module__.partition(".")[0] == "unilab":
        raise _refused(path, "be a class, if it is unilab's", f"{found!r}")
    given = found.__annotations__.get("return", "nothing")
    function = inspect.unwrap(found)
    try:
        # The return annotation alone: others may name what only type checkers import.
        alone = SimpleNamespace(__annotations__={"return": given})
        hint = typing.get_type_hints(alone, getattr(function, "__globals__", {}))["return"]
    except Exception:  # any code may stand there
        hint = None
    if hint is typing.Self and bound:
        hint = found.__self__
    if not (isinstance(hint, type) and issubclass(hint, nn.Module)):
        raise _refused(
            path,
            "be annotated to return an nn.Module",
            f"{found.__qualname__} -> {given}",
            f'write "def {function.__name__}(...) -> nn.Module:"',
        )


def _refused(path: str, wanted: str, got: str, fix: str = "") -> ActorContractError:
    fix = fix or 'name your actor\'s class, or a function "def build(...) -> nn.Module:"'
    return ActorContractError(f"actor builder {path!r} must {wanted}, got {got}: {fix}")
