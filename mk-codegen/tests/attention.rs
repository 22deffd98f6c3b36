//! Attention as CUDA: snapshots of the generated part, and what the leaf refuses.

#[path = "common/attention.rs"]
mod attention;

use attention::{ATTENTION, Attention, BASE};
use mk_codegen::{
    emit::{emit, library},
    plan::Plan,
    valid,
};

fn plan(a: &Attention) -> Plan {
    a.text().parse().unwrap_or_else(|e| panic!("{e}\n{}", a.text()))
}

#[test]
fn kernels() {
    for (name, a) in ATTENTION {
        let plan = plan(a);
        let kernel = emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let generated = kernel.cuda.split_once(library::END).expect("the library ends").1;
        if ["causal", "head_64_wide", "ring_causal"].contains(name) {
            insta::assert_snapshot!(format!("cuda_{name}"), generated);
        }
    }
}

#[test]
fn plans_verify() {
    for (name, a) in ATTENTION {
        // Few tiles: the verifier unrolls them.
        let plan = plan(&Attention { heads: 2, groups: a.groups.min(2), seq: 300, ..*a });
        valid::verify(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn what_no_tile_does_is_refused() {
    for (from, to, says) in [
        ("block=128x128x128", "block=64x128x128", "have 128 queries"),
        ("block=128x128x128", "block=128x192x128", "160, 176] keys"),
        ("block=128x128x128", "block=128x112x128", "160, 176] keys"),
        ("block=128x128x128", "block=192x128x128", "up to 128 keys"),
        ("stages=2", "stages=1", "2 stages or more"),
        ("store=direct", "store=tma", "store=direct"),
        ("scale=0x3db504f3", "scale=0xbdb504f3", "positive and finite"),
        ("scale=0x3db504f3", "scale=0x7fc00000", "positive and finite"),
        ("lse\" out f32", "lse\" out bf16", "`lse` of attend_tile is f32, and buf4 bf16"),
        ("buf1 \"k\" in bf16", "buf1 \"k\" in f16", "attend_tile converts nothing, bf16 to f16"),
    ] {
        let text = BASE.text();
        assert!(text.contains(from), "{from}: {text}");
        let error = emit(&text.replacen(from, to, 1).parse().expect(to)).expect_err(to).to_string();
        assert!(error.contains(says), "{to}: {error}");
    }
}
