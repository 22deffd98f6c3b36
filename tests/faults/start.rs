//! Worlds that cannot be: a rank that does not come, a GPU that is not there, one GPU for two ranks.

use crate::children::{Children, say};
use crate::rig::{GATHER, Rig, options};
use crate::{alone, world};
use mk::runtime::{
    Error, World,
    world::{UnixBootstrap, WorldOptions},
};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(2);

pub fn absent(_rank: u32, _size: u32) {
    match UnixBootstrap::from_env(LIMIT) {
        Err(error @ Error::Rendezvous { .. }) => say(format!("ERR {error}")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let said = Children::start("absent", [0, 2], 4).finish("ERR ", Duration::from_secs(30));
    assert_eq!(said.len(), 2, "{said:?}");
    for (rank, error) in &said {
        println!("rank {rank}: {error}");
        assert!(error.contains("missing: ranks 1, 3"), "{error}");
    }
}

pub fn hosts(rank: u32, _size: u32) {
    let met = WorldOptions::from_env().and_then(|options| {
        // Longer than processes on a busy machine start apart.
        let mut all = World::bootstrap_from_env(&options, 3 * LIMIT)?;
        all.all_gather(&[rank as u8])
    });
    match met {
        Ok(parts) => say(format!("MET {parts:?}")),
        Err(error) => say(format!("MET {error}")),
    }
}

/// Processes of two hosts, as a launcher starts them: with the same token, with different ones, and without.
#[test]
fn hosts_meet_by_their_token() {
    let folder = std::env::temp_dir().join(format!("mk-tokens-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let tokens = ["the secret of this run", "the secret of another run"].map(|text| {
        let path = folder.join(text.len().to_string());
        std::fs::write(&path, text).expect("a token");
        let owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, owner).expect("a file of its owner");
        path.display().to_string()
    });
    let port = || {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let meet = |host: &str, token: [Option<usize>; 2]| {
        let meet = format!("{host}:{}", port());
        Children::start_with("hosts", 0..2, 2, |rank| {
            let token = token[rank as usize].map(|i| ("MK_TOKEN_FILE", tokens[i].clone()));
            let set = [("LOCAL_WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MK_MEET", &meet)];
            let set = set.map(|(name, value)| (name, value.to_string()));
            set.into_iter().chain(token).collect()
        })
    };
    let same = meet("127.0.0.1", [Some(0); 2]);
    let other = meet("127.0.0.1", [Some(0), Some(1)]);
    let none = meet("192.0.2.1", [None; 2]);
    let said = |children: Children| {
        let said = children.finish("MET ", Duration::from_secs(30));
        assert_eq!(said.len(), 2, "{said:?}");
        [said[0].1.clone(), said[1].1.clone()]
    };
    assert_eq!(said(same), ["[[0], [1]]", "[[0], [1]]"]);
    let [zero, one] = said(other);
    assert!(zero.contains("missing: rank 1"), "{zero}");
    assert!(one.contains("does not know the token"), "{one}");
    for refused in said(none) {
        assert!(refused.contains("there is no token") && refused.contains("MK_TOKEN_FILE"));
    }
    std::fs::remove_dir_all(&folder).expect("goes");
}

fn joined(device: i32) -> Result<World, Error> {
    World::connect(Box::new(UnixBootstrap::from_env(Duration::from_secs(20))?), device)
}

pub fn no_such_gpu(rank: u32, _size: u32) {
    let error = joined(if rank == 1 { 99 } else { rank as i32 }).expect_err("rank 1 has no GPU");
    match (&error, rank) {
        (Error::NoSuchDevice { device: 99, .. }, 1) | (Error::PeerFailed { rank: 1, .. }, _) => {}
        _ => panic!("{error}"),
    }
    say(format!("ERR {error}"));
}

pub fn one_gpu_for_two(_rank: u32, _size: u32) {
    let error = joined(0).expect_err("one GPU");
    assert!(matches!(error, Error::SameDevice { ranks: (0, 1), .. }), "{error}");
    say(format!("ERR {error}"));
}

/// Each process sees one GPU, which it calls 0.
pub fn isolated(_rank: u32, _size: u32) {
    let world = joined(0).expect("connects");
    let mut rig = Rig::new(&world, &GATHER, &options()).expect("maps what it does not see");
    for epoch in 1..=3 {
        for (rank, hash) in rig.step(epoch).expect("runs") {
            say(format!("HASH {epoch} {rank} {hash:x}"));
        }
    }
}

#[test]
fn processes_that_see_one_gpu_each() {
    let _alone = alone();
    let Some(world) = world("processes_that_see_one_gpu_each") else { return };
    let size = world.size();
    let mut rig = Rig::new(&world, &GATHER, &options()).expect("binds");
    let mut expected = Vec::new();
    for epoch in 1..=3 {
        let all = rig.step(epoch).expect("runs");
        expected.extend(all.iter().map(|(rank, hash)| format!("{epoch} {rank} {hash:x}")));
    }
    drop(rig);
    drop(world);
    let visible = |rank: u32| vec![("CUDA_VISIBLE_DEVICES", rank.to_string())];
    let children = Children::start_with("isolated", 0..size, size, visible);
    let said = children.finish("HASH ", Duration::from_secs(60));
    let mut said: Vec<String> = said.into_iter().map(|(_, line)| line).collect();
    said.sort();
    expected.sort();
    assert_eq!(said, expected);
    println!("ok {size} processes that see one GPU each");
}

#[test]
fn gpus_that_do_not_fit_the_ranks_are_refused_on_all() {
    let _alone = alone();
    let Some(world) = world("gpus_that_do_not_fit_the_ranks") else { return };
    let size = world.size();
    drop(world);
    for case in ["no_such_gpu", "one_gpu_for_two"] {
        let said = Children::start(case, 0..size, size).finish("ERR ", Duration::from_secs(60));
        assert_eq!(said.len(), size as usize, "{said:?}");
        println!("ok {case}: {}", said[0].1);
    }
}
