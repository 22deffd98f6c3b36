"""Kernels and workspace of a step, without torch and without a GPU."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import said  # noqa: E402

import mk  # noqa: E402


class Said(unittest.TestCase):
    def test_a_block_has_no_kernels_of_others(self):
        backward = [("mk_gated_backward", 9.0), ("Memcpy PtoP (Device -> Device)", 2.0)]
        self.assertEqual(said.strangers(backward, False), ([], []))
        silu = "void at::native::vectorized_elementwise_kernel<4, silu>"
        self.assertEqual(said.strangers([*backward, (silu, 1.0)], False), ([silu], [silu]))

    def test_a_layer_has_norms_of_others_but_no_gemms(self):
        norm, gemm = "void at::native::vectorized_layer_norm_kernel<...>", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTT"
        self.assertEqual(said.strangers([(norm, 1.0), ("mk_f", 1.0)], True), ([norm], []))
        for name in (gemm, "ncclDevKernel_AllGather_RING_LL", "void cutlass::Kernel2<cutlass_80>", "cudnn_generated_fort_native_sdpa"):
            self.assertEqual(said.strangers([(norm, 1.0), (name, 1.0)], True)[1], [name])

    def test_workspace_is_read_from_explanations(self):
        text = "time 1 us\nworkspace  28.0 MiB in common with other functions of a world, 16.0 MiB of its own\nbound by   compute"
        self.assertEqual(said.workspace([text, text.replace("28.0", "20.0")]), 60.0)
        self.assertIsNone(said.workspace([text, "time 1 us"]))
        self.assertIsNone(said.workspace([]))
        self.assertTrue(said.is_as_said(1000.0, 1040.0) and said.is_as_said(10.0, 18.0))
        self.assertFalse(said.is_as_said(1000.0, 940.0) or said.is_as_said(1000.0, 1060.0) or said.is_as_said(10.0, 19.0))

    def test_plans_explain_their_workspace(self):
        plan = mk.plan("gather(a) -> gemm(b)", ranks=2, shapes={"a": (256, 128), "b": (128, 256)})
        self.assertGreater(said.workspace([plan.explain()]), 0.0)


if __name__ == "__main__":
    unittest.main()
