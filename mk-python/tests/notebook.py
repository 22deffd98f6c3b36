"""The tutorial as a notebook: ``python mk-python/tests/notebook.py`` writes docs/tutorial.ipynb."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
PAGE, NOTEBOOK = ROOT / "docs/tutorial.md", ROOT / "docs/tutorial.ipynb"


def blocks(text):
    """``(kind, text)`` of the page: code that runs, and what stands between."""
    for i, part in enumerate(re.split(r"```python\n(.*?)```\n", text, flags=re.S)):
        if part.strip():
            yield ("code" if i % 2 else "markdown"), part.strip()


def notebook(text):
    text = text.replace("This page is also\n[a notebook](tutorial.ipynb).", "This notebook is also\n[a page](tutorial.md).")
    cells = []
    for i, (kind, part) in enumerate(blocks(text)):
        lines = [line + "\n" for line in part.split("\n")]
        lines[-1] = lines[-1].rstrip("\n")
        cell = {"cell_type": kind, "id": f"cell{i}", "metadata": {}, "source": lines}
        if kind == "code":
            cell.update(execution_count=None, outputs=[])
        cells.append(cell)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}, "language_info": {"name": "python"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(PAGE.read_text()))
