"""What all tests share: one parameter for the formats, one setting for hypothesis, and the option ``--long``."""

from __future__ import annotations

import gc
import signal

import pytest
from hypothesis import HealthCheck, Phase, settings

from packer import formats

# A shell starts what it runs in the background deaf to Ctrl-C, which all processes that tests interrupt would inherit.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "packer",
    deadline=None,  # packing syncs to a disk, which takes as long as it takes
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],  # the explanations take a minute where an example packs
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("packer")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="repeat what a short run samples, as often as it takes to be sure")


@pytest.fixture(scope="session")
def long_run(request: pytest.FixtureRequest) -> bool:
    """Whether all is to be done, and not only what fits into a run of the whole suite."""
    return bool(request.config.getoption("--long"))


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end, and need not be gone through whenever a test collects garbage."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an argument ``format_name`` runs once for every format there is."""
    if "format_name" in metafunc.fixturenames:
        metafunc.parametrize("format_name", formats.names())
