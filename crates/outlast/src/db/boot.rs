//! The id of the current boot, and the errors that say whether something is there.

use crate::error::{Error, Result};
use crate::pool::core::random;
use std::io::ErrorKind;
use std::sync::OnceLock;

/// Returns the id of the current boot. If the system does not report one, returns an id that no
/// other process has, so a pool that was left dirty counts as one from an earlier boot. Fails if the
/// system reports one, and it cannot be read just now, for lack of descriptors or memory: the pool of a
/// dead process would lose what only its working file has.
pub(super) fn boot_id() -> Result<u128> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = match std::fs::read_to_string(path) {
        Err(error) if !is_missing(&error) => {
            return Err(Error::io(format!("reading {path}"), error));
        }
        read => read.unwrap_or_default(),
    };
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    static MADE_UP: OnceLock<u128> = OnceLock::new();
    let unique = || u128::from(random()) << 64 | u128::from(random());
    Ok(u128::from_str_radix(&digits, 16).unwrap_or_else(|_| *MADE_UP.get_or_init(unique)))
}

/// Returns whether an error says that this user finds no file at a path. All others, such as a lack of
/// descriptors, say nothing about the file.
pub(super) fn is_missing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied
    )
}
