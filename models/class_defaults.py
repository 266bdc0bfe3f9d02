"""Dimensions that the config class of a nested language model takes where the file leaves them out."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path


@cache
def class_defaults() -> dict[str, dict[str, int]]:
    """By model_type; the numbers are in the file beside this one."""
    text = Path(__file__).with_suffix(".toml").read_text("utf-8")
    return {name: value for name, value in tomllib.loads(text).items() if isinstance(value, dict)}
