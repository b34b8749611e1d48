//! Ports for the local run: the usual ones where they are free.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// A port that something of ours will listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    pub address: SocketAddr,
    /// The usual port, when that was taken and this is another one.
    pub instead_of: Option<u16>,
}

/// Why there is no port.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    #[error("port {port} is taken: choose another one with {flag}")]
    Taken { port: u16, flag: &'static str },
    #[error("no free port: {0}")]
    None(#[from] io::Error),
}

/// A loopback port: `wanted` if it was asked for, else `usual` if it is free, else any free one.
///
/// # Errors
/// When `wanted` is taken; `flag` is how to choose another.
pub fn choose(wanted: Option<u16>, usual: u16, flag: &'static str) -> Result<Port, PortError> {
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).and_then(|socket| socket.local_addr());
    match wanted {
        Some(port) => {
            let address = bind(port).map_err(|_| PortError::Taken { port, flag })?;
            Ok(Port { address, instead_of: None })
        }
        None => match bind(usual) {
            Ok(address) => Ok(Port { address, instead_of: None }),
            Err(_) => Ok(Port { address: bind(0)?, instead_of: Some(usual) }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_replaced_unless_it_was_asked_for() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let other = choose(None, port, "--x").unwrap();
        assert_eq!(other.instead_of, Some(port));
        assert_ne!(other.address.port(), port);
        let error = choose(Some(port), 1, "--x").unwrap_err();
        assert_eq!(error.to_string(), format!("port {port} is taken: choose another one with --x"));
        drop(taken);
        assert_eq!(choose(None, port, "--x").unwrap().instead_of, None);
    }
}
