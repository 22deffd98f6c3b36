//! Raw figures: every method moves what it should, products are right, and what cannot be measured is refused.

use crate::{alone, worlds};
use mk_runtime::Error;
use mk_runtime::probe::{Burst, Method, Piece, Probe, ROUNDS, Transfer};

#[test]
fn every_method_moves_what_it_should() {
    let _alone = alone();
    for world in worlds().iter().filter(|w| w.size() > 1) {
        let probe = Probe::new(world, &crate::common::jit_options(), 1).unwrap();
        let bulk = [Method::BulkLocal, Method::BulkPush, Method::BulkPull, Method::BulkReduce];
        let bulk = bulk.iter().flat_map(|method| Piece::ALL.map(method));
        let others = [Method::LdstLocal, Method::LdstPush, Method::LdstPull, Method::CopyEngine];
        for method in bulk.chain(others) {
            let own_sms: &[u32] = if method == Method::CopyEngine { &[0] } else { &[1, 5, 66] };
            for (sms, senders) in own_sms.iter().flat_map(|n| [(*n, 1), (*n, world.size())]) {
                // Once less than a piece for each SM, once several rounds of a ring.
                for bytes in [128 << 10, 9 << 20] {
                    let transfer = Transfer { method, senders, sms, bytes };
                    let seconds = probe.transfer_s(&transfer).unwrap_or_else(|e| panic!("{e}"));
                    assert!(seconds > 0.0, "{transfer}: {seconds}");
                }
            }
        }
        // As many sums as a figure may be made of.
        let most = Probe::new(world, &crate::common::jit_options(), *ROUNDS.end()).unwrap();
        let (method, bytes) = (Method::BulkReduce(Piece::K16), 1 << 20);
        most.transfer_s(&Transfer { method, senders: world.size(), sms: 8, bytes }).unwrap();
    }
}

#[test]
fn memory_flags_and_launches_have_figures() {
    let _alone = alone();
    for world in worlds().iter().filter(|w| w.size() > 1) {
        let probe = Probe::new(world, &crate::common::jit_options(), 3).unwrap();
        let (local, peer) = (probe.flag_s(0, 0).unwrap(), probe.flag_s(0, 1).unwrap());
        let (host, device) = (probe.launch_host_s().unwrap(), probe.launch_device_s().unwrap());
        let read = probe.hbm_read_bytes_per_s().unwrap();
        println!(
            "flags {local:e} s, {peer:e} s; launch {host:e} s, {device:e} s; {read:e} bytes/s"
        );
        for seconds in [local, peer, host, device] {
            assert!((1e-7..1e-3).contains(&seconds), "{seconds:e}");
        }
    }
}

/// Rates of any GPU that runs this at all: at most what the hardware's clock allows, and no small part of it.
#[test]
fn products_are_right_and_have_rates() {
    let _alone = alone();
    for world in worlds().iter().filter(|w| w.size() > 1) {
        let probe = Probe::new(world, &crate::common::jit_options(), 3).unwrap();
        let all = probe.sms().unwrap();
        for (sms, steps) in [(1, 16), (5, 48), (1, 352), (all, 352), (all, 3520), (all, 35_200)] {
            let burst = Burst { sms, steps };
            let seconds = probe.mma_s(&burst).unwrap_or_else(|e| panic!("{e}"));
            let rate = burst.flop() / seconds / 1e12;
            println!("{burst}: {rate:.1} TFLOP/s, {:.4} ms", seconds * 1e3);
            // Short ones are a difference of two launches that take longer.
            if steps >= 352 {
                assert!((2.0..8.5).contains(&(rate / f64::from(sms))), "{burst}: {rate}");
            }
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let _alone = alone();
    for world in worlds() {
        let options = crate::common::jit_options();
        for rounds in [0, ROUNDS.end() + 1] {
            assert!(matches!(Probe::new(&world, &options, rounds), Err(Error::Shape { .. })));
        }
        let probe = match Probe::new(&world, &options, 1) {
            Err(Error::Shape { .. }) if world.size() == 1 => continue,
            probe => probe.unwrap(),
        };
        let good =
            Transfer { method: Method::BulkPush(Piece::K16), senders: 2, sms: 4, bytes: 1 << 20 };
        for bad in [
            Transfer { bytes: 0, ..good },
            Transfer { bytes: 24 << 10, ..good },
            Transfer { bytes: 1 << 30, ..good },
            Transfer { sms: 0, ..good },
            Transfer { sms: 1 << 20, ..good },
            Transfer { senders: 0, ..good },
            Transfer { senders: world.size() + 1, ..good },
            Transfer { method: Method::CopyEngine, ..good },
            Transfer { method: Method::LdstPull, bytes: 16 << 10, ..good },
        ] {
            assert!(matches!(probe.transfer_s(&bad), Err(Error::Shape { .. })), "{bad}");
        }
        assert!(matches!(probe.flag_s(0, world.size()), Err(Error::Shape { .. })));
        let good = Burst { sms: 4, steps: Burst::STEPS };
        for bad in [
            Burst { sms: 0, ..good },
            Burst { sms: 1 << 20, ..good },
            Burst { steps: 0, ..good },
            Burst { steps: Burst::STEPS + 1, ..good },
            Burst { steps: 2 << 20, ..good },
        ] {
            assert!(matches!(probe.mma_s(&bad), Err(Error::Shape { .. })), "{bad}");
        }
    }
}
