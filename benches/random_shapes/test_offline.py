"""Shapes and figures, without torch and without a GPU."""

import pathlib
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import plot  # noqa: E402
import shapes as table  # noqa: E402
import summary  # noqa: E402


def row(m, torch_ms, mk_ms, good=True):
    def timed(name, ms):
        return {"name": name, "ms": ms, "good": good, "error": 1e-3, "tile_error": 2e-3}

    ours = timed("mk", mk_ms) | {"settings": {"settings": {"block": "128x128x64"}}}
    return {"shape": f"{m}x64x64", "m": m, "results": [timed("torch", torch_ms), ours], "missing": []}


class Shapes(unittest.TestCase):
    def test_a_seed_gives_the_same_shapes_within_bounds(self):
        drawn = table.draw(7, 200)
        self.assertEqual(drawn, table.draw(7, 200))
        self.assertNotEqual(drawn, table.draw(8, 200))
        for s in drawn:
            self.assertTrue(1 <= s.m <= 16384 and 512 <= s.k <= 16384 and 512 <= s.n <= 16384, s)
            self.assertTrue(s.k % 8 == 0 and s.n % 8 == 0, s)
        self.assertTrue(any(s.n % 64 for s in drawn) and any(s.m <= 8 for s in drawn))
        self.assertTrue(any(s.n % 8 for s in table.draw(7, 50, odd=True)))

    def test_a_shape_reads_as_it_is_written(self):
        self.assertEqual(table.parse("3x64x128"), table.Shape(3, 64, 128))
        for text in ("3x64", "0x1x1", "axbxc"):
            with self.assertRaises(ValueError):
                table.parse(text)

    def test_every_pipeline_is_one(self):
        import mk

        for op in table.OPS.values():
            mk.plan(op.pipeline, ranks=1, shapes=op.shapes(table.Shape(64, 256, 128)))


class Figures(unittest.TestCase):
    def test_ratios_are_of_what_is_right(self):
        rows = [row(16, 2.0, 1.0), row(512, 1.0, 2.0), row(4096, 1.0, 1.0), row(8, 9.0, 1.0, good=False)]
        f = summary.figures(rows)
        self.assertEqual((f["rows"], f["compared"]), (4, 3))
        self.assertAlmostEqual(f["mean"], 1.0)
        self.assertEqual((f["few"], f["middle"], f["many"]), (2.0, 0.5, 1.0))
        self.assertEqual((f["worst"], f["worst_shape"]), (0.5, "512x64x64"))
        self.assertAlmostEqual(f["p5"], 0.55)
        self.assertTrue(any("WRONG" in line for line in summary.wrong({"rows": rows})[:1]))

    def test_a_missed_prediction_fails_the_run(self):
        rows = [row(16, 2.0, 1.0), row(32, 2.0, 1.0), row(64, 2.0, 1.0)]
        self.assertEqual(summary.missed({"rows": rows}), [])
        for one, predicted_ms in zip(rows, (1.29, 1.31, 0.69)):
            one["results"][1]["predicted_ms"] = predicted_ms
        self.assertEqual([line.split()[1] for line in summary.missed({"rows": rows})], ["32x64x64", "64x64x64"])

    def test_a_picture_has_a_dot_for_each_ratio(self):
        rows = [row(16, 2.0, 1.0), row(512, 1.0, 9.0), row(8, 9.0, 1.0, good=False)]
        result = {"op": "product", "seed": 1, "date": "2026-11-25", "machine": {"gpu": "a GPU"}, "rows": rows}
        text = plot.svg(result)
        root = xml.etree.ElementTree.fromstring(text)
        dots = [e for e in root.iter() if e.tag.endswith("circle")]
        self.assertEqual(len(dots), 2)
        bottom = plot.TOP + plot.HEIGHT
        self.assertEqual([float(d.get("cy")) for d in dots], [plot.TOP, bottom])
        self.assertIn("512x64x64: 0.11; block=128x128x64", text)
        self.assertIsNone(plot.svg(result | {"rows": rows[2:]}))


if __name__ == "__main__":
    unittest.main()
