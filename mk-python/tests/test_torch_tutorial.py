"""The tutorial runs as printed, as a page and as a notebook. Needs torch; the notebook nbclient and ipykernel."""

import contextlib
import importlib.util
import io
import os
import tempfile
import unittest

import mk
import notebook

try:
    import torch

    HAS_TORCH = hasattr(torch, "library") and hasattr(torch, "compile")
except ImportError:
    HAS_TORCH = False

HAS_NOTEBOOKS = all(importlib.util.find_spec(name) is not None for name in ("nbclient", "nbformat", "ipykernel"))


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Tutorial(unittest.TestCase):
    def test_the_page_runs(self):
        names, said, home = {}, io.StringIO(), os.getcwd()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
            os.chdir(folder)
            try:
                for kind, text in notebook.blocks(notebook.PAGE.read_text()):
                    if kind == "code":
                        exec(compile(text, "tutorial.md", "exec"), names)
                self.assertIn("rank 0 compute", open("timeline.html").read().replace('"compute"', "rank 0 compute"))
            finally:
                os.chdir(home)
        self.assertLess((names["y"] - names["mlp"](names["x"], names["w1"], names["w2"])).abs().max().item(), 0.1)
        for words in ("reduce_scatter", "torch.Size([32, 128]) torch.Size([128, 32])", "'compute'", "pairs ordered", "torch.Size([64, 128])"):
            self.assertIn(words, said.getvalue())

    @unittest.skipUnless(HAS_NOTEBOOKS, "nbclient is not installed")
    def test_the_notebook_runs(self):
        import nbclient
        import nbformat

        book = nbformat.read(notebook.NOTEBOOK, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
        outputs = [o for c in book.cells if c.cell_type == "code" for o in c.outputs]
        self.assertTrue(any("image/svg+xml" in o.get("data", {}) for o in outputs), "the plan is shown as a picture")


if __name__ == "__main__":
    unittest.main()
