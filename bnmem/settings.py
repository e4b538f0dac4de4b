"""Settings that check themselves, and profiles.

A settings class is a frozen dataclass made of `setting(...)` fields. A wrong name, type or value is an InputError that
lists what is allowed.
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from bnmem.errors import InputError

LARGEST, LARGEST_INT = 1e30, 10_000_000  # no setting means anything beyond
PROFILES = ("smoke", "laptop", "grid", "paper")


def setting(default, doc: str, choices: Iterable | None = None, low=None, high=None):
    """A dataclass field with what `Settings` needs to check it and what a reader needs to understand it.

    choices bounds each value (each item of a tuple); low and high are inclusive bounds for numbers. Never change a
    default: records are found by the fields that differ from it.
    """
    meta = {"doc": doc, "choices": tuple(choices) if choices else None, "low": low, "high": high}
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class Settings:
    """Base of all settings classes: checks every field against its type, choices and bounds."""

    def __post_init__(self):
        for f in fields(self):
            object.__setattr__(self, f.name, _checked(f, getattr(self, f.name)))

    @classmethod
    def of(cls, profile: str, overrides: Mapping | None = None) -> "Settings":
        """The profile's settings (`cls.profiles()`) with `overrides`; None in overrides leaves the profile's value."""
        profiles = cls.profiles()
        if profile not in profiles:
            raise InputError(f"unknown profile {profile!r}; choose one of {', '.join(profiles)}")
        given = {name: value for name, value in (overrides or {}).items() if value is not None}
        reject_unknown(given, [f.name for f in fields(cls)])
        return cls(**{**profiles[profile], **given})

    @classmethod
    def profiles(cls) -> dict[str, dict]:
        """Profile name -> the fields in which it differs from the defaults."""
        return {"laptop": {}}

    def changed(self) -> dict:
        """The fields that are not at their default, tuples as lists: what a record's key is made of."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def reject_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    known = sorted(known)
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise InputError(f"unknown parameter {name!r}{hint}; the parameters are {', '.join(known)}")


def _checked(f, value):
    kind = type(f.default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) <= LARGEST else math.inf
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    if type(value) is not kind:
        raise InputError(f"{f.name} must be {_NAMES[kind]}, not {value!r} ({f.metadata['doc']})")
    if kind is tuple:
        item = type(f.default[0])
        value = tuple(float(v) if item is float and type(v) is int and abs(v) <= LARGEST else v for v in value)
        if not value or any(type(v) is not item for v in value):
            raise InputError(f"{f.name} must be a list of one or more of {_NAMES[item]}, not {list(value)!r}")
    low, high, choices = (f.metadata[key] for key in ("low", "high", "choices"))
    for v in value if kind is tuple else (value,):
        if isinstance(v, float) and not abs(v) <= LARGEST:
            raise InputError(f"{f.name} must be a finite number, not {v!r} ({f.metadata['doc']})")
        if isinstance(v, int) and abs(v) > LARGEST_INT:
            raise InputError(f"{f.name} must be at most {LARGEST_INT:,} ({f.metadata['doc']})")
        if choices is not None and v not in choices:
            raise InputError(f"unknown {f.name} {v!r}; choose from {', '.join(map(str, choices))}")
        if (low is not None and not v >= low) or (high is not None and not v <= high):
            bounds = f"from {low} to {high}" if high is not None else f"{low} or larger"
            raise InputError(f"{f.name} must be {bounds}, not {v!r} ({f.metadata['doc']})")
    return value


_NAMES = {str: "a word", int: "a whole number", float: "a number", bool: "True or False", tuple: "a list"}
