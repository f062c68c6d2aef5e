"""Every error gemlet raises on purpose.

    GemletError                 exit code 125, like docker's and timeout(1)'s own failures
      UsageError                flags or arguments that make no sense (exit code 2)
        InvalidValue            an invalid share, size or name; file readers add its place
      ConfigError               a configuration file: knows file, line and column
      DaemonError               the daemon cannot be reached, started or understood
        DaemonUnreachable
        Refused                 the daemon understood and said no
      DeviceError               no such device, no driver

A message says what and where, a hint what to do. The command line prints them as `error:` and `hint:`.
"""

from __future__ import annotations


class GemletError(Exception):
    """Base of all. ``hint`` is one line for the user, or None."""

    exit_code = 125

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(GemletError):
    exit_code = 2


class InvalidValue(UsageError):
    pass


class ConfigError(GemletError):
    """A configuration file is wrong. ``line`` and ``column`` count from 1; None where the file as a whole is meant.

    ``others`` are the further errors of the same file, in the order of their lines: a reader reports them all at once.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str,
        line: int | None = None,
        column: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.line = line
        self.column = column
        self.others: tuple[ConfigError, ...] = ()

    def __str__(self) -> str:
        where = self.path
        if self.line is not None:
            where += f":{self.line}"
            if self.column is not None:
                where += f":{self.column}"
        return f"{where}: {self.message}"


class NotBuilt(GemletError):
    """The native module is missing, or is not for this system."""

    def __init__(self, error: ImportError) -> None:
        super().__init__(
            f"gemlet._native cannot be loaded: {error}", hint="reinstall gemlet, or build it with `make native`"
        )


class DaemonError(GemletError):
    pass


class DaemonUnreachable(DaemonError):
    pass


class Refused(DaemonError):
    pass


class DeviceError(GemletError):
    pass
