"""The command as the module has it; pipelines from files; pictures and pages. Without torch."""

import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

import mk
import notebook

ROOT = pathlib.Path(__file__).parents[2]
LINEAR = "gather(a) -> gemm(b)"
SIZES = ["--shape", "a=512x256", "--shape", "b=256x512", "--ranks", "4"]


def run(*words, **options):
    # `mk` is the console script's function, in a process of its own.
    code = "import sys; from mk._command import main; sys.exit(main())"
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 120, **options}
    return subprocess.run([sys.executable, "-c", code, *words], **options)


class Command(unittest.TestCase):
    def test_it_is_the_command(self):
        done = run("--version")
        self.assertEqual((done.stdout, done.stderr, done.returncode), (f"mk {mk.__version__}\n", "", 0))
        done = run("check", "gather(a) -> gemn(b)", "--json")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(json.loads(done.stdout)["errors"][0]["kind"], "pipeline")
        done = run("chek")
        self.assertEqual(done.returncode, 2)
        self.assertIn("Usage: mk", done.stderr)

    def test_as_a_module_it_is_the_same(self):
        done = subprocess.run([sys.executable, "-m", "mk", "doctor", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("can_run", json.loads(done.stdout))

    def test_events_go_to_stderr_and_not_to_logging(self):
        done = run("check", LINEAR, *SIZES, "-v")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"(?m)^ +\d+\.\d{3} s  ")
        self.assertEqual(run("check", LINEAR, *SIZES, "-q").stderr, "")

    def test_what_it_prints_is_flushed_into_a_pipe_and_a_closed_pipe_is_no_traceback(self):
        self.assertIn('plan "gather_gemm"', run("plan", LINEAR, *SIZES).stdout)
        read, write = os.pipe()
        os.close(read)
        done = run("plan", LINEAR, *SIZES, capture_output=False, stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        self.assertEqual((done.returncode, done.stderr), (141, ""))

    def test_ctrl_c_ends_it(self):
        code = "import sys; from mk._command import main; print(flush=True); sys.exit(main())"
        child = subprocess.Popen([sys.executable, "-c", code, "check", "-"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        child.stdout.readline()
        # It waits for a text on stdin; until then Python's handler may be there, which does as well.
        for _ in range(100):
            child.send_signal(signal.SIGINT)
            try:
                child.wait(0.1)
                break
            except subprocess.TimeoutExpired:
                continue
        self.assertEqual(child.returncode, -signal.SIGINT)
        for stream in (child.stdin, child.stdout, child.stderr):
            stream.close()

    def test_projects_name_it(self):
        for path in ("pyproject.toml", "mk-python/pyproject.toml"):
            self.assertIn('[project.scripts]\nmk = "mk._command:main"\n', (ROOT / path).read_text())


class Files(unittest.TestCase):
    def test_load(self):
        path = ROOT / "examples/gather_gemm.mk"
        for given in (path, str(path)):
            p = mk.load(given)
            self.assertEqual((str(p), p.name, os.fspath(p.path)), (path.read_text(), "gather_gemm", str(path)))
        self.assertEqual(p.dims, {"K": 256, "M": 512, "N": 512})
        self.assertEqual(p.parameters[0], ("x", "bf16", ("M", "K"), ("shard", 0)))
        self.assertEqual(p.plan(ranks=4).shapes, mk.plan(path, ranks=4).shapes)
        world = mk.World.offline(2)
        self.assertIs(p.compile(world), mk.compile(p, world))
        self.assertEqual(pickle.loads(pickle.dumps(p)), p)
        self.assertIn("examples/gather_gemm.mk", repr(p))

    def test_mistakes_name_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "wrong.txt")
            path.write_text("gather(a) -> gemn(b)")
            with self.assertRaisesRegex(mk.PipelineError, "wrong.txt"):
                mk.load(path)
            with self.assertRaisesRegex(mk.ArgumentError, "cannot be read"):
                mk.load(pathlib.Path(folder, "none.mk"))


class Pictures(unittest.TestCase):
    def setUp(self):
        self.plan = lambda **more: mk.plan(LINEAR, ranks=4, shapes={"a": (512, 256), "b": (256, 512)}, **more)

    def test_svg(self):
        plan = self.plan()
        self.assertEqual(plan.svg(), run("plan", LINEAR, *SIZES, "--format", "svg").stdout)
        self.assertEqual(plan._repr_svg_(), plan.svg())
        # Kernels one below the other.
        several = xml.fromstring(self.plan(fuse="never").svg())
        parts = several.findall("{http://www.w3.org/2000/svg}svg")
        self.assertEqual(len(parts), 2)
        self.assertEqual(parts[0].get("y"), "0")
        self.assertGreater(float(parts[1].get("y")), float(parts[0].get("height")))

    def test_pages_need_nothing_else(self):
        plan = self.plan()
        for page in (plan.html(), plan.html(timeline=True)):
            self.assertTrue(page.startswith("<!doctype html>"))
            self.assertNotRegex(page, r"@[A-Z]+@")
            self.assertNotRegex(page.replace("http://www.w3.org/2000/svg", ""), r"https?://|<link|src=")
        self.assertIn("<svg", plan.html())
        self.assertIn("fam0", plan.html())

    def test_timeline_has_every_rank_and_role(self):
        page = self.plan().html(timeline=True)
        data = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', page, re.S).group(1))
        [panel] = data["panels"]
        self.assertEqual(panel["ranks"], [0, 1, 2, 3])
        roles = {name: range(first, first + n) for name, first, n in data["roles"]}
        self.assertEqual(set(roles), set(self.plan().roles))
        tasks = [s for s in panel["spans"] if s[3] == 0]
        for rank in panel["ranks"]:
            for name, ctas in roles.items():
                self.assertTrue([s for s in tasks if s[0] == rank and s[1] in ctas], f"rank {rank} {name}")
        self.assertTrue(all(0 <= s[7] and s[7] + s[8] <= data["length"] + 1 for s in tasks))
        with self.assertRaisesRegex(mk.UnsupportedError, "a timeline is of one kernel"):
            self.plan(fuse="never").html(timeline=True)

    def test_explain_writes_the_page(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "t.html")
            done = run("explain", LINEAR, *SIZES, "--html", str(path))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("predicted on 4 ranks", path.read_text())


class Documents(unittest.TestCase):
    def test_the_notebook_is_the_tutorial(self):
        self.assertEqual(notebook.NOTEBOOK.read_text(), notebook.notebook(notebook.PAGE.read_text()), "run mk-python/tests/notebook.py")

    def test_its_picture_is_what_its_command_draws(self):
        text = notebook.PAGE.read_text()
        command, path = re.search(r"`mk (plan .*?) -o (docs/\S+)`", text).groups()
        words = [w.strip("'") for w in re.findall(r"'[^']*'|\S+", command)]
        self.assertEqual((ROOT / path).read_text(), run(*words).stdout)


if __name__ == "__main__":
    unittest.main()
