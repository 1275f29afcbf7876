use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// A port of the loopback interface that was free a moment ago. Calls of a process return others, until they have had 15,000.
///
/// It lies below the ports that a system gives to outgoing connections by default: one of those could take it before a process
/// that is started for it listens.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next =
            std::process::id().wrapping_mul(131).wrapping_add(7 * NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 15_000 + (next % 15_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
