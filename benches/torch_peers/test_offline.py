"""Rows, tables, plots and files, without torch and without a GPU. mk is used where it can be imported."""

import contextlib
import copy
import io
import json
import pathlib
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree as xml

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import ours  # noqa: E402
import plot  # noqa: E402
import predicted  # noqa: E402
import report  # noqa: E402
import rows as table  # noqa: E402
import tables  # noqa: E402

import mk  # noqa: E402


def result():
    def timed(name, kind, ms, **more):
        return {"name": name, "kind": kind, "ms": ms, "host_us": 10.0, "error": 2e-3, "tile_error": 4e-3, "good": True} | more

    row = table.Row("gather-gemm", 4096, 4096, 1024)
    other = table.Row("gather-gemm", 8192, 8192, 2048)
    described = [
        {"op": r.op, "m": r.m, "k": r.k, "n": r.n, "key": r.key, "flop": r.flop(4), "link_bytes": r.link_bytes(4)} for r in (row, other)
    ]
    described[0] |= {
        "link_ms": 0.064,
        "results": [
            timed("mk", "ours", 0.128, idle_ms=0.15),
            timed("NCCL, cuBLAS", "peer", 0.160, idle_ms=0.18),
            timed("async-TP", "peer", 0.256, idle_ms=0.45),
            timed("compute alone", "alone", 0.048),
        ],
        "missing": [{"name": "async-TP, native", "reason": "RuntimeError: no such <path>"}],
    }
    described[1] |= {
        "link_ms": 0.3,
        "results": [timed("mk", "ours", 0.4), timed("NCCL, cuBLAS", "peer", 0.8), timed("compute alone", "alone", 0.36)],
        "missing": [],
    }
    return {
        "format": 1,
        "date": "2026-01-02",
        "command": "benches/torch_peers --rounds 20",
        "revision": "abc",
        "seconds": 12.0,
        "ranks": 4,
        "rounds": 20,
        "quick": False,
        "machine": {"gpu": "Some GPU", "driver": "1.2"},
        "versions": {"torch": "2.11"},
        "link": {"bytes_per_s": 3.9e11, "way": "writes to all peers"},
        "skew": {"median_us": 0.5, "all_us": [0.1 * i for i in range(10)], "clock_doubt_us": 0.4},
        "rows": described,
    }


