//! What stands for published bugs in clevel, where the pool does not.

use crate::planted::table::Line;

/// Its lines.
pub(super) const LINES: &[Line] = &[];
