use super::*;
use std::time::Instant;

fn meet(run: &str, rank: u32, size: u32, ms: u64) -> Result<UnixBootstrap, Error> {
    let run = format!("{run}/{}", std::process::id());
    UnixBootstrap::meet(&run, rank, size, Duration::from_millis(ms))
}

/// Runs one closure per rank, each on a thread.
fn ranks<T: Send>(which: &[u32], work: impl Fn(u32) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let all: Vec<_> = which.iter().map(|r| scope.spawn(|| work(*r))).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn everybody_hears_everybody() {
    for size in [1, 2, 5] {
        let all: Vec<u32> = (0..size).collect();
        let heard = ranks(&all, |rank| {
            // Late ones too.
            std::thread::sleep(Duration::from_millis(u64::from(rank) * 20));
            let mut b = meet("everybody", rank, size, 5000).unwrap();
            b.barrier().unwrap();
            b.all_gather(&[rank as u8; 3]).unwrap()
        });
        let expected: Vec<Vec<u8>> = (0..size).map(|r| vec![r as u8; 3]).collect();
        assert!(heard.iter().all(|h| *h == expected), "{heard:?}");
    }
}

#[test]
fn one_world_after_another() {
    ranks(&[0, 1], |rank| {
        for round in 0..20u8 {
            let mut b = meet("again", rank, 2, 5000).unwrap();
            assert_eq!(b.all_gather(&[round]).unwrap(), [[round], [round]]);
        }
    });
}

#[test]
fn missing_ranks_are_named_on_every_rank() {
    let begin = Instant::now();
    let errors = ranks(&[0, 2], |rank| meet("missing", rank, 4, 300).unwrap_err());
    for error in &errors {
        let Error::Rendezvous { missing, .. } = error else { panic!("{error}") };
        assert_eq!(missing, &[1, 3], "{error}");
        assert!(error.to_string().contains("missing: ranks 1, 3"), "{error}");
    }
    assert!(begin.elapsed() < Duration::from_secs(3));
}

#[test]
fn without_rank_0_the_others_say_so() {
    let error = meet("headless", 1, 2, 100).unwrap_err();
    let Error::Rendezvous { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing, &[0]);
}

#[test]
fn another_run_does_not_get_in() {
    let errors = ranks(&[0, 1], |rank| {
        let run = if rank == 0 { "mine" } else { "theirs" };
        meet(run, rank, 2, 200).unwrap_err()
    });
    assert!(errors.iter().all(|e| matches!(e, Error::Rendezvous { .. })), "{errors:?}");
}

#[test]
fn a_stranger_with_the_name_and_without_the_token_is_ignored() {
    let run = format!("stranger/{}", std::process::id());
    let token = token(&run, 2);
    let answers = ranks(&[0, 1, 9], |rank| {
        if rank != 9 {
            let mut b = UnixBootstrap::meet(&run, rank, 2, Duration::from_secs(10)).ok()?;
            return b.all_gather(&[1]).ok().map(|all| all.len());
        }
        for _ in 0..5 {
            if let Ok(s) = UnixStream::connect_addr(&address(&token).unwrap()) {
                let lie = Pack::default().bytes(&[0; 32]).u64(1).done();
                let _ = wire::send(&s, &lie, Deadline::within(HELLO));
            }
        }
        None
    });
    assert_eq!(answers, [Some(2), Some(2), None]);
}

#[test]
fn two_of_one_rank_are_refused() {
    let errors = ranks(&[0, 1, 1], |rank| meet("twice", rank, 3, 2000).unwrap_err());
    let said = errors.iter().filter(|e| e.to_string().contains("two processes say")).count();
    // The newcomer's own connection closes, and it tries again until its time is up.
    assert!(said >= 2, "{errors:?}");
}

/// One that is answered behind it must not take rank 0 for one that may come back.
#[test]
fn a_rank_that_goes_away_before_its_answer_ends_the_meeting_on_all() {
    let run = format!("goes/{}", std::process::id());
    let token = token(&run, 3);
    let begin = Instant::now();
    let errors = ranks(&[0, 1, 2], |rank| {
        if rank != 1 {
            // The last one comes when the first has gone.
            std::thread::sleep(Duration::from_millis(u64::from(rank) * 200));
            return UnixBootstrap::meet(&run, rank, 3, Duration::from_secs(8)).err();
        }
        loop {
            if let Ok(s) = UnixStream::connect_addr(&address(&token).unwrap()) {
                let hello = Pack::default().bytes(&token).u64(1).done();
                wire::send(&s, &hello, Deadline::within(HELLO)).unwrap();
                std::thread::sleep(Duration::from_millis(100));
                return None;
            }
        }
    });
    assert_eq!(errors.iter().flatten().count(), 2, "{errors:?}");
    for error in errors.iter().flatten() {
        assert!(error.to_string().contains("went away"), "{error}");
    }
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
}

#[test]
fn a_rank_that_goes_away_ends_the_gather_on_all() {
    let begin = Instant::now();
    let errors = ranks(&[0, 1, 2], |rank| {
        let mut b = meet("leaves", rank, 3, 3000).unwrap();
        if rank == 1 {
            return None;
        }
        Some(b.all_gather(&[]).unwrap_err())
    });
    for error in errors.iter().flatten() {
        let Error::Rendezvous { missing, .. } = error else { panic!("{error}") };
        assert_eq!(missing, &[1], "{error}");
    }
    assert!(begin.elapsed() < Duration::from_secs(2), "a dead process is noticed at once");
}
