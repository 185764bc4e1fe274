#!/usr/bin/env python3
"""Makes the training and the held-out text out of the documentation that comes with the Rust toolchain.

    python3 text.py OUT

Source: the component `rust-docs` of the toolchain pinned in rust-toolchain.toml (`rustup component add rust-docs`): the standard
library's documentation and the books beside it. The Rust project publishes them under MIT OR Apache-2.0.

A paragraph that was met before is dropped, so nothing in the held-out text stands word for word in the training text. One page in
thirty-six, chosen by the hash of its name, is held out. Writes OUT/train.txt, OUT/heldout.txt and OUT/sources.txt.
"""

import hashlib
import html.parser
import pathlib
import re
import subprocess
import sys

BOOKS = [
    "book", "reference", "nomicon", "rust-by-example", "cargo", "rustc", "rustdoc", "clippy", "edition-guide", "embedded-book",
    "error_codes", "style-guide", "unstable-book",
]
LIBRARIES = ["std", "alloc", "core", "proc_macro", "test"]
BLOCKS = {"p", "div", "section", "ul", "ol", "table", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "dt", "dd", "br"}
VOID = {"br", "img", "hr", "input", "meta", "link", "wbr", "path", "source", "col"}
OTHER = re.compile(r"-edition/|/(es|ja|ko|zh)/")
SKIPPED = {"script", "style", "button", "nav", "svg", "rustdoc-toolbar"}


class Page(html.parser.HTMLParser):
    """The paragraphs of the part of a page that a person reads."""

    def __init__(self, library):
        super().__init__()
        self.library = library
        self.paragraphs = []
        self.text = ""
        self.depth = 0  # of open elements inside the part that counts
        self.skip = 0
        self.pre = 0

    def wanted(self, tag, attributes):
        if self.library:
            return "docblock" in (attributes.get("class") or "").split()
        return tag == "main"

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag in VOID:
            if tag == "br":
                self.text += "\n"
            return
        if self.depth == 0:
            self.depth = 1 if self.wanted(tag, attributes) else 0
            return
        self.depth += 1
        hidden = tag in SKIPPED or attributes.get("class") in ("anchor", "doc-anchor", "tooltip", "header-anchor")
        if self.skip or hidden:
            self.skip += 1
            return
        if tag == "li":
            self.cut()
            self.text += "* "
        elif tag in BLOCKS:
            self.cut()
        if tag == "pre":
            self.pre += 1
        if tag in ("td", "th"):
            self.text += " "

    def handle_endtag(self, tag):
        if self.depth == 0 or tag in VOID:
            return
        self.depth -= 1
        if self.skip:
            self.skip -= 1
        elif tag == "pre":
            self.cut()
            self.pre -= 1
        elif tag in BLOCKS or tag == "li" or self.depth == 0:
            self.cut()

    def handle_data(self, data):
        if self.depth and not self.skip:
            self.text += data if self.pre else re.sub(r"\s+", " ", data)

    def cut(self):
        text = self.text if self.pre else "\n".join(line.strip() for line in self.text.split("\n"))
        text = "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")
        self.text = ""
        if text.strip(" *\n"):
            self.paragraphs.append(text)


def pages(root):
    for name in BOOKS + LIBRARIES:
        for path in sorted((root / name).rglob("*.html")):
            relative = path.relative_to(root).as_posix()
            # `print.html` repeats its whole book; the folders are old editions, redirections and translations.
            if path.name in ("print.html", "toc.html", "404.html", "all.html") or OTHER.search(relative):
                continue
            yield relative, name in LIBRARIES, path


def main(out):
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
    version = subprocess.run(["rustc", "-V"], check=True, capture_output=True, text=True).stdout.strip()
    root = pathlib.Path(sysroot) / "share/doc/rust/html"
    seen, parts, counts = set(), {"train": [], "heldout": []}, {}
    for relative, library, path in pages(root):
        page = Page(library)
        page.feed(path.read_text(encoding="utf-8", errors="replace"))
        page.close()
        fresh = []
        for paragraph in page.paragraphs:
            digest = hashlib.sha256(re.sub(r"\W+", " ", paragraph).encode()).digest()[:12]
            if digest not in seen:
                seen.add(digest)
                fresh.append(paragraph)
        text = "\n\n".join(fresh).replace("\u2019", "'").replace("\u2018", "'").replace("\u201c", '"').replace("\u201d", '"')
        if len(text) < 200:
            continue
        part = "heldout" if hashlib.sha256(relative.encode()).digest()[0] < 7 else "train"
        parts[part].append(text)
        counts.setdefault(relative.split("/")[0], [0, 0])[part == "heldout"] += len(text.encode())
    out.mkdir(parents=True, exist_ok=True)
    for part, texts in parts.items():
        (out / f"{part}.txt").write_text("\n\n\n".join(texts) + "\n", encoding="utf-8")
    lines = [f"{version}, component rust-docs, MIT OR Apache-2.0", "part: bytes for training, bytes held out"]
    lines += [f"{name}: {train}, {held}" for name, (train, held) in counts.items()]
    (out / "sources.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
