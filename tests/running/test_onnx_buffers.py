"""Values that share memory are never alive at the same time, in whatever order devices run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadmaster.running.onnx.buffers import buffers


@st.composite
def exports(draw):
    """Segments of random devices that read random values made before."""
    rows, made = [], ["input"]
    for i in range(draw(st.integers(1, 12))):
        outputs = [f"v{i}.{k}" for k in range(draw(st.integers(0, 3)))]
        rows.append(
            {
                "device": draw(st.sampled_from("abc")),
                "inputs": draw(st.lists(st.sampled_from(made), max_size=4, unique=True)),
                "outputs": outputs,
            }
        )
        made += outputs
    kept = draw(st.lists(st.sampled_from(made), max_size=3, unique=True))
    sizes = {value: draw(st.sampled_from([4, 8])) for value in made}
    return rows, sizes, kept


@given(exports(), st.randoms(use_true_random=False))
def test_nothing_is_written_over_what_is_still_read(export, random):
    rows, sizes, kept = export
    buffer = buffers(rows, sizes, kept)
    assert set(buffer) == {value for row in rows for value in row["outputs"]}
    maker = {value: i for i, row in enumerate(rows) for value in row["outputs"]}
    holds: dict[int, str] = {}
    running: dict[str, int] = {}
    ended: set[int] = set()
    left = list(range(len(rows)))
    while left or running:
        can_start = [
            i
            for i in left
            if rows[i]["device"] not in running
            and not any(rows[j]["device"] == rows[i]["device"] for j in left if j < i)
            and all(maker[value] in ended for value in rows[i]["inputs"] if value in maker)
        ]
        if can_start and (not running or random.random() < 0.6):
            i = random.choice(can_start)
            left.remove(i)
            running[rows[i]["device"]] = i
            # A segment may write its results at any time from its start on.
            holds |= {buffer[value]: value for value in rows[i]["outputs"]}
        else:
            i = running.pop(random.choice(sorted(running)))
            ended.add(i)
            # ... and read its inputs up to its end.
            for value in rows[i]["inputs"]:
                assert value not in maker or holds[buffer[value]] == value
    assert all(holds[buffer[value]] == value for value in kept if value in maker)


def test_a_chain_on_one_device_needs_two_buffers():
    names = "uvwxyz"
    rows = [
        {"device": "a", "inputs": list(names[i - 1 : i]), "outputs": [name]}
        for i, name in enumerate(names)
    ]
    assert len(set(buffers(rows, dict.fromkeys(names, 4), []).values())) == 2
    # All of them have to stay.
    assert len(set(buffers(rows, dict.fromkeys(names, 4), names).values())) == len(names)


def test_what_another_device_reads_stays_until_it_is_known_to_have_ended():
    rows = [
        {"device": "a", "inputs": [], "outputs": ["u"]},
        {"device": "b", "inputs": ["u"], "outputs": ["v"]},
        {"device": "a", "inputs": [], "outputs": ["w"]},
        {"device": "a", "inputs": ["v"], "outputs": ["x"]},
    ]
    found = buffers(rows, dict.fromkeys("uvwx", 4), ["w", "x"])
    assert found["w"] != found["u"] == found["x"]
