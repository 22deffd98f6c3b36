//! Litmus tests on hardware: the synchronisation primitives of emitted kernels, millions of times, with random delays
//! and noise, within a GPU and across NVLink; and broken variants, some of which must be seen to fail, so that the
//! clean ones mean something. `docs/memory-model.md` names the edges.
//!
//! Without a GPU the kernels are compiled and the rest is `SKIPPED`. To see the table:
//! `cargo test -p mk-kernels --test litmus -- --nocapture`.

mod cases;
mod faults;
mod layout;
mod pinned;
mod play;
mod table;

use cases::{CASES, Expect, Place};
use layout::UNITS;
use mk::runtime::{Error, World, jit::Compiled};
use mk_skip::{Need, skip};
use std::collections::BTreeSet;
use table::Row;

/// Compiled kernels, or nothing and a visible reason.
fn units(test: &str) -> Option<&'static [Compiled]> {
    match layout::compiled() {
        Ok(compiled) => Some(compiled),
        Err(Error::NvrtcMissing { .. }) => {
            skip(Need::Nvrtc, test);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_litmus_compiles() {
    let Some(compiled) = units("every_litmus_compiles") else { return };
    for (i, litmus) in CASES.iter().enumerate() {
        let entry = compiled[i % UNITS].report.entry(litmus.name);
        assert!(entry.is_some_and(|e| !e.spills()), "{}: {entry:?}", litmus.name);
    }
    println!("{} litmus kernels compile", CASES.len());
}

#[test]
fn names_and_variants_are_distinct() {
    let names: BTreeSet<_> = CASES.iter().map(|c| c.name).collect();
    assert_eq!(names.len(), CASES.len());
    for litmus in CASES.iter().filter(|c| c.place != Place::Across) {
        let same = |c: &&cases::Litmus| {
            c.place != Place::Across
                && c.fields == litmus.fields
                && c.family.function() == litmus.family.function()
        };
        assert_eq!(CASES.iter().filter(same).count(), 1, "{} is there twice", litmus.name);
    }
    assert!(
        CASES.iter().filter(|c| matches!(c.expect, Expect::Fails | Expect::FailsAcross)).count()
            >= 10
    );
}

/// The worlds of a machine: one GPU alone, and all of them (at most 4).
struct Worlds {
    within: World,
    /// Two ranks on one GPU, for what needs a peer.
    sharing: World,
    across: Option<World>,
}

fn worlds() -> Result<Worlds, Error> {
    let mut across = None;
    for n in 2..=4 {
        match World::local(n) {
            Ok(world) => across = Some(world),
            Err(error) => {
                println!("no world of {n} GPUs: {error}");
                break;
            }
        }
    }
    Ok(Worlds { within: World::on_devices(&[0])?, sharing: World::on_devices(&[0, 0])?, across })
}

#[test]
fn hardware_keeps_what_the_model_promises() {
    const NAME: &str = "hardware_keeps_what_the_model_promises";
    let worlds = match worlds() {
        Ok(worlds) => worlds,
        Err(error) if error.is_no_device() => {
            return skip(Need::Gpus(1), error);
        }
        Err(error) => panic!("{error}"),
    };
    let Some(compiled) = units(NAME) else { return };
    let begin = std::time::Instant::now();
    let fails_across = worlds.within.gpu_name(0).is_ok_and(|name| name.contains("H200"));
    let rows: Vec<Row> = CASES
        .iter()
        .enumerate()
        .map(|(i, litmus)| {
            let compiled = &compiled[i % UNITS];
            let within = (litmus.place != Place::Across).then(|| {
                let world = match litmus.family {
                    cases::Family::Entered => &worlds.sharing,
                    _ => &worlds.within,
                };
                play::play(world, litmus, compiled)
            });
            let across = (litmus.place != Place::Within)
                .then_some(worlds.across.as_ref())
                .flatten()
                .map(|world| play::play(world, litmus, compiled));
            Row { litmus, within, across, fails_across }
        })
        .collect();
    table::print(&rows, worlds.across.as_ref().map_or(1, World::size), begin.elapsed());
    let failures: Vec<String> = rows.iter().flat_map(Row::failures).collect();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}