class Rows(unittest.TestCase):
    def test_every_row_has_its_own_name_and_a_title(self):
        self.assertEqual(len({r.key for r in table.ROWS}), len(table.ROWS))
        self.assertEqual(set(table.TITLES), set(table.SHAPES))
        self.assertLessEqual(table.QUICK, {r.key for r in table.ROWS})

    def test_work_and_bytes(self):
        gather = table.Row("gather-gemm", 4096, 4096, 1024)
        self.assertEqual(gather.flop(4), 2 * 4096 * 4096 * 1024)
        self.assertEqual(gather.link_bytes(4), 3072 * 4096 * 2)
        scatter = table.Row("gemm-reduce_scatter", 4096, 1024, 4096)
        self.assertEqual(scatter.link_bytes(4), 3072 * 4096 * 2)
        self.assertEqual(table.Row("gemm-all_reduce", 4096, 1024, 4096).link_bytes(4), 2 * scatter.link_bytes(4))
        mlp = table.Row("mlp-gelu", 2048, 4096, 16384)
        self.assertEqual(mlp.products(4), [(2048, 4096, 4096), (2048, 4096, 4096)])
        self.assertEqual(mlp.link_bytes(4), 2 * 1536 * 4096 * 2)
        gated = table.Row("mlp-swiglu", 2048, 4096, 14336)
        self.assertEqual(gated.products(4), [(2048, 4096, 7168), (2048, 3584, 4096)])

    def test_random_shapes(self):
        rows = table.draw(5, 3)
        self.assertEqual(rows, table.draw(5, 3))
        self.assertEqual([r.op for r in rows], [op for op in table.SINGLE for _ in range(3)])
        self.assertTrue(all(n % 64 == 0 and n >= 64 for r in rows for n in (r.m, r.k, r.n)))
        self.assertNotEqual(rows, table.draw(6, 3))
        with self.assertRaisesRegex(ValueError, "no random shapes of mlp-gelu"):
            table.draw(5, 3, ["mlp-gelu"])

    def test_selection(self):
        self.assertEqual(table.select() + table.select(world=1), table.ROWS)
        self.assertEqual({r.op for r in table.select(world=1)}, {"gemm"})
        self.assertIn("gemm 64x7168x8192", {r.key for r in table.select(world=1)})
        self.assertEqual([r.m for r in table.select(["gather-gemm"], "32768x")], [32768])
        self.assertEqual({r.key for r in table.select(quick=True) + table.select(quick=True, world=1)}, table.QUICK)
        with self.assertRaisesRegex(ValueError, "no such operation on 4 ranks: gemm;"):
            table.select(["gemm"])
        with self.assertRaisesRegex(ValueError, "no such operation on 1 ranks: gather-gemm;"):
            table.select(["gather-gemm"], world=1)
        with self.assertRaisesRegex(ValueError, "no row"):
            table.select(None, "1x1x1")

    def test_every_kernel_has_a_proved_plan(self):
        for row in table.select(quick=True):
            for kernel in [row.kernel(4), *row.separate(4)]:
                plan = mk.plan(kernel.pipeline, ranks=4, shapes=kernel.shapes)
                self.assertEqual({name: tuple(shape) for name, shape in kernel.shapes.items()}, plan.shapes)
            inputs, outputs = mk.plan(row.kernel(4).pipeline, ranks=4, shapes=row.kernel(4).shapes).local_shapes(0)
            first = next(iter(inputs.values()))
            sharded = row.op not in ("gemm-reduce_scatter", "gemm-all_reduce")
            self.assertEqual(first, (row.m // 4 if sharded else row.m, row.k), row.key)
            self.assertEqual(len(outputs), 1)


class Settings(unittest.TestCase):
    KEY = "gather-gemm 4096x4096x1024"

    def test_every_kernel_can_be_tuned(self):
        lines = table.tune_lines(table.select(world=1), 1)
        self.assertEqual(len(lines), len(set(lines)))
        self.assertIn("'gemm(a, b)' --shape a=64x7168 --shape b=7168x8192 --ranks 1", lines)
        lines = table.tune_lines(table.select(), 4)
        self.assertEqual(len(lines), len(set(lines)))
        self.assertIn("'gather(a) -> gemm(b)' --shape a=4096x4096 --shape b=4096x4096 --ranks 4", lines)
        self.assertTrue(any("swiglu -> gemm(v) -> reduce_scatter }' --shape x=8192x8192" in line for line in lines))

    def test_a_config_reaches_the_plan(self):
        given = {self.KEY: {"intra_comm_sms": 20, "block": "128x128x64", "chunk_bytes": 131072, "k_slices": 4}}
        row = table.Row("gather-gemm", 4096, 4096, 1024)
        [settings] = ours.given(row, ours.FUSED, 4, given)
        plan = mk.plan(row.kernel(4).pipeline, ranks=4, shapes=row.kernel(4).shapes, settings=settings)
        self.assertEqual(plan.roles["intra_comm"], 20)
        self.assertIn("block=128x128x64", str(plan))
        self.assertIn("inner q in 4", str(plan))
        self.assertEqual(ours.settings_of(given, "another row"), {})
        self.assertIn("intra_comm 20", ours.roles(plan))

    def test_settings_of_a_plan_make_the_same_plan(self):
        row = table.Row("gather-gemm", 4096, 4096, 1024)
        kernel = row.kernel(4)
        given = {"intra_comm_sms": 20, "block": "128x128x64", "chunk_bytes": 131072, "k_slices": 4, "last_wave": "1x64"}
        plan = mk.plan(kernel.pipeline, ranks=4, shapes=kernel.shapes, settings=given)
        [settings] = ours.settings([plan])
        self.assertEqual({name: settings[name] for name in given}, {name: str(value) for name, value in given.items()})
        stored = {"results": [{"name": ours.FUSED, "settings": [settings]}]}
        [again] = ours.given(row, ours.FUSED, 4, {}, stored)
        self.assertEqual(str(mk.plan(kernel.pipeline, ranks=4, shapes=kernel.shapes, settings=again)), str(plan))

    def test_settings_of_each_contestant(self):
        row = table.Row("mlp-gelu", 2048, 4096, 16384)
        config = {row.key: {"group_m": 16}}
        self.assertEqual(ours.given(row, ours.FUSED, 4, config), [{"group_m": 16}])
        self.assertEqual(ours.given(row, ours.SEPARATE, 4, config), [{}, {}])
        stored = {"results": [{"name": ours.FUSED, "settings": [{"group_m": "8"}]}]}
        self.assertEqual(ours.given(row, ours.FUSED, 4, {}, stored), [{"group_m": "8"}])
        self.assertEqual(ours.given(row, ours.SEPARATE, 4, {}, stored), [{}, {}])
        stored["results"].append({"name": ours.SEPARATE, "settings": [{}]})
        with self.assertRaisesRegex(ValueError, "made of 1 kernels"):
            ours.given(row, ours.SEPARATE, 4, {}, stored)

    def test_unknown_settings_are_refused(self):
        with self.assertRaisesRegex(ValueError, f"{self.KEY}: there is no setting tail; the settings are block, "):
            ours.settings_of({self.KEY: {"tail": "1x64"}}, self.KEY)


class Report(unittest.TestCase):
    def test_what_follows_from_times(self):
        first, second = (report.derive(row) for row in result()["rows"])
        self.assertEqual((first["best_peer"], first["bound_by"], second["bound_by"]), ("NCCL, cuBLAS", "link", "compute"))
        self.assertAlmostEqual(first["speedup"], 1.25)
        self.assertAlmostEqual(first["idle_speedup"], 1.2)
        self.assertIsNone(second["idle_speedup"])
        self.assertAlmostEqual(first["of_bound"], 0.5)
        self.assertAlmostEqual(second["of_bound"], 0.9)
        self.assertAlmostEqual(report.mean([1.25, None, 2.0]), 2.5**0.5)
        self.assertIsNone(report.mean([None]))

    def test_without_ours_or_without_peers(self):
        row = result()["rows"][0]
        row["results"] = [r for r in row["results"] if r["kind"] == "alone"]
        found = report.derive(row)
        self.assertEqual([found[n] for n in ("ours", "best_peer", "speedup", "of_bound")], [None] * 4)

    def test_table(self):
        text = report.markdown(result())
        self.assertIn("`gather -> gemm`:", text)
        self.assertIn("| 4096 × 4096 × 1024 | **.1280** | .1600 | .2560 | .0480 | 1.25 | 1.20 | .0640 link | 0.50 | 10, 10 |", text)
        self.assertIn("| 8192 × 8192 × 2048 | **.4000** | .8000 | – | .3600 | 2.00 | – | .3600 compute | 0.90 | 10, 10 |", text)
        self.assertIn("Geometric means: best peer ÷ mk 1.58 (1.20 into an idle queue), bound ÷ mk 0.67.", text)
        self.assertIn("- async-TP, native: RuntimeError: no such <path> (gather-gemm 4096x4096x1024)", text)
        columns = {line.count("|") for line in text.splitlines() if line.startswith("|")}
        self.assertEqual(len(columns), 1)

    def test_settings_are_listed_and_found_again(self):
        one = result()
        self.assertIn("Settings of mk:\n\n- not recorded: all rows\n", report.markdown(one))
        first, second = one["rows"]
        first["results"][0]["settings"] = [{"block": "128x256x64", "k_slices": "8"}]
        text = report.markdown(one)
        self.assertIn(f"- {first['key']}: `block=128x256x64 k_slices=8`\n- not recorded: {second['key']}\n", text)
        self.assertIs(report.stored(one, first["key"]), first)
        with self.assertRaisesRegex(report.FormatError, "not recorded; --rows 'gather-gemm 8192x8192x2048'"):
            report.stored(one, second["key"])
        with self.assertRaisesRegex(report.FormatError, "no row 'gemm'"):
            report.stored(one, "gemm")
        later = copy.deepcopy(one)
        later["rows"] = later["rows"][:1]
        later["rows"][0]["results"][0]["ms"] = 0.13
        self.assertEqual(report.again(first, later), ["gather-gemm 4096x4096x1024: mk .1300 ms, stored .1280 ms"])

    def test_wrong_results_fail_and_show(self):
        bad = result()
        self.assertEqual(report.wrong(bad), [])
        bad["rows"][0]["results"][0] |= {"good": False, "error": 0.5}
        bad["rows"][1]["results"] = bad["rows"][1]["results"][1:]
        bad["rows"][1]["missing"] = [{"name": "mk", "reason": "FaultError: a wait did not end"}]
        found = report.wrong(bad)
        self.assertEqual([line.split(":")[0] for line in found], ["WRONG", "MISSING"])
        self.assertIn("a wait did not end", found[1])
        self.assertIn(".1280 (wrong)", report.markdown(bad))

    def test_a_missed_prediction_fails_the_run(self):
        one = result()
        self.assertEqual(report.missed(one), [])
        one["rows"][0]["results"][0]["predicted_ms"] = 1.29 * one["rows"][0]["results"][0]["ms"]
        self.assertEqual(report.missed(one), [])
        for factor in (0.69, 1.31):
            one["rows"][0]["results"][0]["predicted_ms"] = factor * one["rows"][0]["results"][0]["ms"]
            self.assertEqual([line.split(": ")[1] for line in report.missed(one)], [one["rows"][0]["key"]])

    def test_other_benches_fail_of_missed_predictions(self):
        for bench in ("experts", "attention", "step"):
            text = "".join(path.read_text() for path in sorted((pathlib.Path(__file__).parents[1] / bench).glob("*.py")))
            self.assertIn("predicted.status(", text, bench)
        rows = [{"shape": "T64", "mk_ms": 1.0, "predicted_ms": 1.29}, {"row": "8192x4096", "mk_ms": 1.0, "predicted_ms": None}, {"row": "none"}]
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertIsNone(predicted.status(rows, 0))
            self.assertEqual(said.getvalue(), "")
            rows[1]["predicted_ms"] = 0.69
            self.assertEqual(predicted.status(rows, 0), "1 predictions are off by 30 %")
            self.assertEqual(predicted.status(rows, 2), "2 results are wrong; 1 predictions are off by 30 %")
        self.assertIn("PREDICTION: 8192x4096 takes 1.0000 ms, and 0.6900 were predicted", said.getvalue())
        plan = types.SimpleNamespace
        self.assertEqual(predicted.of([plan(predicted_ms=1.0), plan(predicted_ms=0.5)]), 1.5)
        self.assertIsNone(predicted.of([plan(predicted_ms=1.0), plan(predicted_ms=None)]))
        self.assertIsNone(predicted.of([]))

    def test_a_quick_look_says_so(self):
        self.assertIn("quick look", report.markdown(result() | {"quick": True}))

    def test_means_and_least_ratios_of_runs(self):
        slow = result()
        slow["rows"][0]["results"][1]["ms"] = 0.064
        self.assertEqual(
            tables.by_run([("a", [result()]), ("b", [result(), slow])]).splitlines(),
            [
                "|  | a | b |",
                "|---|---|---|",
                "| `gather -> gemm` | 1.58 (1.25) | 1.26 (0.50) |",
                "| all | 1.58 (1.25) | 1.26 (0.50) |",
                "| all, idle queue | 1.20 | 1.20 |",
                "| bound ÷ mk | 0.67 | 0.67 |",
                "| rows; a peer is faster in | 2; 0 | 4; 1 |",
            ],
        )

    def test_only_the_block_is_replaced(self):
        name = "runs"
        begin, end = tables.marks(name)
        document = f"before\n{begin}\nold\n{end}\nafter\n"
        once = tables.replace_block(document, "new\n", name)
        self.assertEqual(once, f"before\n{begin}\n\nnew\n\n{end}\nafter\n")
        self.assertEqual(tables.replace_block(once, "new\n", name), once)
        for broken in ("nothing", document + document, f"{end} {begin}"):
            with self.assertRaises(report.FormatError):
                tables.replace_block(broken, "new", name)

    def test_the_document_has_the_tables_of_the_files(self):
        text = tables.DOCUMENT.read_text()
        self.assertEqual(tables.write(text, tables.blocks()), text, "run benches/torch_peers/tables.py")
        self.assertEqual(text.count("<!-- table "), 2 * len(tables.blocks()))

    def test_the_pictures_are_those_of_the_files(self):
        root = pathlib.Path(__file__).parents[2]
        for folder, ranks in (root / "docs/peers", 4), (root / "docs/peers/two", 2), (root / "docs/peers/one", 1):
            kept = report.load(folder / "peers.json")
            self.assertEqual(kept["ranks"], ranks)
            for picture in folder.glob("*.svg"):
                self.assertEqual(picture.read_text(), plot.svg(kept, picture.stem, report.derive))

    def test_the_readme_has_the_means_of_the_file(self):
        root = pathlib.Path(__file__).parents[2]
        kept = report.load(root / "docs/peers/peers.json")
        derived = [report.derive(row) for row in kept["rows"]]
        readme = " ".join((root / "README.md").read_text().split())
        self.assertIn(f"{len(derived)} rows beside cuBLAS", readme)
        self.assertIn(f"takes {report.middles(derived)[0]} times as long as mk", readme)
        self.assertEqual("is faster in no row" in readme, all(d["speedup"] >= 1 for d in derived))
        self.assertIn(f"({kept['date']})", readme)

    def test_calls_in_a_loop_have_a_column_where_they_were_timed(self):
        plain = result()
        self.assertNotIn("in a loop", report.markdown(plain))
        looped = copy.deepcopy(plain)
        for name, us in (("mk", 9.6), ("NCCL, cuBLAS", 20.2)):
            next(r for r in looped["rows"][0]["results"] if r["name"] == name)["loop_us"] = us
        lines = report.markdown(looped).splitlines()
        head = next(line for line in lines if "in a loop" in line)
        self.assertTrue(head.endswith("| host µs: mk, best peer | the same, in a loop |"), head)
        rows = [line for line in lines if line.startswith(("| 4096", "| 8192"))]
        self.assertTrue(rows[0].endswith("| 10, 10 | 10, 20 |"), rows[0])
        self.assertTrue(rows[1].endswith("| 10, 10 | –, – |"), rows[1])
        self.assertTrue(all(line.count("|") == head.count("|") for line in rows), rows)

    def test_figures_are_rounded_before_they_are_used(self):
        self.assertEqual(report.rounded({"a": [0.12345678, 3, None], "b": "x"}), {"a": [0.123457, 3, None], "b": "x"})

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            where = types.SimpleNamespace(json=folder / "r.json", plots=folder / "plots")
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                report.publish(result(), where)
            self.assertIn("**.1280**", printed.getvalue())
            self.assertEqual(report.load(folder / "r.json"), report.rounded(result()))
            self.assertEqual([p.name for p in (folder / "plots").iterdir()], ["gather-gemm.svg"])
            for text in ("{", "[]", json.dumps({"format": 2, "rows": []})):
                (folder / "r.json").write_text(text)
                with self.assertRaises(report.FormatError):
                    report.load(folder / "r.json")


class Plot(unittest.TestCase):
    def test_bars_are_times_over_the_bound(self):
        root = xml.fromstring(plot.svg(result(), "gather-gemm", report.derive))
        space = "{http://www.w3.org/2000/svg}"
        bars = [(r.find(f"{space}title").text, float(r.get("width"))) for r in root.iter(f"{space}rect") if len(r)]
        self.assertEqual(len(bars), 5)
        widths = {title.split(":")[0]: width for title, width in bars[:3]}
        self.assertAlmostEqual(widths["async-TP"] / widths["mk"], 2.0, places=2)
        most = max(x for _, x in bars)
        self.assertAlmostEqual(most, plot.WIDTH, places=0)

    def test_names_are_escaped_and_empty_ones_left_out(self):
        odd = copy.deepcopy(result())
        odd["rows"][0]["results"][1]["name"] = "a < b & c"
        xml.fromstring(plot.svg(odd, "gather-gemm", report.derive))
        self.assertIsNone(plot.svg(odd, "mlp-gelu", report.derive))


if __name__ == "__main__":
    unittest.main()
