"""``loadmaster leaderboard``: methods ranked on instances."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from loadmaster.cli import options, values
from loadmaster.cli.instances import add_chosen, chosen
from loadmaster.cli.printing import check_targets, put, say_where, show_json

if TYPE_CHECKING:
    from loadmaster.tasks.leaderboard import BoardRow


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "leaderboard",
        run,
        "rank methods on instances: every plan judged by the simulator, beside the best known",
        examples=(
            "'planted/*' --methods heft,etf,my.py:place",
            "--methods auto,heft --effort fast -o board.md -o board.csv",
        ),
    )
    add_chosen(command)
    command.add_argument(
        "--methods",
        required=True,
        help="names, comma-separated, as `loadmaster methods` lists them, or FILE.py:FUNCTION: a "
        "function from a problem to an assignment. The file is executed",
    )
    command.add_argument(
        "--split",
        default="none",
        choices=["none", "auto"],
        help="which plans count: those that place every op whole (none, default), or all (auto)",
    )
    command.add_argument("--seed", type=int, default=0, help="of methods that draw; default: 0")
    command.add_argument(
        "--time-limit", metavar="TIME", help="limit per plan for methods that search: 30s"
    )
    command.add_argument(
        "--effort", metavar="EFFORT", help="how far auto searches: fast, normal, max, or seconds"
    )
    options.add_repeated(
        command, "--option", "METHOD.KEY=VALUE", "an option of a method (repeatable)"
    )
    options.add_repeated(command, "-o", "FILE", "write it: .md, .csv or .json (repeatable)")


def run(arguments: argparse.Namespace) -> None:
    """Ranks; exits as interrupted if rows are missing."""
    from loadmaster.base.units import format_seconds
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.strategies.user_method import method_of
    from loadmaster.tasks.leaderboard import check_suffix, leaderboard

    for path in arguments.o:
        check_suffix(path)
    check_targets(*arguments.o)
    names = [method_of(text) for text in arguments.methods.split(",")]
    options_of = values.options_by_method(names, arguments.option)
    if arguments.effort is not None:
        for name in (name for name in names if name == "auto"):
            options_of[name] = {"effort": arguments.effort, **options_of[name]}
    limit = values.seconds("--time-limit", arguments.time_limit)
    with ProgressLine() as progress:

        def tell(done: int, total: int, row: BoardRow) -> None:
            came = row.outcome if row.makespan is None else format_seconds(row.makespan)
            progress(f"{done}/{total} {row.instance} by {row.method}: {came}")

        progress("the first instance")
        board = leaderboard(
            [(name, options_of[name]) for name in names],
            chosen(arguments),
            folder=arguments.folder,
            split=arguments.split,
            seed=arguments.seed,
            time_limit=limit,
            progress=tell,
        )
    for path in arguments.o:
        board.write(path)
    if arguments.json:
        show_json(board.to_document())
    else:
        put(board)
    written = [("leaderboard", path) for path in arguments.o]
    say_where(written, "" if written else "it is not saved: -o BOARD.md saves it")
    if board.unfinished:
        raise KeyboardInterrupt
