"""Commands in hints and messages, as a person types them: what others have named, as groups and paths, is quoted for a
shell, and the daemon of the simulated machine is asked for by its option."""

from __future__ import annotations

SIMULATE = "--simulate"


def command(*words: object, simulated: bool = False) -> str:
    """``gemlet`` with ``words``, in one line. ``simulated``: for the simulated machine."""
    texts = [str(word) for word in words]
    if simulated:
        texts.insert(texts.index("--") if "--" in texts else len(texts), SIMULATE)
    return " ".join(("gemlet", *map(quoted, texts)))


def on_group(verb: str, group: str, *options: str, simulated: bool = False) -> str:
    """A command whose argument is a group."""
    if group.startswith("-"):  # which would be taken for an option
        return command(verb, *options, "--", group, simulated=simulated)
    return command(verb, group, *options, simulated=simulated)


def quoted(text: object) -> str:
    """One word as a shell reads it back."""
    word = str(text)
    if word.isascii() and word.replace("-", "").isalnum():
        return word
    import shlex  # noqa: PLC0415  on the run path, whose one line for people has no other words

    return shlex.quote(word)
