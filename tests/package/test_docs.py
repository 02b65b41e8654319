"""What the documentation shows is what happens."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import onnx_models
import pytest
from folders import ROOT

import loadmaster
from loadmaster import fast, systems
from loadmaster.base.effort import EFFORTS
from loadmaster.cli import main
from loadmaster.strategies import METHODS
from loadmaster.systems.registry import SYSTEMS

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(loadmaster.__path__, "loadmaster.")
    if m.name.rpartition(".")[2] not in ("__main__", "fast")
)
PUBLIC = [name for name in fast.__all__ if callable(getattr(fast, name))]


def run(text: str, name: str, names: dict | None = None) -> int:
    """Runs the examples in a text; the number of them."""
    found = doctest.DocTestParser().get_doctest(text, dict(names or {}), name, None, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    runner.run(found, out=report.append)
    assert runner.failures == 0, "".join(report)
    return len(found.examples)


def importing(package: str) -> set[str]:
    """The modules that import a package as they are imported, or import one that does."""
    imports: dict[str, set[str]] = {}
    for name in MODULES:
        folder = Path(loadmaster.__file__).parents[1].joinpath(*name.split("."))
        file = folder / "__init__.py"
        text = (file if file.exists() else folder.with_suffix(".py")).read_text()
        lines = re.findall(r"^(?:from|import) (\S+)(?: import (\w+))?", text, re.MULTILINE)
        imports[name] = {of for of, _ in lines} | {f"{of}.{what}" for of, what in lines}
    found = {
        name for name, of in imports.items() if any(one.split(".")[0] == package for one in of)
    }
    while more := {name for name, of in imports.items() if name not in found and of & found}:
        found |= more
    return found


#: Modules of the package; those that need PyTorch are marked so.
OF_TORCH = importing("torch")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.needs("torch")) if name in OF_TORCH else name
        for name in ["loadmaster", *MODULES]
    ],
)
def test_examples_in_modules(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"needs an extra: {error}")
    finder = doctest.DocTestFinder(exclude_empty=True)
    for test in finder.find(module, name):
        extras = ("import networkx", "import onnx", "import pymetis")
        if any(ex.source.startswith(extras) for ex in test.examples):
            pytest.importorskip(test.examples[0].source.split()[1].strip(","))
        run_test(test)


def run_test(test: doctest.DocTest) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_public_functions_of_the_face_have_docstrings():
    for name in set(loadmaster.__all__) - {"fast"}:
        member = getattr(loadmaster, name)
        assert inspect.getdoc(member), name


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_of_fast_has_an_example_that_runs(name):
    member = getattr(fast, name)
    texts = [member.__doc__ or ""]
    if inspect.isclass(member):
        texts += [
            getattr(vars(member)[attribute], "__doc__", None) or ""
            for attribute in vars(member)
            if not attribute.startswith("_")
        ]
    assert texts[0].strip(), f"loadmaster.fast.{name} has no docstring"
    assert sum(run(text, f"loadmaster.fast.{name}") for text in texts) > 0, "no example"


def test_the_module_fast_and_every_member_of_its_classes_are_documented():
    assert (fast.__doc__ or "").strip()
    bare = [
        f"{name}.{attribute}"
        for name in PUBLIC
        if inspect.isclass(getattr(fast, name))
        for attribute, value in vars(getattr(fast, name)).items()
        if not attribute.startswith("_") and not (getattr(value, "__doc__", None) or "").strip()
    ]
    assert bare == []


PAGES = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if p.exists()]

#: A fenced block, perhaps in a list: its indent, language and text.
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.M | re.S)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of a page's blocks, in order."""
    found = BLOCK.findall(page.read_text())
    return [(language, textwrap.dedent(text)) for _, language, text in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_blocks_of_pages_run(page, tmp_path, monkeypatch):
    """The blocks of a page in order, in one directory, with a model of the user's own; examples
    with >>> are checked. Commands that install things, which take minutes, are left out.
    """
    if "import torch" in page.read_text():
        pytest.importorskip("torch", reason=f"{page.name} needs PyTorch 2.5 or later")
    monkeypatch.chdir(tmp_path)
    # A system that a page adds is there for that page.
    monkeypatch.setattr(SYSTEMS, "declared", dict(SYSTEMS.declared))
    monkeypatch.setattr(systems, "__path__", list(systems.__path__))
    onnx_models.saved("branchy", tmp_path).rename("model.onnx")
    names: dict = {"__name__": "__main__"}
    for language, block in blocks(page):
        if language == "python" and ">>>" in block:
            run(block, page.name, names)
        elif language == "python":
            exec(compile(block, str(page), "exec"), names)
        elif language == "sh" and "pip install" not in block:
            # The first page is what everybody types: it runs as it is typed.
            shell(block) if page.name == "README.md" else called(block, monkeypatch)
        elif language == "toml":
            tomllib.loads(block)
        else:
            assert language in ("text", "sh"), f"a block of {language or 'no language'}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.name
)
def test_cells_of_notebooks_run(path, tmp_path, monkeypatch):
    """The code of a notebook in order; what a cell ends with prints as a notebook shows it."""
    document = json.loads(path.read_text())
    texts = ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]
    if any("import torch" in text for text in texts):
        pytest.importorskip("torch", reason=f"{path.name} needs PyTorch 2.5 or later")
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for text in texts:
        body = ast.parse(text).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), path.name, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), path.name, "eval"), names)
            assert getattr(value, "_repr_html_", value.__repr__)()
    assert all(cell.get("outputs", []) == [] for cell in document["cells"])


