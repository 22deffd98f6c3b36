//! What is kept on disk: measured winners, and a machine's figures.

use super::{CASES, bound};
use mk::{
    Bound, Program,
    cost::{DeviceModel, Gpu},
    passes::{self},
    runtime::jit::JitOptions,
    settings::Config,
    tune::{self, Cache, Decision, Key, Origin, Winner, candidates},
};
use std::collections::BTreeMap;

pub fn in_a_cache(test: impl FnOnce(&Cache, &std::path::Path)) {
    let dir = std::env::temp_dir().join(format!(
        "mk-tune-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let options = JitOptions { cache_dir: Some(dir.clone()), ..JitOptions::default() };
    test(&Cache::new(&options).unwrap(), &dir.join("tune"));
    std::fs::remove_dir_all(&dir).unwrap();
}

fn decide(program: &Program, sizes: &Bound, gpu: &Gpu, cache: &Cache) -> Decision {
    let world = Config { ranks: 4, ..Config::default() };
    tune::decide_in(program, sizes, &world, gpu, Some(cache))
}

#[test]
fn a_winner_is_kept_for_what_it_was_measured_on() {
    let program = Program::parse(CASES[0].0).unwrap();
    let sizes = bound(&program, CASES[0].1);
    let key = |ranks, gpu: &str| Key::new(&program, &sizes, ranks, "sm_90a", gpu);
    let config = candidates(&program, &sizes, 4, &BTreeMap::new()).swap_remove(40);
    let winner = Winner { config: config.clone(), ms: 0.125 };
    in_a_cache(|cache, _| {
        assert_eq!(cache.recall(&key(4, "NVIDIA H200")), Ok(None));
        cache.store(&key(4, "NVIDIA H200"), &winner).unwrap();
        assert_eq!(cache.recall(&key(4, "NVIDIA H200")), Ok(Some(winner.clone())));
        for other in [key(2, "NVIDIA H200"), key(4, "NVIDIA H100")] {
            assert_eq!(cache.recall(&other), Ok(None));
        }
        let other = bound(&program, &[("a", &[1024, 512]), ("b", &[512, 4096])]);
        let other = Key::new(&program, &other, 4, "sm_90a", "NVIDIA H200");
        assert_eq!(cache.recall(&other), Ok(None));

        let decide = |gpu| decide(&program, &sizes, &Gpu::from(gpu), cache);
        let measured = decide("NVIDIA H200");
        assert_eq!((measured.config, measured.origin), (config, Origin::Measured));
        assert_eq!(measured.ms, Some(0.125));
        // Of another GPU there is neither a measurement nor a model.
        let none = decide("NVIDIA L4");
        assert_eq!(none.config, Config { ranks: 4, ..Config::default() });
        assert_eq!((none.origin, none.ms), (Origin::Default, None));
    });
}

/// As one of another version may be, whose settings mean what this one refuses.
#[test]
fn a_winner_without_a_kernel_leaves_the_choice_to_the_model() {
    let program = Program::parse(CASES[0].0).unwrap();
    let sizes = bound(&program, CASES[0].1);
    let key = Key::new(&program, &sizes, 4, "sm_90a", "NVIDIA H200");
    let config = Config { ranks: 4, block: [96, 96, 64], ..Config::default() };
    assert!(passes::compile(&program, &sizes, &config).is_err());
    in_a_cache(|cache, _| {
        cache.store(&key, &Winner { config, ms: 0.001 }).unwrap();
        let terms = tune::Conditions {
            config: &Config { ranks: 4, ..Config::default() },
            fuse: tune::Fuse::Always,
            overlap: false,
            search: Some((&"NVIDIA H200".into(), Some(cache))),
        };
        let decision = decide(&program, &sizes, &"NVIDIA H200".into(), cache);
        assert_eq!(decision.origin, Origin::Predicted);
        let note = decision.notes[0].to_string();
        assert!(note.contains("have no kernel") && note.contains("`mk tune` writes it"), "{note}");
        assert_eq!(tune::settle(&program, &sizes, &terms).configs, [decision.config]);
    });
}

#[test]
fn a_damaged_file_is_a_note_and_no_more() {
    let program = Program::parse(CASES[0].0).unwrap();
    let sizes = bound(&program, CASES[0].1);
    let key = Key::new(&program, &sizes, 4, "sm_90a", "NVIDIA H200");
    let config = Config { ranks: 4, ..Config::default() };
    in_a_cache(|cache, dir| {
        let path = cache.store(&key, &Winner { config, ms: 1.0 }).unwrap();
        assert_eq!(path.parent(), Some(dir));
        let good = std::fs::read_to_string(&path).unwrap();
        for (damage, what) in [
            (String::new(), "does not begin"),
            (good.replace("block=", "blok="), "is no setting"),
            (good.replace("ranks 4", "ranks 8"), "of another ranks"),
            (good.replace("ms 1", "ms nan"), "is no time"),
            (good.replace("end\n", ""), "cut short"),
            (good.lines().take(4).collect::<Vec<_>>().join("\n"), "ends before"),
        ] {
            std::fs::write(&path, damage).unwrap();
            let damaged = cache.recall(&key).unwrap_err();
            assert!(damaged.what.contains(what), "{damaged}");
            let decision = decide(&program, &sizes, &"NVIDIA H200".into(), cache);
            assert_eq!((decision.origin, decision.notes), (Origin::Predicted, vec![damaged]));
        }
        std::fs::write(&path, [0xFF, 0xFE]).unwrap();
        assert!(cache.recall(&key).is_err());
    });
}

#[test]
fn installed_figures_come_before_those_that_ship() {
    in_a_cache(|cache, dir| {
        assert_eq!(
            tune::model_of(&"NVIDIA H200".into(), Some(cache)),
            (Some(DeviceModel::h200().clone()), None)
        );
        let own = DeviceModel { launch_s: 1e-3, ..DeviceModel::h200().clone() };
        cache.store_model(&own).unwrap();
        assert_eq!(tune::model_of(&"NVIDIA H200".into(), Some(cache)), (Some(own.clone()), None));
        assert_eq!(tune::model_of(&"NVIDIA L4".into(), Some(cache)), (None, None));
        let other = DeviceModel { gpu: "NVIDIA L4".into(), ..DeviceModel::h200().clone() };
        cache.store_model(&other).unwrap();
        assert_eq!(tune::model_of(&"NVIDIA L4".into(), Some(cache)), (Some(other), None));
        assert_eq!(tune::model_of(&"NVIDIA H200".into(), Some(cache)), (Some(own), None));
        std::fs::write(dir.join("NVIDIA-H200.model.json"), "{}").unwrap();
        let (model, note) = tune::model_of(&"NVIDIA H200".into(), Some(cache));
        assert_eq!(model.as_ref(), Some(DeviceModel::h200()));
        assert!(note.unwrap().what.contains("not a device model"));
    });
}
