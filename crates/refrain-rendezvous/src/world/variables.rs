//! Environment variables, and options in their place.

use std::collections::BTreeMap;

use super::WorldOptions;
use crate::address::Address;
use crate::error::{Error, ErrorKind, Result};

/// Where ranks meet if nothing else is known: the port after torchrun's usual one.
pub const PORT: u16 = 29501;

/// The variables of a process and the options of its user.
pub struct Variables<'a> {
    variables: &'a BTreeMap<String, String>,
    pub options: &'a WorldOptions,
}

impl<'a> Variables<'a> {
    pub fn new(variables: &'a BTreeMap<String, String>, options: &'a WorldOptions) -> Self {
        Self { variables, options }
    }

    /// The value of a variable; one that is empty counts as not set.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.variables.get(name).map(|v| v.trim()).filter(|v| !v.is_empty())
    }

    pub fn any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.text(name).is_some())
    }

    /// The value of a variable that must be a number if it is set.
    pub fn number(&self, name: &str) -> Result<Option<u64>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            let message = format!(
                "{name} is {text:?}, which is not a whole number from 0: set it to one, or unset it, or pass the number as \
                 an option (--rank, --world-size, --local-rank)"
            );
            Error::new(ErrorKind::World, message)
        })
    }

    pub fn count(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.number(name)?.map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
    }

    /// An option, or else a variable that must be set, since `beside` is.
    pub fn required(&self, option: Option<usize>, name: &str, flag: &str, beside: &str) -> Result<usize> {
        if let Some(value) = option {
            return Ok(value);
        }
        self.count(name)?.ok_or_else(|| {
            let message = format!(
                "{name} is not set, but {beside} is: set both or neither, or pass {flag}. If this process should train \
                 alone, unset {beside}"
            );
            Error::new(ErrorKind::World, message)
        })
    }

    /// The port after `MASTER_PORT`, on which torchrun's agent listens itself; else a port that follows from the job's name.
    pub fn port(&self, job: &str) -> Result<u16> {
        let wrong = |text: String| {
            Error::new(
                ErrorKind::World,
                format!("{text}: set MASTER_PORT to a port from 1 to 65534, or pass --rendezvous"),
            )
        };
        match self.number("MASTER_PORT")? {
            None => Ok(port_of(job)),
            Some(0) => Err(wrong("MASTER_PORT is 0".to_owned())),
            Some(port) => u16::try_from(port.saturating_add(1)).map_err(|_| {
                wrong(format!("MASTER_PORT is {port}; ranks meet at the port after it, which does not exist"))
            }),
        }
    }

    /// Where ranks meet if the option or `MASTER_ADDR` says so.
    pub fn meeting_point(&self, job: &str) -> Result<Option<Address>> {
        if let Some(address) = &self.options.rendezvous {
            return Ok(Some(address.clone()));
        }
        let Some(host) = self.text("MASTER_ADDR") else { return Ok(None) };
        Ok(Some(self.tcp(host, job)?))
    }

    pub fn tcp(&self, host: &str, job: &str) -> Result<Address> {
        Ok(Address::Tcp { host: host.to_owned(), port: self.port(job)? })
    }
}

/// Jobs on one host should not meet at one port, and all ranks must find the same: it follows from the job's name.
fn port_of(job: &str) -> u16 {
    if job.is_empty() {
        return PORT;
    }
    let hash =
        job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    20_000 + (hash % 10_000) as u16
}