def shell(block: str) -> None:
    """Runs commands with this Python's ``loadmaster``; the first that fails is an error."""
    if not block:
        return
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["bash", "-euc", block], env={**os.environ, "PATH": path}, check=True)


def called(block: str, monkeypatch) -> None:
    """Runs commands as a shell does, but for those of ``loadmaster`` that need nothing of it: these
    are called in this process, where `auto` tries as little as it can.
    """
    others: list[str] = []
    for line in re.sub(r"\\\n", " ", block).splitlines():
        words = words_of(line) if line.startswith("loadmaster ") else []
        if not words:
            others.append(line)
            continue
        shell("\n".join(others))
        others = []
        with monkeypatch.context() as patch:
            patch.setitem(EFFORTS, "fast", 0.01)
            assert main(words[1:]) == 0, line
    shell("\n".join(others))


def words_of(line: str) -> list[str]:
    """The words of a command; none where it takes a shell to tell what they are."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    return [] if re.search(r"[$`]", line) or any(set(w) <= set("();<>|&") for w in words) else words


@pytest.mark.parametrize(
    "page", [*PAGES, *ROOT.glob("*.md"), *sorted((ROOT / "benches").rglob("*.md"))], ids=str
)
def test_links_of_pages_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)", BLOCK.sub("", page.read_text()))
    local = [link for link in links if not re.match(r"https?:|mailto:", link)]
    assert [link for link in local if not (page.parent / link).exists()] == []


#: Every address that users are sent to. No network is there when tests run: who adds one has opened
#: it.
ADDRESSES = {
    "https://ui.perfetto.dev",
    # Words that PyTorch documents.
    "https://docs.pytorch.org/docs/stable/checkpoint.html",
    "https://docs.pytorch.org/docs/stable/distributed.html",
    "https://docs.pytorch.org/docs/stable/distributed.tensor.html",
    "https://docs.pytorch.org/docs/stable/tensor_view.html",
    # Where figures of device types were read.
    "https://glennklockwood.com/garden/processors/B200",
    "https://itkb.uw.cz/2026/06/nvidia-h200-vs-b300-precisions-cores.html",
    "https://www.mullet.se/product.html?product_id=355414",
    "https://www.yobitel.com/knowledge-base/nvidia-l4",
    "https://llmperf.net/categories/gpu/Nvidia-A6000-GPUs",
    "https://hmc-tech.com/gpu/nvidia-geforce-rtx-4060-laptop-115w-vs-nvidia-geforce-rtx-3060-laptop-115w",
    "https://www.apple.com/pt/newsroom/2023/06/apple-introduces-m2-ultra",
    "https://liliputing.com/amd-ryzen-mobile-7040u-chips-are-coming-to-thin-and-light-laptops-zen-4-and-rdna-3/",
    "https://www.macrumors.com/2020/11/10/apple-announces-m1-chip-for-the-mac/",
    "https://verda.com/blog/gb300-nvl72-architecture",
    "https://aiwiki.ai/wiki/nvidia_gb200_nvl72/raw",
    "https://zangshuxian.com/new/674733024499207168",
    "https://www.philisun.com/technical-analysis/nvidia-h800-vs-h100-a-technical-deep-dive-into-politically-defined-ai-chips",
    "https://archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html",
    "https://glennklockwood.com/garden/processors/A100",
    "https://omegaco.ae/shop/gpu-cards-edge-ai/nvidia-p40",
    "https://hmc-tech.com/gpus/nvidia-b200-vs-nvidia-l40",
    "https://www.topcpu.net/en/gpu-c/a40-pcie-vs-l20",
    "https://hmc-tech.com/gpu/nvidia-rtx-pro-6000-blackwell-vs-amd-radeon-pro-duo-polaris",
    "https://www.ecer.com/corp/details-uuuedqa-p1bsay9-multi-display-setups-supported-by-48gb-gddr6-ecc-memory-nvidia-a40-gpu-and-vga-outputs.html",
    "https://www.baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference/",
    "https://hmc-tech.com/gpu/nvidia-3x-geforce-rtx-5090-vs-zotac-geforce-rtx-3060-twin-edge-oc",
    "https://www.tomshardware.com/reviews/nvidia-geforce-rtx-4080-review",
    "https://cputronic.com/gpu/compare/nvidia-geforce-rtx-3060-vs-nvidia-geforce-rtx-4070",
    "https://www.tweaktown.com/news/84164/nvidia-geforce-rtx-3090-ti-full-specs-price-performance-details/index.html",
    "https://holynerdvana.blogspot.com/2022/10/nvidia-geforce-rtx-3090-specifications.html",
    "https://hmc-tech.com/gpu/intel-arc-pro-b60-vs-nvidia-quadro-p620",
    "https://hmc-tech.com/gpu/apple-32-core-m4-max-vs-apple-40-core-m3-max",
    "https://hmc-tech.com/gpu/apple-20-core-m4-pro-vs-intel-hd-620-1000mhz",
    "https://hmc-tech.com/gpu/apple-10-core-m4-fl-vs-apple-8-core-m4-fl",
    "https://hmc-tech.com/gpu/apple-32-core-m4-max-vs-apple-18-core-m3-pro",
    "https://hmc-tech.com/gpu/apple-16-core-m4-pro-vs-apple-10-core-m3",
    # Where recipes were published: read in snapshots of these repositories.
    "https://github.com/NVIDIA/Megatron-LM/blob",
    "https://github.com/NVIDIA/Megatron-LM/blob/090e141cc47ddf3317464bf9af7561b932c131c1/examples/pretrain_gpt_distributed.sh",
    "https://github.com/NVIDIA/Megatron-LM/blob/090e141cc47ddf3317464bf9af7561b932c131c1/examples/pretrain_gpt_distributed_with_mp.sh",
    "https://github.com/NVIDIA/Megatron-LM/blob/main/examples/llama/train_llama3_8b_h100_fp8.sh",
    "https://github.com/NVIDIA/Megatron-LM/blob/main/examples/mixtral/README.md",
    "https://github.com/NVIDIA/Megatron-LM/blob/main/examples/mixtral/train_mixtral_8x7b_distributed.sh",
    "https://github.com/meta-pytorch/autoparallel",
    "https://github.com/pytorch/torchtitan/blob/main",
    "https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md",
    "https://github.com/vllm-project/vllm/blob/main/.buildkite/nightly-benchmarks/tests/",
    "https://github.com/vllm-project/vllm/blob/main/.buildkite/nightly-benchmarks/tests/latency-tests.json",
}

#: The name of an XML namespace, which looks like an address and is opened by no one.
NAMESPACES = {"http://graphml.graphdrawing.org/xmlns"}

#: A paper's number, as an address: it names the paper for good, whether or not it was opened.
PAPER = re.compile(r"https://(arxiv\.org/abs/\d{4}\.\d{5}|doi\.org/10\.\d{4,5}/[\w.:-]+)")


def test_addresses_are_those_that_were_opened_in_one_spelling():
    sources = ("python/loadmaster", "rust", "docs", "benches")
    kinds = (".md", ".py", ".pyi", ".rs", ".toml", ".html", ".js", ".css")
    files = [ROOT / "README.md", ROOT / "pyproject.toml", ROOT / "mkdocs.yml"]
    files += [p for s in sources for p in (ROOT / s).rglob("*") if p.suffix in kinds]
    found = {
        address.rstrip(".,;:")
        for file in files
        for address in re.findall(r"\bhttps?://[^\s<>()\[\]{}\"'`\\]+", file.read_text())
    }
    assert {one for one in found - NAMESPACES if not PAPER.fullmatch(one)} == ADDRESSES


def test_the_glossary_has_a_word_a_line_in_alphabetical_order():
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs/glossary.md").read_text(), re.M)
    words = [word.lower() for word, _ in rows[1:]]
    assert len(words) > 100
    assert words == sorted(set(words))


def test_every_method_is_described():
    text = (ROOT / "docs" / "methods.md").read_text()
    assert [name for name in METHODS if f"`{name}`" not in text] == []


def test_pictures_of_the_gallery_are_made_by_its_commands():
    """Each by a block of the page; few enough bytes for a repository."""
    page = ROOT / "docs" / "gallery.md"
    commands = " ".join(text for language, text in blocks(page) if language == "sh")
    shown = re.findall(r"\]\(gallery/([\w-]+\.png)\)", page.read_text())
    kept = {path.name: path.stat().st_size for path in (ROOT / "docs" / "gallery").iterdir()}
    assert shown
    assert sorted(shown) == sorted(kept)
    assert [name for name in shown if f" {name}" not in commands] == []
    assert sum(kept.values()) < 1e6


def test_the_page_of_methods_lists_every_option():
    from loadmaster.strategies.registry import METHODS, options_of

    page = (ROOT / "docs" / "methods.md").read_text()
    rows = [
        f"| `{name}` | `{option.name}` | {option.wants} |"
        for name in METHODS
        for option in options_of(name)
    ]
    assert [row for row in rows if row not in page] == []
