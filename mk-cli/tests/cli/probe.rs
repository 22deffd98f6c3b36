//! Raw figures of a machine.

use crate::command::{TempDir, mk};
use mk_skip::{Need, skip};

/// On two GPUs.
#[test]
fn raw_figures() {
    let dir = TempDir::new();
    let json = dir.file("raw.json");
    let done = mk(&["probe", "--raw", "--ranks", "2", "--raw-rounds", "1", "-o", &json]);
    let absent = ["no CUDA driver", "GPUs for 2 ranks", "NVRTC (libnvrtc.so.13) was not found"];
    if let Some(why) = absent.into_iter().find(|why| done.err.contains(why)) {
        skip(Need::Gpus(2), why);
        assert_eq!(done.status, 1, "{}", done.err);
        return;
    }
    let text = done.ok();
    println!("{text}");
    for piece in [
        "copy engine",
        "bulk reduce  16K",
        "to the next rank, 2 at once",
        "256M",
        "TFLOP/s by one SM for",
    ] {
        assert!(text.contains(piece), "no `{piece}` in:\n{text}");
    }
    let raw = std::fs::read_to_string(&json).expect("the file");
    let raw = ::mk::cost::RawFigures::parse(&raw).expect("raw figures");
    assert_eq!(raw.ranks, 2);
    // Figures of any machine that runs this at all: a mistake of units is a factor of a thousand.
    assert!((1e-7..1e-4).contains(&raw.flag_local_s) && (1e-7..1e-4).contains(&raw.flag_peer_s));
    assert!((1e-7..1e-4).contains(&raw.launch_device_s), "{}", raw.launch_device_s);
    let rates: Vec<f64> = raw.mma.iter().map(|m| m.flop_per_s() / f64::from(m.sms)).collect();
    assert!(rates.len() == 3 && rates.iter().all(|r| (2e12..8.5e12).contains(r)), "{rates:?}");
    assert!((5e11..2e13).contains(&raw.hbm_read_bytes_per_s), "{}", raw.hbm_read_bytes_per_s);
}

#[test]
fn raw_figures_alone_make_no_model() {
    mk(&["probe", "--raw", "--install"]).fails(2, &["--raw", "--install"]);
    mk(&["probe", "--raw", "--raw-rounds", "16"]).fails(2, &["1..=15"]);
    mk(&["probe", "--raw", "--ranks", "1"]).fails(2, &["--ranks"]);
}
