"""Ranks divide an epoch: each sample once, or equally many batches for each, also where samples are skipped."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from packer import open_dataset
from tests.cases.loaders import FORKS
from tests.cases.processes import run_script
from tests.inputs import pack_here
from tests.loading import array_tree, fails_at, made

pytestmark = [
    # Python 3.12 and later warn of any fork beside threads; torch itself has some.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    pytest.mark.skipif(not FORKS, reason="no fork here"),
]

KINDS = ("2 threads", "0 workers", "1 worker")
SAMPLES = 23


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_here(array_tree(tmp_path_factory.mktemp("ranks") / "in", SAMPLES), "hdf5").output


def by_rank(kind: str, data: Any, world_size: int, **options: Any) -> list[list[list[int]]]:
    """The numbers of each batch of each rank's first epoch."""
    return [
        [batch[:, 0].tolist() for batch in made(kind, data, shuffle=True, rank=rank, world_size=world_size, **options)]
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_exact_ranks_give_each_sample_once(kind: str, arrays: Path) -> None:
    for world_size in (2, 3):
        ranks = by_rank(kind, open_dataset(arrays), world_size, even=False)
        assert sorted(itertools.chain(*itertools.chain(*ranks))) == list(range(SAMPLES))
        counts = [sum(map(len, batches)) for batches in ranks]
        assert max(counts) - min(counts) == 1


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_even_ranks_give_equally_many_batches_of_the_same_sizes(kind: str, drops: bool, arrays: Path) -> None:
    for world_size in (2, 3):
        ranks = by_rank(kind, open_dataset(arrays), world_size, drop_last=drops)
        sizes = [[len(batch) for batch in batches] for batches in ranks]
        assert sizes == [sizes[0]] * world_size
        given = set(itertools.chain(*itertools.chain(*ranks)))
        assert set(sizes[0]) == {4} if drops else given == set(range(SAMPLES))


@pytest.mark.parametrize("kind", KINDS)
def test_even_ranks_give_equally_many_batches_where_one_of_them_skips(kind: str, arrays: Path) -> None:
    expected = by_rank(kind, open_dataset(arrays), 2)
    unsound = expected[1][1][:2]
    ranks = by_rank(kind, open_dataset(arrays, transform=fails_at(*unsound)), 2, on_error="skip")
    assert [len(batches) for batches in ranks] == [3, 3]
    assert ranks[1][1] == expected[1][1][2:]
    assert sorted(itertools.chain(*ranks[0], *ranks[1], unsound)) == sorted(itertools.chain(*expected[0], *expected[1]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_one_rank_resumes_all_ranks(kind: str, arrays: Path) -> None:
    data = open_dataset(arrays)
    expected = by_rank(kind, data, 2)
    first = made(kind, data, shuffle=True, rank=0, world_size=2)
    for _ in first:
        break
    state = json.loads(json.dumps(first.state_dict()))
    for rank in (0, 1):
        loader = made(kind, data, shuffle=True, rank=rank, world_size=2)
        loader.load_state_dict(state)
        assert [batch[:, 0].tolist() for batch in loader] == expected[rank][1:]


SCRIPT = """
    import datetime, json, logging, multiprocessing, sys, time
    import torch
    import torch.distributed as dist
    from packer import PackerError, open_dataset
    from tests.loading import fails_at, made

    def train(rank, path, folder, answers):
        logging.disable()
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=90)
        )
        ranks = dict(shuffle=True, rank=rank, world_size=2)
        found = {}

        def loop(name, loader, together):
            numbers, sums = [], []
            for epoch in range(2):
                loader.set_epoch(epoch)
                for batch in loader:
                    numbers.append(batch[:, 0].tolist())
                    total = torch.tensor([len(batch)])
                    if together:
                        dist.all_reduce(total)
                    sums.append(int(total))
            found[name] = numbers, sums

        data, unsound = open_dataset(path), open_dataset(path, transform=fails_at(5, 6))
        for kind in ("2 threads", "1 worker"):
            loop(f"even, {kind}", made(kind, data, 3, **ranks), True)
            loop(f"skipping, {kind}", made(kind, unsound, 3, on_error="skip", **ranks), True)
            loop(f"exact, {kind}", made(kind, data, 3, even=False, **ranks), False)
            dist.barrier()
        answers.put((rank, found))
        # On rank 1 nothing is left of its second batch.
        numbers = [batch[:, 0].tolist() for batch in made("0 workers", data, 3, rank=rank, world_size=2)]
        failing = open_dataset(path, transform=fails_at(*numbers[1]) if rank else None)
        begun = time.monotonic()
        try:
            for batch in made("2 threads", failing, 3, on_error="skip", rank=rank, world_size=2):
                dist.all_reduce(torch.tensor([1]))
            answers.put((rank, "an epoch as if nothing had happened"))
        except PackerError as error:
            answers.put((rank, str(error)))
        except RuntimeError:
            answers.put((rank, "left alone" if time.monotonic() - begun < 60 else "left waiting"))

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    processes = [context.Process(target=train, args=(rank, *sys.argv[1:], answers)) for rank in (0, 1)]
    for process in processes:
        process.start()
    try:
        for _ in range(4):
            print(json.dumps(answers.get(timeout=60)))
        for process in processes:
            process.join()
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
    """


def test_two_processes_that_wait_for_each_other_at_every_batch(arrays: Path, tmp_path: Path) -> None:
    """gloo, with an all_reduce a batch: as many on one rank as on the other, or they would never end."""
    written = run_script(SCRIPT, arrays, tmp_path, torch=True, warnings=["error", "ignore::DeprecationWarning"])
    answers: list[Any] = [json.loads(line) for line in written.splitlines()]
    ranks = {rank: found for rank, found in answers if isinstance(found, dict)}
    assert set(ranks) == {0, 1}
    for kind in ("2 threads", "1 worker"):
        for name, sums in ((f"even, {kind}", [6, 6, 6, 6] * 2), (f"skipping, {kind}", None)):
            (first, total), (second, total_there) = ranks[0][name], ranks[1][name]
            assert total == total_there == [len(one) + len(other) for one, other in zip(first, second, strict=True)]
            assert sums is None or total == sums
        exact = [ranks[rank][f"exact, {kind}"][0] for rank in (0, 1)]
        given = [sorted(itertools.chain(*exact[0][epoch], *exact[1][epoch])) for epoch in (slice(4), slice(4, 8))]
        assert given == [list(range(SAMPLES))] * 2
        skipped = set(itertools.chain(*ranks[0][f"skipping, {kind}"][0], *ranks[1][f"skipping, {kind}"][0]))
        assert skipped == set(range(SAMPLES)) - {5, 6}
    last = {rank: found for rank, found in answers if isinstance(found, str)}
    assert "all 3 samples of a batch were skipped" in last[1]
    assert last[0] == "left alone"
