"""Single values of a gemlet.toml: read, each with an error that says what was found and what was expected, and written.

Standard library only: `gemlet run` imports this.
"""

from __future__ import annotations

import json

from gemlet.config import quantities
from gemlet.errors import InvalidValue

MAX_UID = 2**32 - 2  # the last one means "none" to the kernel
MAX_USER_CHARACTERS = 256  # LOGIN_NAME_MAX of Linux


def read_share(value: object) -> float:
    """A number in 0..1, or a text such as "30%". Raises InvalidValue."""
    if isinstance(value, str):
        return quantities.parse_share(value)
    return quantities.check_share(_number(value, 'a share such as 0.3 or "30%"'))


def read_size(value: object) -> int:
    """Bytes, or a text such as "8GiB". Raises InvalidValue."""
    if isinstance(value, str):
        return quantities.parse_size(value)
    if isinstance(value, float):
        raise InvalidValue(
            f"{value:g} is not a whole number of bytes: expected bytes or a size with a unit",
            hint=f'write it with a unit, such as "{value:g}GiB"',
        )
    return quantities.check_size(int(_number(value, 'bytes or a size such as "8GiB"')))


def read_factor(value: object) -> float:
    """A positive number. Raises InvalidValue."""
    return quantities.check_factor(_number(value, "a positive number"))


def read_slowdown(value: object) -> float:
    """A number of 1 or more. Raises InvalidValue."""
    return quantities.check_slowdown(_number(value, "a number of 1 or more"))


def one_of(value: object, known: tuple[str, ...]) -> str:
    """``value`` if it is one of ``known``. Raises InvalidValue."""
    if not isinstance(value, str):
        raise InvalidValue(f"expected a text, found {kind_of(value)}", hint=f"write one of {', '.join(known)}")
    if value not in known:
        from gemlet.config import suggest as did_you_mean  # imports difflib

        expected = f"expected one of {', '.join(known)}"
        raise InvalidValue(f"unknown value {value!r}: {expected}", hint=did_you_mean.hint(value, known))
    return value


def kind_of(value: object) -> str:
    """What a value of TOML is, for messages."""
    kinds = {
        bool: "true or false",
        str: "a text",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "a section",
    }
    return kinds.get(type(value), "a date or time")


def render_size(size: int) -> str:
    """Bytes as TOML."""
    text = quantities.exact_size(min(size, quantities.MAX_BYTES))
    return text if text.isdecimal() else render_text(text)


def render_text(text: str) -> str:
    """A string of TOML. Its escapes are those of JSON, and DEL, which JSON leaves as it is, has to be one."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_fraction(value: object) -> float:
    """As read_share, but above 0. Raises InvalidValue."""
    return quantities.check_fraction(read_share(value))


def read_names(value: object) -> tuple[str, ...]:
    """A list of user names. Raises InvalidValue."""
    if isinstance(value, list) and all(isinstance(name, str) and name for name in value):
        return check_users(tuple(value))
    found = "an entry that is not a name" if isinstance(value, list) else kind_of(value)
    raise InvalidValue(f"expected a list of user names, found {found}", hint='write a list such as ["ana", "ben"]')


def check_users(users: tuple[str, ...]) -> tuple[str, ...]:
    """``users`` itself. Raises InvalidValue for text that cannot name a user, whether or not this machine knows such a
    user."""
    for user in users:
        if not user or len(user) > MAX_USER_CHARACTERS or not user.isprintable() or ":" in user:
            raise InvalidValue(f"{user[:40]!r} cannot be the name of a user", hint="write a name or a uid")
        if user.isascii() and user.isdecimal() and int(user) > MAX_UID:
            raise InvalidValue(f"{user} is not a uid: expected 0 to {MAX_UID}", hint="write a name or a uid")
    return users


def _number(value: object, what: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            float(value)
        except OverflowError:  # hexadecimal digits cost little to write
            raise InvalidValue(f"expected {what}, found a number of {value.bit_length()} bits") from None  # type: ignore[union-attr]
        return value
    raise InvalidValue(f"expected {what}, found {kind_of(value)}", hint=f"write {what}")
