"""What turns the repository's Markdown, written for readers of files, into a site: MkDocs calls the functions on_….

- README.md becomes the first page; folders of pages get a page that lists them; Doxygen's pages lie below api.
- Links that leave docs lead to copies of these files, as text, or to lists of folders, below source. A link to what is not there ends the build.
"""

import logging
import os
import pathlib
import re
import subprocess
import tempfile

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
LISTS = {"formats": "Formats", "benchmarks": "Results", "decisions": "Decisions"}  # folders whose pages a page lists
PLACES = {"gpu": "needs a GPU", "site": "on your machine", "run": None}  # what follows the language of a code block
log = logging.getLogger("mkdocs.hooks")
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")


def title_of(path):
    return next(line[2:].strip() for line in path.read_text().splitlines() if line.startswith("# "))


def pages_of(folder):
    """In the order of the folder's README.md, where it has one, else by name."""
    readme = DOCS / folder / "README.md"
    order = readme.read_text() if readme.is_file() else ""
    return sorted((path for path in (DOCS / folder).glob("*.md") if path != readme), key=lambda path: (order.find(f"({path.name}"), path.name))


def list_of(folder):
    """The page that lists those of a folder: its README.md, or one that on_files makes."""
    return "README.md" if (DOCS / folder / "README.md").is_file() else "index.md"


def on_config(config):
    """Lists the pages of LISTS in the navigation."""
    def filled(items):
        for item in items:
            if isinstance(item, str) and item in {f"{folder}/{list_of(folder)}" for folder in LISTS}:
                yield item
                yield from (f"{path.parent.name}/{path.name}" for path in pages_of(item.split("/")[0]))
            elif isinstance(item, dict):
                yield {name: list(filled(below)) if isinstance(below, list) else below for name, below in item.items()}
            else:
                yield item
    config.nav = list(filled(config.nav))
    return config


def outside(text, page):
    """(start, end, path) of each link of a page that leaves docs, or leads to a folder; not in code blocks."""
    in_code = [match.span() for match in re.finditer(r"^```.*?^```|`[^`\n]+`", text, re.M | re.S)]
    for match in LINK.finditer(text):
        target = match[2].split("#")[0]
        if not target or re.match(r"[a-z]+:", target) or any(begin <= match.start(2) < end for begin, end in in_code):
            continue
        path = pathlib.Path(os.path.normpath(page.parent / target))
        if page == ROOT / "README.md" or not path.is_relative_to(DOCS) or path.is_dir():
            yield match, path


def on_files(files, config):
    """Adds what does not lie in docs."""
    def generate(name, **content):
        files.append(File.generated(config, name, **content))

    generate("index.md", content=(ROOT / "README.md").read_text())
    for folder, title in LISTS.items():
        if list_of(folder) == "README.md":
            continue
        links = "\n".join(f"- [{title_of(path)}]({path.name})" for path in pages_of(folder))
        generate(f"{folder}/index.md", content=f"# {title}\n\n{links}\n")
    generate("api.md", content="# C++ API\n\nDoxygen makes [the pages of all headers](api/files.html) in `include/annulus` from their docstrings; "
             "[examples](examples.md) shows how they are used.\n")
    config.api_folder = tempfile.TemporaryDirectory()
    subprocess.run(["doxygen", "-"], input=f"@INCLUDE = {ROOT}/src/driver/docs/Doxyfile\nOUTPUT_DIRECTORY = {config.api_folder.name}\n",
                   text=True, check=True, cwd=ROOT)
    made = pathlib.Path(config.api_folder.name) / "html"
    for path in made.rglob("*"):
        if path.is_file():
            generate(f"api/{path.relative_to(made)}", abs_src_path=str(path))
    linked = {path for page in [ROOT / "README.md", *DOCS.rglob("*.md")] for _, path in outside(page.read_text(), page)
              if path.exists() and not path.is_relative_to(DOCS) and path != ROOT / "README.md"}
    below = {folder: [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts] for folder in linked if folder.is_dir()}
    for folder, paths in below.items():
        links = "\n".join(f"- [{path.relative_to(folder)}]({path.relative_to(folder)}.txt)" for path in paths)
        generate(f"source/{folder.relative_to(ROOT)}/index.md", content=f"# {folder.relative_to(ROOT)}\n\n{links}\n")
    for path in sorted({path for path in linked if path.is_file()} | {path for paths in below.values() for path in paths}):
        generate(f"source/{path.relative_to(ROOT)}.txt", content=path.read_bytes())
    return files


def on_page_markdown(markdown, page, config, files):
    """Links lead to where things lie on the site; code blocks and lists have the form that MkDocs reads."""
    name = page.file.src_uri
    if name.startswith("source/"):
        return markdown
    written = ROOT / "README.md" if name == "index.md" else DOCS / name
    here = (DOCS / name).parent

    def placed(path):
        if path == ROOT / "README.md":
            return DOCS / "index.md"
        if path.is_relative_to(DOCS):
            return path / list_of(path.name) if path.is_dir() and path.name in LISTS else path
        if not path.exists():
            log.warning("%s links to %s, which is not there", written.relative_to(ROOT), path)
        return DOCS / "source" / path.relative_to(ROOT) / "index.md" if path.is_dir() else DOCS / "source" / f"{path.relative_to(ROOT)}.txt"

    for match, path in reversed(list(outside(markdown, written))):
        target = os.path.relpath(placed(path), here) + match[2][len(match[2].split("#")[0]):]
        markdown = markdown[:match.start(2)] + target + markdown[match.end(2):]
    lines, in_code = [], False
    for line in markdown.split("\n"):
        if line.startswith("```"):
            in_code = not in_code
            words = line[3:].split()
            if in_code and len(words) > 1:
                title = PLACES.get(words[1], words[1])  # others are names of files
                line = f"```{words[0]}" + (f' title="{title}"' if title else "")
        in_list = re.match(r"\s*([-*]|\d+\.) ", line)
        if not in_code and in_list and lines and lines[-1].strip() and not lines[-1].startswith(" ") and not re.match(r"\s*([-*]|\d+\.) ", lines[-1]):
            lines.append("")  # elsewhere a list may follow a paragraph at once
        lines.append(line)
    return "\n".join(lines)
