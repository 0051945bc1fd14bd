//! The serial port to the host.

use crate::state::{Checked, Fault};
use crate::vm::wire::{self, Said};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

/// The program's own port. The kernel writes to the first one.
const DEVICE: &str = "/dev/ttyS1";

/// The serial port to the host.
pub(super) struct Port(Mutex<File>);

impl Port {
    pub(super) fn open() -> Checked<Port> {
        let file = File::options().write(true).open(DEVICE);
        file.map(|file| Port(Mutex::new(file))).map_err(|e| Fault(format!("{DEVICE}: {e}")))
    }

    /// Sends a line. Once this returns, the host has it, whatever happens to the guest.
    pub(super) fn say(&self, said: &Said) -> Checked {
        self.send(|| wire::line(said))
    }

    /// Waits until no other line is being sent, then calls `said` and sends the line that it
    /// returns.
    pub(super) fn say_then(&self, said: impl FnOnce() -> Said) -> Checked {
        self.send(|| wire::line(&said()))
    }

    /// Ends a line that another process may have begun.
    pub(super) fn end_line(&self) -> Checked {
        self.send(|| "\n".into())
    }

    fn send(&self, line: impl FnOnce() -> String) -> Checked {
        let send = || -> io::Result<()> {
            let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            file.write_all(line().as_bytes())?;
            // SAFETY: `tcdrain` only waits until the device has sent what was written; it touches
            // no memory.
            match unsafe { libc::tcdrain(file.as_raw_fd()) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        send().map_err(|e| Fault(format!("{DEVICE}: {e}")))
    }

    /// Sends a note for people.
    pub(super) fn note(&self, text: impl Into<String>) -> Checked {
        self.say(&Said::Note(text.into()))
    }
}
