"""Types of command line options."""

from __future__ import annotations

import argparse


def positive_int(text: str) -> int:
    """A whole number of at least 1.

    Raises:
        argparse.ArgumentTypeError: it is none; argparse shows the message.
    """
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def whole_number(text: str) -> int:
    """A whole number of at least 0.

    Raises:
        argparse.ArgumentTypeError: it is none; argparse shows the message.
    """
    return 0 if text == "0" else positive_int(text)
