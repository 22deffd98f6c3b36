//! How processes of different hosts connect: each listens, and those of higher ranks come.

use super::super::rendezvous::os;
use super::super::tcp::{End, HELLO, Link, introduce, listen, reach, welcome};
use super::super::wire::{Broken, Deadline};
use crate::{Error, Result};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

/// Polling interval, and delay between attempts.
const PAUSE: Duration = Duration::from_millis(2);

/// A listening socket at an address of this host, for processes of others.
#[derive(Debug)]
pub(in crate::world) struct MeshListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl MeshListener {
    pub fn open(at: IpAddr) -> Result<MeshListener> {
        let failed = |e: std::io::Error| Error::System {
            call: "bind",
            what: format!("{at}: {e} (MK_ADDRESS names an address of this host)"),
        };
        let (listener, address) = listen(at).map_err(failed)?;
        Ok(MeshListener { listener, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes one peer in; none if none comes in time. Who does not know the secret is turned away.
    fn admit(&self, me: End<'_>, deadline: Deadline) -> Result<Option<(u32, Link)>> {
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => match welcome(stream, me) {
                    Ok(met) => return Ok(Some(met)),
                    Err(why) => tracing::warn!(%from, ?why, "a stranger was turned away"),
                },
                Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(e) => return Err(os("accept", &e)),
            }
            if deadline.over() {
                return Ok(None);
            }
        }
    }
}

/// Connects with every process that has an address here: with lower ranks by going there, with higher ones by letting
/// them come.
///
/// # Errors
/// [`Error::PeerSilent`] with those that did not come in time, [`Error::PeerFailed`] for one that cannot be reached.
pub(in crate::world) fn meet(
    gate: &MeshListener,
    me: End<'_>,
    addresses: &[Option<SocketAddr>],
    deadline: Deadline,
) -> Result<Vec<Option<Link>>> {
    let mut links: Vec<Option<Link>> = addresses.iter().map(|_| None).collect();
    for (peer, address) in (0..me.rank).zip(addresses) {
        let Some(address) = address else { continue };
        links[peer as usize] = Some(go(*address, me, peer, deadline)?);
    }
    let awaited = |links: &[Option<Link>]| -> Vec<u32> {
        let all = (0..).zip(addresses).zip(links).skip(me.rank as usize + 1);
        all.filter(|((_, a), l)| a.is_some() && l.is_none()).map(|((r, _), _)| r).collect()
    };
    loop {
        let ranks = awaited(&links);
        if ranks.is_empty() {
            return Ok(links);
        }
        let Some((peer, link)) = gate.admit(me, deadline)? else {
            let (during, waited) = ("connecting".into(), deadline.limit());
            return Err(Error::PeerSilent { ranks, during, waited });
        };
        match links.get_mut(peer as usize) {
            Some(place @ None) if ranks.contains(&peer) => *place = Some(link),
            // It knows the secret, and is nobody that is waited for.
            _ => tracing::warn!(peer, "a second process says that it is this rank"),
        }
    }
}

fn go(address: SocketAddr, me: End<'_>, peer: u32, deadline: Deadline) -> Result<Link> {
    loop {
        // Who listens hears one after the other, and goes to lower ranks first.
        let patient = Deadline::within(deadline.left().max(HELLO));
        let broken = match reach(address, deadline)
            .and_then(|stream| introduce(stream, me, peer, patient))
        {
            Ok(link) => return Ok(link),
            Err(broken) => broken,
        };
        if deadline.over() || matches!(broken, Broken::Interrupted) {
            if matches!(broken, Broken::Interrupted) {
                return Err(Error::Interrupted { during: "connecting".into() });
            }
            let what = format!(
                "its host is not reached at {address}: {broken}; open the ports between the hosts, or name an address \
                 by MK_ADDRESS"
            );
            return Err(Error::PeerFailed { rank: peer, during: "connecting".into(), what });
        }
        std::thread::sleep(PAUSE);
    }
}
