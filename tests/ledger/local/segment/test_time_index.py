from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.ledger.local.io.fd_cache import FdCache
from pulsemark.ledger.local.io.files import Files
from pulsemark.ledger.local.segment.index_file import (
    CHUNK_ROWS,
    TRAILER_SIZE,
    Trailer,
    chunk_offset,
    index_seed,
)
from pulsemark.ledger.local.segment.segment_format import SegmentHeader
from pulsemark.ledger.local.segment.time_index import ChunkCache, TimeIndex
from pulsemark.ledger.run import IoCount

FLOOR_MS = 1000
COUNTS = sorted({0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, 4095, 4096, 4097, 10_000})


@dataclass
class Rows:
    """What was appended: the model beside the index."""

    times: list[int]
    counts: list[int]
    sizes: list[int]

    @classmethod
    def some(cls, count: int, seed: int = 0) -> "Rows":
        """Rows with times in no order, entries of 0 to 3 messages, records of any size."""
        random = Random(seed)
        return cls(
            [max(0, FLOOR_MS + 2 * n + random.randint(-40, 40)) for n in range(count)],
            [random.choice([0, 1, 1, 1, 3]) for _ in range(count)],
            [random.randint(40, 90) for _ in range(count)],
        )

    def maxima(self) -> list[int]:
        """Running maxima of times, from the floor on."""
        return list(accumulate(self.times, max, initial=FLOOR_MS))[1:]

    def nexts(self) -> list[int]:
        """Messages up to and with each row."""
        return list(accumulate(self.counts))

    def ends(self) -> list[int]:
        """Where each record ends; the first begins at 136."""
        return list(accumulate(self.sizes, initial=136))[1:]


class Bench:
    """One index file, and any number of indexes over it."""

    def __init__(self, path):
        self.files = Files()
        self.fds = FdCache(self.files)
        self.path = path

    def index_of(self, ledger_id, segment_no, capacity):
        """A new TimeIndex of some segment over this file."""
        header = SegmentHeader("", 0, ledger_id, segment_no, 0, 0, FLOOR_MS, 0, -1, 0)
        return TimeIndex(self.files, self.fds, self.path, header, ChunkCache(capacity))

    def index(self, capacity=2):
        """A new TimeIndex with a small cache of its own, so that the file is read."""
        index = self.index_of(7, 0, capacity)
        index.end_offset = 136
        return index

    def append(self, index, rows, first=0):
        """Append rows from ``first`` on."""
        begins, nexts = [136, *rows.ends()], rows.nexts()
        for row in range(first, len(rows.times)):
            index.append(rows.times[row], nexts[row], begins[row], begins[row + 1])


@pytest.fixture
def bench(tmp_path):
    """An index file in a fresh folder."""
    bench = Bench(tmp_path / "x.idx")
    yield bench
    bench.fds.close()


