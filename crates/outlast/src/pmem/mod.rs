//! Persistent memory: the media, the mapping, and the seam that all access goes through.

mod alive;
#[cfg_attr(target_arch = "x86_64", path = "arch_x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arch_aarch64.rs")]
mod arch;
mod blocks;
mod disk;
mod dying;
mod flush;
mod helpers;
mod lanes;
mod mapping;
mod medium;
mod memory;
mod notes;
mod region;
mod reserve;
#[macro_use]
mod seam;
mod shared;
mod side;
mod traced;
mod word;
mod words;

pub use alive::Alive;
pub use disk::{Call, Disk, DiskWatch, Fate, Moment};
pub use disk::{flock, free_bytes, mode_of_copy, rename_new};
pub use dying::dying_after;
pub use flush::{FlushInstruction, FlushMode, Latency, Real};
pub use helpers::with_helpers;
pub use mapping::{Access as MapAccess, Mapping, MappingError, Resident};
pub use medium::{Medium, MediumKind};
pub use memory::{Memory, Shadow, words_of};
pub use notes::{CONTROL_WORDS, Notes};
pub use region::Region;
pub use reserve::{SHADOW_SHARE, reserve_for};
pub use seam::{Mark, Point, Seam, Seeded, SeededBug};
pub(crate) use seam::{commit_points, seeded_bugs};
pub use shared::{OfShared, Shared, SharedWord};
pub use side::{DIRECTORIES, STASH_LOCKS, STRIPES, SideTable};
pub use traced::{Access, Control, Counts, Event, LineSet, Traced};
pub use word::{LINE, Media, Offset, Word};
pub use words::DramWords;
