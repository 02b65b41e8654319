"""CSV that may have been cut off: a last value that is in doubt is said, a cut line refused."""

from __future__ import annotations

import warnings

import pytest

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.cli import main
from loadmaster.costs import TransferTimes

PROFILE = "op,kind,ms\nconv,k,3\nloss,k,12.5\n"
TRANSFERS = "method,bytes,seconds_one_way\ntcp,1024,3e-6\ntcp,2048,4e-6\n"


@pytest.mark.parametrize("text", [PROFILE, PROFILE.replace("\n", "\r\n"), PROFILE + "\n"])
def test_a_whole_file_is_read_without_a_word(text, tmp_path):
    (tmp_path / "profile.csv").write_bytes(text.encode())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [profile] = lm.read_profiles(tmp_path / "profile.csv")
    assert profile.seconds.max() == 12.5e-3


@pytest.mark.parametrize("ending", ["12.5", "12.", "1"])
def test_a_last_number_that_may_go_on_is_said(ending, tmp_path):
    path = tmp_path / "profile.csv"
    path.write_text(PROFILE[: PROFILE.index("12.5")] + ending)
    with pytest.warns(UserWarning, match="the file ends") as caught:
        [profile] = lm.read_profiles(path)
    assert [str(one.message) for one in caught] == [
        f"{path}, line 3: the file ends with ms {ending!r} and no line break. If it was cut off, "
        "this is not the whole value"
    ]
    assert caught[0].filename == __file__
    assert profile.seconds.max() == max(float(ending), 3) * 1e-3


@pytest.mark.filterwarnings("ignore:.*no line break")
@pytest.mark.parametrize("cut", range(len("12.5\n"), len("loss,k,12.5\n")))
def test_a_line_that_was_cut_before_its_number_is_refused(cut, tmp_path):
    path = tmp_path / "profile.csv"
    path.write_text(PROFILE[:-cut])
    with pytest.raises(InputError, match=r"profile.csv(, line 3: op | seems to be cut off)"):
        lm.read_profiles(path)


@pytest.mark.parametrize(
    "text",
    [
        "op,ms,note\nconv,3,fi",
        'op,ms,kind\nconv,3,"k"',
        "op,ms\nconv,3,more",
        'op,kind,ms\n"two\nlines",k,3\n',
    ],
    ids=[
        "a column that nobody reads",
        "quotes",
        "a cell without a column",
        "a line break in a cell",
    ],
)
def test_where_nothing_is_in_doubt_nothing_is_said(text, tmp_path):
    (tmp_path / "profile.csv").write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [profile] = lm.read_profiles(tmp_path / "profile.csv")
    assert profile.seconds.tolist() == [[3e-3]]


def test_quotes_that_do_not_end_are_refused(tmp_path):
    (tmp_path / "profile.csv").write_text('op,ms,kind\nconv,3,k\nloss,4,"k\n')
    with pytest.raises(InputError, match="unexpected end of data"):
        lm.read_profiles(tmp_path / "profile.csv")


def test_measured_transfers_are_held_to_the_same(tmp_path):
    path = tmp_path / "links.csv"
    path.write_text(TRANSFERS[:-4])
    with pytest.warns(UserWarning, match="ends with seconds_one_way '4' and no line break"):
        assert TransferTimes.read(path).seconds.tolist() == [3e-6, 4.0]
    path.write_text(TRANSFERS[: TRANSFERS.index("4e-6") - 3])
    with pytest.raises(
        InputError, match=r"links.csv seems to be cut off: its last line, 3, has no"
    ):
        TransferTimes.read(path)


def test_the_command_says_it_on_stderr(tmp_path, capsys):
    path = tmp_path / "links.csv"
    path.write_text(TRANSFERS[:-1])
    assert main(["calibrate", "--links", str(path), "--cluster", "2xV100-NVLink"]) == 0
    said = capsys.readouterr().err
    assert f"loadmaster: warning: {path}, line 3: the file ends with seconds_one_way" in said
