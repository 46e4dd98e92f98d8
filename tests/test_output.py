"""Exit codes of commands that fail."""

from __future__ import annotations

import errno

import pytest

from unilab.errors import ConfigError
from unilab.output import exit_code


def failing(error: Exception, then: Exception | None = None) -> int:
    def run() -> None:
        try:
            raise error
        finally:
            if then is not None:
                raise then

    return exit_code(run)


@pytest.mark.parametrize(
    ("error", "then"),
    [
        (ConfigError("gamma must be less than 1"), None),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "robot.xml"), None),
        (OSError(errno.EMFILE, "Too many open files", "a.yaml"), UnboundLocalError("f")),
    ],
)
def test_expected_error_and_refused_file_are_one_line_and_code_2(capsys, error, then):
    assert failing(error, then) == 2
    assert capsys.readouterr().err == f"error: {error}\n"


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), KeyError("obs")])
def test_bug_is_raised(error):
    with pytest.raises(type(error)):
        failing(error)
