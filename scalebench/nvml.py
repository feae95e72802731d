"""Asking NVML, which may be missing, old, or refuse: no answer is None. Layer 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")
Ask = Callable[..., Any]


def or_none(question: Callable[[], T]) -> T | None:
    """The answer, or None: no fact about the machine is worth a failed run, whatever a driver throws."""
    try:
        return question()
    except Exception:
        return None


@contextmanager
def asking() -> Iterator[Ask]:
    """A function that asks NVML by name; None is the answer to what cannot be told, without NVML to all."""
    nvml: Any = None
    with suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        nvml = pynvml

    def ask(name: str, *args: Any) -> Any:
        value = or_none(lambda: getattr(nvml, name)(*args))
        return value.decode(errors="replace") if isinstance(value, bytes) else value  # bytes: older pynvml

    try:
        yield ask
    finally:
        ask("nvmlShutdown")