def check(index, rows):
    """Every answer of the index equals the one from the plain lists."""
    maxima, nexts, ends = rows.maxima(), rows.nexts(), rows.ends()
    count = len(maxima)
    assert index.count == count
    assert index.time_max_ms == (maxima[-1] if count else FLOOR_MS)
    assert index.next_message == (nexts[-1] if count else 0)
    assert index.end_offset == (ends[-1] if count else 136)
    edges = {n * CHUNK_ROWS + near for n in (1, 2, 4) for near in (-1, 0, 1)}
    near = {0, 1, *edges, count - 2, count - 1}
    looked_at = sorted(row for row in near | set(range(0, count, 611)) if 0 <= row < count)
    begins = [136, *ends]
    for row in looked_at:
        assert index.row(row) == (maxima[row], nexts[row], begins[row], ends[row])
        assert index.next_before(row) == (nexts[row - 1] if row else 0)
    assert index.next_before(count) == (nexts[-1] if count else 0)
    limits = {0, min(1, count), count // 2, count, *[row for row in looked_at if row % 2]}
    for limit in sorted(limits):
        for row in looked_at:
            for time_ms in (maxima[row] - 1, maxima[row], maxima[row] + 1):
                expected = min(bisect_left(maxima, time_ms), limit)
                assert index.find_time(time_ms, limit) == expected
            for message in (nexts[row] - 1, nexts[row]):
                if message >= 0:
                    expected = min(bisect_right(nexts, message), limit)
                    assert index.find_message(message, limit) == expected
        assert index.find_time(0, limit) == 0
        assert index.find_time(2**64 - 1, limit) == limit
        assert index.find_message(2**31, limit) == limit


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("where", ["memory", "file", "sealed", "loaded"])
def test_answers_equal_brute_force(bench, count, where):
    """Rows, times and messages are found alike in memory, in the file and after loading."""
    rows = Rows.some(count)
    index = bench.index()
    bench.append(index, rows)
    if where == "file":
        index.flush(count)
    if where in ("sealed", "loaded"):
        index.seal(77)
        assert index.sealed
    if where == "loaded":
        index = bench.index()
        trailer = index.load()
        assert trailer == Trailer(
            count, sum(rows.counts), index.end_offset if count else 136, index.time_max_ms, 77
        )
        assert index.sealed
        if not count:
            index.end_offset = 136
    check(index, rows)


@pytest.mark.parametrize("count", [n for n in COUNTS if n])
def test_loading_an_unsealed_index_takes_over_full_chunks(bench, count):
    """Without a trailer whole chunks are used, and appending goes on after them."""
    rows = Rows.some(count)
    index = bench.index()
    bench.append(index, rows)
    index.flush(count)
    again = bench.index()
    assert again.load() is None
    full = count - count % CHUNK_ROWS
    assert again.count == full
    bench.append(again, rows, first=full)
    check(again, rows)


@settings(max_examples=25)
@given(data=st.data())
def test_any_order_of_changes_equals_the_model(tmp_path_factory, data):
    """Appends, truncations, flushes and seals in any order leave what the model has."""
    bench = Bench(tmp_path_factory.mktemp("index") / "x.idx")
    index, rows = bench.index(), Rows([], [], [])
    durable = 0
    for _ in range(data.draw(st.integers(1, 6))):
        more = Rows.some(
            data.draw(st.sampled_from([1, 3, CHUNK_ROWS - 1, CHUNK_ROWS, 3000])), len(rows.times)
        )
        first = len(rows.times)
        rows = Rows(rows.times + more.times, rows.counts + more.counts, rows.sizes + more.sizes)
        bench.append(index, rows, first)
        durable = data.draw(st.integers(durable, len(rows.times)))
        index.flush(durable)
        if data.draw(st.booleans()):
            keep = data.draw(st.integers(durable, len(rows.times)))
            index.truncate(keep)
            rows = Rows(rows.times[:keep], rows.counts[:keep], rows.sizes[:keep])
    check(index, rows)
    index.seal(5)
    check(index, rows)
    again = bench.index()
    trailer = again.load()
    assert (trailer.row_count, trailer.message_count) == (len(rows.times), sum(rows.counts))
    if rows.times:
        check(again, rows)
    bench.fds.close()


def test_truncate_reaches_into_the_file(bench):
    """Rows that already went to the file can be cut off too, and the index grows on from there."""
    rows = Rows.some(10_000)
    for keep in (9000, 2 * CHUNK_ROWS, CHUNK_ROWS + 1, CHUNK_ROWS, CHUNK_ROWS - 1, 1, 0):
        bench.path.unlink(missing_ok=True)
        bench.fds.forget(bench.path)
        index = bench.index()
        bench.append(index, rows)
        index.flush(10_000)
        index.truncate(keep)
        kept = Rows(rows.times[:keep], rows.counts[:keep], rows.sizes[:keep])
        check(index, kept)
        bench.append(index, rows, first=keep)
        check(index, rows)


@pytest.mark.parametrize("count", [n for n in COUNTS if n])
def test_file_is_the_same_however_it_was_written(bench, count):
    """Flushed piece by piece or sealed at once: the bytes are the same."""
    rows = Rows.some(count)
    index = bench.index()
    bench.append(index, rows)
    index.seal(77)
    at_once = bench.path.read_bytes()
    bench.path.unlink()
    index = bench.index()
    for first in range(0, count, 3000):
        part = Rows(*(c[: first + 3000] for c in (rows.times, rows.counts, rows.sizes)))
        bench.append(index, part, first)
        index.flush(first)
    index.seal(77)
    assert bench.path.read_bytes() == at_once


def damages(good):
    """Ways in which an index file can go wrong, by name."""
    random = Random(4)
    cuts = {0, 1, 31, 32, 33, chunk_offset(1) - 1, chunk_offset(1), chunk_offset(1) + 1,
            chunk_offset(2), len(good) - TRAILER_SIZE, len(good) - 1}  # fmt: skip
    for size in sorted(cut for cut in cuts if cut < len(good)):
        yield f"cut at {size}", good[:size]
    for _ in range(40):
        bad = bytearray(good)
        bit = random.randrange(8 * len(good))
        bad[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit}", bytes(bad)
    yield "random", random.randbytes(len(good))
    yield "zeros", bytes(len(good))
    yield "longer", good + bytes(100)
    yield "twice", good + good


def test_damaged_file_never_gives_wrong_rows(bench):
    """Whatever happened to the file: what loading takes over is right, and ends before damage."""
    rows = Rows.some(3 * CHUNK_ROWS + 300)
    index = bench.index()
    bench.append(index, rows)
    index.seal(77)
    good = bench.path.read_bytes()
    for name, bad in damages(good):
        bench.path.write_bytes(bad)
        bench.fds.forget(bench.path)
        again = bench.index()
        trailer = again.load()
        assert (trailer is None) or not name.startswith("bit"), name
        taken = again.count
        maxima, nexts = rows.maxima(), rows.nexts()
        for row in range(0, taken, 101):
            assert again.row(row)[:2] == (maxima[row], nexts[row]), name
        if trailer is None:
            assert taken % CHUNK_ROWS == 0, name
            if not taken:
                again.end_offset = 136
            bench.append(again, rows, first=taken)
            check(again, rows)


def test_index_of_another_segment_is_not_taken(bench):
    """An index file that was copied from another segment is not used."""
    rows = Rows.some(5000)
    index = bench.index()
    bench.append(index, rows)
    index.seal(1)
    for ledger_id, segment_no in ((8, 0), (7, 1)):
        other = bench.index_of(ledger_id, segment_no, 8)
        assert other.load() is None
        assert other.count == 0


def test_chunks_of_two_generations_are_not_mixed(bench):
    """An old trailer after a new, shorter last chunk does not make the two a sealed index."""
    rows = Rows.some(2 * CHUNK_ROWS + 900)
    short = Rows(*(c[: 2 * CHUNK_ROWS + 100] for c in (rows.times, rows.counts, rows.sizes)))
    files = []
    for part in (rows, short):
        index = bench.index()
        bench.append(index, part)
        index.seal(1)
        files.append(bench.path.read_bytes())
        bench.path.unlink()
    old, new = files
    bench.path.write_bytes(new[:-TRAILER_SIZE] + old[len(new) - TRAILER_SIZE :])
    again = bench.index()
    assert again.load() is None
    assert again.count == 2 * CHUNK_ROWS
    bench.append(again, rows, first=again.count)
    check(again, rows)


def test_lookup_costs_at_most_one_read(bench):
    """Searching a chunk that is not in memory costs one counted read, the second time none."""
    rows = Rows.some(10_000)
    index = bench.index()
    bench.append(index, rows)
    index.seal(1)
    again = bench.index()
    again.load()
    io = IoCount()
    again.find_time(rows.maxima()[5000], 10_000, io)
    again.find_time(rows.maxima()[5001], 10_000, io)
    assert io.reads == 1
    assert 0 < io.bytes_read <= 66_000


def test_file_removed_or_damaged_later_is_reported(bench):
    """A chunk that cannot be read back, nor made again, is an error, never a wrong row."""
    rows = Rows.some(10_000)
    index = bench.index(capacity=0)
    bench.append(index, rows)
    index.flush(10_000)
    data = bytearray(bench.path.read_bytes())
    data[chunk_offset(1) + 500] ^= 4
    bench.path.write_bytes(data)
    with pytest.raises(FileNotFoundError):  # there is no segment to make it again from
        index.row(CHUNK_ROWS + 5)
    assert index.row(100).next_message == rows.nexts()[100]
    bench.path.unlink()
    bench.fds.forget(bench.path)
    with pytest.raises(FileNotFoundError):
        index.row(100)


def test_the_seed_distinguishes_segments():
    """Neighbouring ledgers and segments have different checksums."""
    seeds = {index_seed(ledger, number) for ledger in range(20) for number in range(20)}
    assert len(seeds) == 400
